"""Scripted pilots, a ladder from who does nothing to who knows the space-time graph. Each is a function of what it sees.

    placeholder   straight ahead                  random     anything
    pursuit       nose on the enemy, shoots inside `shot` times R_tr
    crank         shoots, then turns to `angle` off the enemy while its missile flies; goes cold when threatened
    drag          shoots, then turns away at once, or puts the incoming missile on the beam (`notch`)
    envelope      shoots inside R_tr, turns away just in time, comes back when it is safe

R_tr is how far a missile reaches a target that turns and runs, from the observation `spacetime`. A pilot with parameters is
named `crank(shot=0.8, angle=50)`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import Action, BaseAgent, Obs
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed

TURN_RADIUS_M = 1000.0
NEVER = 4.0  # of a predicted miss, in km: nothing is on its way


class Sight:
    """What a pilot reads off an observation, in SI units; angles in radians, positive to the left. All [B]."""

    def __init__(self, obs: Obs) -> None:
        state, tokens = obs["state"], obs["missiles"]
        self.range = state[:, 0] * 50_000.0
        self.bearing = torch.atan2(state[:, 2], state[:, 3])
        self.aspect = torch.atan2(state[:, 4], state[:, 5])
        self.speed = state[:, 6] * 500.0
        self.ready = state[:, 11] > 0.5
        own, incoming = tokens.chunk(2, dim=1)
        self.guiding = (own[..., 0] > 0.5).sum(1)  # own missiles in the air
        self.threats = (incoming[..., 0] > 0.5).sum(1)
        togo = torch.where(incoming[..., 0] > 0.5, incoming[..., 4] * 60.0, math.inf)
        self.togo, nearest = togo.min(1)
        rows = torch.arange(len(togo), device=togo.device)
        self.threat_bearing = torch.atan2(incoming[rows, nearest, 7], incoming[rows, nearest, 8])
        if "spacetime" in obs:
            graph = obs["spacetime"]
            self.over_max, self.over_tr, self.over_ne = graph[:, 0], graph[:, 1], graph[:, 2]
            self.in_max, self.in_tr, self.in_ne = graph[:, 3], graph[:, 4], graph[:, 5]
            self.decide = graph[:, 6] * 60.0
            self.miss_hold, self.miss_away = graph[:, 8], graph[:, 9]  # km

    def steer(self, angle: Tensor) -> Tensor:
        """Rudder that turns the nose by an angle, in about a second."""
        wrapped = torch.atan2(angle.sin(), angle.cos())
        return (wrapped * TURN_RADIUS_M / self.speed.clamp(min=50.0)).clamp(-1.0, 1.0)

    def offset(self, target: Tensor, by: float | Tensor) -> Tensor:
        """The turn that leaves `target` `by` radians off the nose, on the side where it already is."""
        side = torch.where(target >= 0, 1.0, -1.0)
        return target - side * by

    @property
    def away(self) -> Tensor:
        """The turn that puts the enemy, or the nearest missile, right behind."""
        source = torch.where(self.threats > 0, self.threat_bearing, self.bearing)
        return self.offset(source, math.pi)


class Pilot(BaseAgent):
    """Base of the pilots: says what to do, in whichever form the env takes actions.

    Args:
        device: Where its tensors are; only for those who name it.
    """

    observes: tuple[str, ...] = ("state", "missiles", "spacetime", "mask")
    name = ""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Rudder [-1, 1], throttle [0, 1], fire (bool), [B] each."""
        raise NotImplementedError

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        sight = Sight(obs)
        rudder, throttle, fire = self.fly(sight)
        fire = fire & sight.ready
        if obs["mask"].shape[-1] == 6:
            third = torch.where(rudder > 0.33, 0, torch.where(rudder < -0.33, 2, 1))
            return 2 * third + fire.long()
        return {"rudder": rudder, "throttle": throttle, "fire": fire.long()}

    def get_name(self) -> str:
        return self.name


class PlaceholderPilot(Pilot):
    """Flies straight ahead at full throttle, and never shoots."""

    observes = ("state", "missiles", "mask")
    name = "placeholder"

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        still = torch.zeros_like(sight.range)
        return still, still + 1.0, still > 1.0


class RandomPilot(Pilot):
    """Does anything: a new rudder and throttle at every decision, and a shot at one in twenty."""

    observes = ("state", "missiles", "mask")
    name = "random"

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        super().__init__(num_envs)
        self.generator = torch.Generator().manual_seed(derive_seed(seed, Purpose.POLICY))

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        drawn = torch.rand((3, len(sight.range)), generator=self.generator).to(sight.range.device)
        return 2.0 * drawn[0] - 1.0, drawn[1], drawn[2] < 0.05

    def episode_state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        if "generator" in state:
            self.generator.set_state(state["generator"].cpu())


class PursuitPilot(Pilot):
    """Keeps the nose on the enemy and shoots when he is near enough, one missile at a time.

    Args:
        shot: Range of a shot, as a share of R_tr.
    """

    name = "pursuit"

    def __init__(self, num_envs: int = 1, shot: float = 1.0) -> None:
        super().__init__(num_envs)
        self.shot = shot

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        fire = (sight.over_tr < self.shot) & (sight.guiding == 0)
        return sight.steer(sight.bearing), torch.ones_like(sight.range), fire


class CrankPilot(Pilot):
    """Shoots, turns to the limit of its radar's gimbal while the missile flies, and goes cold when threatened.

    Args:
        shot: Range of a shot, as a share of R_tr.
        angle: How far off the nose the enemy is kept while a missile flies, degrees.
        break_s: Time to go of an incoming missile at which it turns away, s.
    """

    name = "crank"

    def __init__(self, num_envs: int = 1, shot: float = 1.1, angle: float = 55.0, break_s: float = 18.0) -> None:
        super().__init__(num_envs)
        self.shot, self.angle, self.break_s = shot, math.radians(angle), break_s

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        cold = sight.togo < self.break_s
        crank = (sight.guiding > 0) & ~cold
        turn = torch.where(crank, sight.offset(sight.bearing, self.angle), sight.bearing)
        turn = torch.where(cold, sight.away, turn)
        fire = (sight.over_tr < self.shot) & (sight.guiding == 0) & ~cold & (sight.bearing.abs() < self.angle)
        return sight.steer(turn), torch.ones_like(sight.range), fire


class DragPilot(Pilot):
    """Shoots early and turns away at once; with `notch`, puts an incoming missile on the beam instead.

    Args:
        shot: Range of a shot, as a share of R_tr.
        notch: Fly across the missile's path instead of away from it.
    """

    name = "drag"

    def __init__(self, num_envs: int = 1, shot: float = 1.2, notch: bool = False) -> None:
        super().__init__(num_envs)
        self.shot, self.notch = shot, notch
        self.name = "notch" if notch else "drag"

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        running = (sight.guiding > 0) | (sight.threats > 0)
        evade = sight.away
        if self.notch:
            evade = torch.where(sight.threats > 0, sight.offset(sight.threat_bearing, math.pi / 2), evade)
        fire = (sight.over_tr < self.shot) & ~running
        return sight.steer(torch.where(running, evade, sight.bearing)), torch.ones_like(sight.range), fire


class EnvelopePilot(Pilot):
    """Shoots inside R_tr, and turns away at the last moment that still saves it, by the space-time graph.

    Args:
        shot: Range of a shot, as a share of R_tr.
        miss_km: Predicted miss of a missile, if it turned away now, below which it turns, km.
        angle: How far off the nose the enemy is kept while a missile flies, degrees.
    """

    name = "envelope"

    def __init__(self, num_envs: int = 1, shot: float = 0.95, miss_km: float = 2.0, angle: float = 50.0) -> None:
        super().__init__(num_envs)
        self.shot, self.miss_km, self.angle = shot, miss_km, math.radians(angle)

    def fly(self, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        threatened = (sight.threats > 0) & (sight.miss_away < self.miss_km)
        crank = (sight.guiding > 0) & ~threatened
        turn = torch.where(crank, sight.offset(sight.bearing, self.angle), sight.bearing)
        turn = torch.where(threatened, sight.away, turn)
        fire = (sight.over_tr < self.shot) & (sight.guiding == 0) & (sight.bearing.abs() < 1.2)
        return sight.steer(turn), torch.ones_like(sight.range), fire


PILOTS: dict[str, Callable[..., Pilot]] = {
    "placeholder": PlaceholderPilot,
    "random": RandomPilot,
    "pursuit": PursuitPilot,
    "crank": CrankPilot,
    "drag": DragPilot,
    "notch": lambda num_envs=1, **options: DragPilot(num_envs, notch=True, **options),
    "envelope": EnvelopePilot,
}
OTHER_NAMES = {"rule_based": "crank"}  # midrangeRL's
CALL = re.compile(r"(\w+)\s*(?:\((.*)\))?")
LIMITS: dict[str, tuple[float, float]] = {  # of parameters
    "shot": (0.0, 100.0),
    "angle": (0.0, 180.0),
    "break_s": (0.0, 1000.0),
    "miss_km": (0.0, 1000.0),
    "seed": (0, 2**63 - 1),
}


def make_pilot(name: str, num_envs: int = 1) -> Pilot:
    """A pilot by name, with parameters or without: `crank`, `crank(shot=0.8, angle=50)`.

    Raises:
        ConfigError: when there is none of that name, or it has no such parameter or value.
    """
    found = CALL.fullmatch(name.strip())
    kind = OTHER_NAMES.get(found[1], found[1]) if found else ""
    if found is None or kind not in PILOTS:
        raise ConfigError(f"There is no pilot {name!r}; there are {', '.join(PILOTS)}.")
    options = read_options(kind, found[2] or "")
    try:
        return PILOTS[kind](num_envs, **options)
    except TypeError:
        raise ConfigError(f"The pilot {kind} has no parameter {' or '.join(options)}.") from None


def read_options(pilot: str, text: str) -> dict[str, Any]:
    """Parameters as they stand between a pilot's brackets; ConfigError where one is no number, or beyond its limits."""
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            number = ast.literal_eval(value.capitalize() if value in ("true", "false") else value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            number = None
        is_switch = key == "notch"
        if (
            not sign
            or not isinstance(number, bool if is_switch else int | float)
            or is_switch != isinstance(number, bool)
        ):
            raise ConfigError(f"{part!r} is no parameter of {pilot}: write key={'true' if is_switch else 'number'}.")
        if key in options:
            raise ConfigError(f"{key} of the pilot {pilot} is given twice: give it once.")
        low, high = LIMITS.get(key, (-math.inf, math.inf))
        if not low <= number <= high or (key == "seed" and not isinstance(number, int)):
            whole = " and whole" if key == "seed" else ""
            raise ConfigError(f"{key} of the pilot {pilot} is {value}, but must be {low:g} to {high:g}{whole}.")
        options[key] = number
    return options
