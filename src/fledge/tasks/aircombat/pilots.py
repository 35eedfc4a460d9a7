"""Scripted pilots: policies written by hand, as opponents and baselines. To add one, add a class and its name in PILOTS.

    placeholder   flies straight ahead            random     acts at random
    pursuit       keeps its nose on the enemy, fires within `shot` times R_tr
    crank         fires, then turns to `angle` off the enemy while its missile flies; turns away when threatened
    drag          fires, then turns away at once, or turns its side to the incoming missile (`notch`)
    envelope      fires within R_tr, turns away as late as possible, by the observation `spacetime`

R_tr is the range at which a missile still kills a target that turns away and runs. Parameters of a pilot are written
`crank(shot=0.8, angle=50)`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import Action, BaseAgent, Obs
from fledge.core.errors import ConfigError, did_you_mean
from fledge.core.random import Purpose, derive_seed
from fledge.tasks.aircombat.observations import Missile, Spacetime, State

TURN_RADIUS_M = 1000.0


class DecodedObs:
    """A batch of observations in SI units, each of shape [B]; angles in radians, positive to the left."""

    def __init__(self, obs: Obs) -> None:
        state = obs["state"]
        self.range = State.RANGE.read(state)
        self.bearing = torch.atan2(state[:, State.BEARING_SIN], state[:, State.BEARING_COS])
        self.aspect = torch.atan2(state[:, State.ASPECT_SIN], state[:, State.ASPECT_COS])
        self.speed = State.SPEED.read(state)
        self.ready = state[:, State.CAN_FIRE] > 0.5
        own, incoming = obs["missiles"].chunk(2, dim=1)
        self.guiding = (own[..., Missile.FLYING] > 0.5).sum(1)  # own missiles in flight
        coming = incoming[..., Missile.FLYING] > 0.5
        self.threats = coming.sum(1)
        self.togo, nearest = torch.where(coming, Missile.TIME_TO_GO.read(incoming), math.inf).min(1)
        rows = torch.arange(len(nearest), device=nearest.device)
        sine, cosine = (incoming[rows, nearest, column] for column in (Missile.BEARING_SIN, Missile.BEARING_COS))
        self.threat_bearing = torch.atan2(sine, cosine)
        if "spacetime" in obs:
            self.over_tr = obs["spacetime"][:, Spacetime.OVER_R_TR]
            self.miss_away_km = obs["spacetime"][:, Spacetime.MISS_AWAY]  # its scale is 1 km

    def steer(self, angle: Tensor) -> Tensor:
        """Return the rudder that turns the nose by an angle (rad) in about a second."""
        wrapped = torch.atan2(angle.sin(), angle.cos())
        return (wrapped * TURN_RADIUS_M / self.speed.clamp(min=50.0)).clamp(-1.0, 1.0)

    def offset(self, target: Tensor, by: float | Tensor) -> Tensor:
        """Return the angle to turn by, rad, so that what is now at bearing `target` is then `by` radians off the nose.

        It stays on the same side of the nose.
        """
        side = torch.where(target >= 0, 1.0, -1.0)
        return target - side * by

    @property
    def away(self) -> Tensor:
        """Angle to turn by, rad, so that the incoming missile that arrives first is then straight behind.

        If no missile is incoming, the enemy is straight behind instead.
        """
        source = torch.where(self.threats > 0, self.threat_bearing, self.bearing)
        return self.offset(source, math.pi)


class Pilot(BaseAgent):
    """Base class of the scripted pilots. Subclasses implement `fly`.

    Args (of the pilots that have them):
        shot: The pilot fires if the range is below `shot` times R_tr (defined in the module's docstring).
        angle: Degrees between the pilot's nose and the enemy while one of the pilot's missiles flies.
    """

    observes: tuple[str, ...] = ("state", "missiles", "spacetime", "mask")
    task = "aircombat"
    name = ""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        """Return rudder (-1 to 1), throttle (0 to 1) and fire (bool), each a tensor of shape [B]."""
        raise NotImplementedError

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        """Return the action: discrete if the env's action mask has six values, else continuous."""
        seen = DecodedObs(obs)
        rudder, throttle, fire = self.fly(seen)
        fire = fire & seen.ready
        if obs["mask"].shape[-1] == 6:
            third = torch.where(rudder > 0.33, 0, torch.where(rudder < -0.33, 2, 1))
            return 2 * third + fire.long()
        return {"rudder": rudder, "throttle": throttle, "fire": fire.long()}

    def get_name(self) -> str:
        return self.name


class PlaceholderPilot(Pilot):
    """Flies straight ahead at full throttle and never fires."""

    observes = ("state", "missiles", "mask")
    name = "placeholder"

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        still = torch.zeros_like(seen.range)
        return still, still + 1.0, still > 1.0


class RandomPilot(Pilot):
    """Draws rudder and throttle at random at every decision, and fires at one decision in twenty."""

    observes = ("state", "missiles", "mask")
    name = "random"

    def __init__(self, num_envs: int = 1, seed: int = 0) -> None:
        super().__init__(num_envs)
        self.generator = torch.Generator().manual_seed(derive_seed(seed, Purpose.POLICY))

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        drawn = torch.rand((3, len(seen.range)), generator=self.generator).to(seen.range.device)
        return 2.0 * drawn[0] - 1.0, drawn[1], drawn[2] < 0.05

    def episode_state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        if "generator" in state:
            self.generator.set_state(state["generator"].cpu())


class PursuitPilot(Pilot):
    """Keeps its nose on the enemy and fires within range, one missile at a time."""

    name = "pursuit"

    def __init__(self, num_envs: int = 1, shot: float = 1.0) -> None:
        super().__init__(num_envs)
        self.shot = shot

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        fire = (seen.over_tr < self.shot) & (seen.guiding == 0)
        return seen.steer(seen.bearing), torch.ones_like(seen.range), fire


class CrankPilot(Pilot):
    """Fires, keeps the enemy `angle` degrees off its nose while the missile flies, and turns away when threatened.

    Args:
        break_s: Turn away when an incoming missile is this many seconds away.
    """

    name = "crank"

    def __init__(self, num_envs: int = 1, shot: float = 1.1, angle: float = 55.0, break_s: float = 18.0) -> None:
        super().__init__(num_envs)
        self.shot, self.angle, self.break_s = shot, math.radians(angle), break_s

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        cold = seen.togo < self.break_s
        crank = (seen.guiding > 0) & ~cold
        turn = torch.where(crank, seen.offset(seen.bearing, self.angle), seen.bearing)
        turn = torch.where(cold, seen.away, turn)
        fire = (seen.over_tr < self.shot) & (seen.guiding == 0) & ~cold & (seen.bearing.abs() < self.angle)
        return seen.steer(turn), torch.ones_like(seen.range), fire


class DragPilot(Pilot):
    """Fires early and turns away at once; with `notch`, turns until an incoming missile is abeam instead.

    Args:
        notch: Fly at a right angle to the direction of the incoming missile, instead of away from it.
    """

    name = "drag"

    def __init__(self, num_envs: int = 1, shot: float = 1.2, notch: bool = False) -> None:
        super().__init__(num_envs)
        self.shot, self.notch = shot, notch
        self.name = "notch" if notch else "drag"

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        running = (seen.guiding > 0) | (seen.threats > 0)
        evade = seen.away
        if self.notch:
            evade = torch.where(seen.threats > 0, seen.offset(seen.threat_bearing, math.pi / 2), evade)
        fire = (seen.over_tr < self.shot) & ~running
        return seen.steer(torch.where(running, evade, seen.bearing)), torch.ones_like(seen.range), fire


class EnvelopePilot(Pilot):
    """Fires within R_tr, and turns away as late as the observation `spacetime` says is still safe.

    Args:
        miss_km: Turn away when the missile's predicted miss distance after turning away falls below this, km.
    """

    name = "envelope"

    def __init__(self, num_envs: int = 1, shot: float = 0.95, miss_km: float = 2.0, angle: float = 50.0) -> None:
        super().__init__(num_envs)
        self.shot, self.miss_km, self.angle = shot, miss_km, math.radians(angle)

    def fly(self, seen: DecodedObs) -> tuple[Tensor, Tensor, Tensor]:
        threatened = (seen.threats > 0) & (seen.miss_away_km < self.miss_km)
        crank = (seen.guiding > 0) & ~threatened
        turn = torch.where(crank, seen.offset(seen.bearing, self.angle), seen.bearing)
        turn = torch.where(threatened, seen.away, turn)
        fire = (seen.over_tr < self.shot) & (seen.guiding == 0) & (seen.bearing.abs() < 1.2)
        return seen.steer(turn), torch.ones_like(seen.range), fire


PILOTS: dict[str, Callable[..., Pilot]] = {
    "placeholder": PlaceholderPilot,
    "random": RandomPilot,
    "pursuit": PursuitPilot,
    "crank": CrankPilot,
    "drag": DragPilot,
    "notch": lambda num_envs=1, **options: DragPilot(num_envs, notch=True, **options),
    "envelope": EnvelopePilot,
}
OTHER_NAMES = {"rule_based": "crank"}  # midrangeRL's name -> ours
LIMITS: dict[str, tuple[float, float]] = {  # lowest and highest value of each parameter
    "shot": (0.0, 100.0),
    "angle": (0.0, 180.0),
    "break_s": (0.0, 1000.0),
    "miss_km": (0.0, 1000.0),
    "seed": (0, 2**63 - 1),
}


def make_pilot(name: str, **options: Any) -> Pilot:
    """Make a pilot by name, with or without parameters: `make_pilot("crank", shot=0.8)`.

    Raises:
        ConfigError: if there is no pilot of that name, it has no such parameter, or a value is not allowed.
    """
    kind = OTHER_NAMES.get(name, name)
    if kind not in PILOTS:
        raise ConfigError(
            f"{name!r} is not a known pilot.{did_you_mean(name, PILOTS)} Choose one of {', '.join(PILOTS)}."
        )
    for key, value in options.items():
        is_switch = key == "notch"
        if is_switch != isinstance(value, bool):
            wanted = "true or false" if is_switch else "a number"
            raise ConfigError(f"{key} of the pilot {kind} is {value!r}, but must be {wanted}.")
        low, high = LIMITS.get(key, (-math.inf, math.inf))
        if not low <= value <= high or (key == "seed" and not isinstance(value, int)):
            whole = " and whole" if key == "seed" else ""
            raise ConfigError(f"{key} of the pilot {kind} is {value}, but must be {low:g} to {high:g}{whole}.")
    try:
        return PILOTS[kind](1, **options)
    except TypeError:
        made = DragPilot if kind == "notch" else PILOTS[kind]
        known = [key for key in inspect.signature(made).parameters if key != "num_envs"]
        wrong = next((key for key in options if key not in known), "")
        has = f"Its parameters are {', '.join(known)}" if known else "It has no parameters"
        raise ConfigError(f"The pilot {kind} has no parameter {wrong}.{did_you_mean(wrong, known)} {has}.") from None
