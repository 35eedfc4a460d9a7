"""The duel in torch, float32, all fights at once, as a competent user would write it.

As in `numpy_duel`, the plane is the complex plane. Only missiles that fly are worked on; no observation, no reward, no new
fights.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.baselines.aircombat.numpy_duel import (
    DRAW,
    EPS_S,
    FIRST_WON,
    GOING_ON,
    NO_MISSILES,
    SECOND_WON,
    TIME_OUT,
    Fights,
)
from fledge.tasks.aircombat.config import GRAVITY, AircombatConfig

LOAD_ROUNDS = 3
Controls = tuple[Tensor, Tensor, Tensor]


class TorchFrame:
    """Flight model of a fighter or a missile."""

    def __init__(self, part: Any, load_limits: bool) -> None:
        self.drag = GRAVITY / part.terminal_speed**2
        self.radius = part.min_turn_radius_m
        self.induced = 1 / (4 * self.drag * part.lift_drag**2 * self.radius**2)
        self.load = part.load_limit_g * GRAVITY * self.radius if load_limits else math.inf

    def run(self, speed: Tensor, rudder: Tensor, thrust: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return speed and path length after t seconds of dv/dt = T - c v²."""
        c = self.drag + self.induced * rudder**2
        a = torch.sqrt(thrust * c).clamp(min=1e-6)
        swift = torch.tanh(a * t) / a
        y = c * speed * swift
        path = (torch.log1p(y) - 0.5 * torch.log1p(-((a * swift) ** 2))) / c
        return (speed + thrust * swift) / (1 + y), path

    def fly(
        self, pos: Tensor, nose: Tensor, speed: Tensor, wanted: Tensor, thrust: Tensor, t: float | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return place, direction and speed after t seconds along an arc."""
        wanted = wanted.clamp(-1, 1)
        rudder = wanted
        if self.load < math.inf and bool((wanted.abs() * (speed + thrust * t / 2) ** 2 > self.load).any()):
            for _ in range(LOAD_ROUNDS):
                middle, _ = self.run(speed, rudder, thrust, t / 2)
                most = self.load / middle**2
                rudder = torch.minimum(torch.maximum(wanted, -most), most)
        late, path = self.run(speed, rudder, thrust, t)
        angle = path * rudder / self.radius
        middle_nose = nose * torch.polar(torch.ones_like(angle), angle / 2)
        turned = middle_nose * torch.polar(torch.ones_like(angle), angle / 2)
        return pos + path * torch.sinc(angle / (2 * math.pi)) * middle_nose, turned / turned.abs(), late


class TorchDuel:
    """Fights that `step` advances by one decision.

    Args:
        cfg: The rules.
        start: State to begin from.
    """

    def __init__(self, cfg: AircombatConfig, start: Fights) -> None:
        self.cfg = cfg
        self.fighter, self.missile = (TorchFrame(part, cfg.load_limits) for part in (cfg.fighter, cfg.missile))
        self.steps = max(1, math.ceil(cfg.decimation * cfg.time_scale - 1e-9))
        self.dt = cfg.decision_s / self.steps
        self.load(start)

    def load(self, start: Fights) -> None:
        """Continue from a state."""
        single = start.copy(single=True)
        self.now = {f.name: torch.from_numpy(getattr(single, f.name)) for f in dataclasses.fields(single)}

    def step(self, controls: Controls) -> dict[str, Tensor]:
        """Fly a decision with rudder, throttle and fire [F, 2]; return the state. Fights that are over stay as they are."""
        rudder, throttle, fire = controls
        now = self.now
        self.shoot(fire > 0)
        rudder, thrust = rudder.clamp(-1, 1), throttle.clamp(0, 1) * (self.cfg.fighter.thrust_g * GRAVITY)
        for _ in range(self.steps):
            self.physics_step(rudder, thrust)
        late = (now["outcome"] == GOING_ON) & (now["clock"] >= self.cfg.max_episode_s - 1e-3)
        now["outcome"][late] = TIME_OUT
        return now

    def shoot(self, fire: Tensor) -> None:
        now = self.now
        ready = (now["left"] > 0) & (now["since_shot"] >= self.cfg.missile.interval_s - 1e-4)
        fight, side = torch.nonzero(fire & ready & (now["outcome"] == GOING_ON)[:, None], as_tuple=True)
        place = (fight, side, now["flying"].shape[2] - now["left"][fight, side])
        for name in ("pos", "direction", "speed"):
            now[f"missile_{name}"][place] = now[name][fight, side]
        now["missile_age"][place] = 0
        now["flying"][place] = True
        now["left"][fight, side] -= 1
        now["since_shot"][fight, side] = 0

    def physics_step(self, rudder: Tensor, thrust: Tensor) -> None:
        """Make one physics step of all fights that are not over."""
        now, rules = self.now, self.cfg.missile
        on = now["outcome"] == GOING_ON
        missiles = torch.nonzero(now["flying"] & on[:, None, None], as_tuple=True)
        fight, side = missiles[:2]
        target = (fight, 1 - side)
        pos, nose, speed, age = (now[f"missile_{name}"][missiles] for name in ("pos", "direction", "speed", "age"))
        before = now["pos"][target] - pos
        wanted = self.guide(before, now["direction"][target] * now["speed"][target], nose, speed)
        self.fly_fighters(on, rudder, thrust)
        power = torch.full_like(speed, rules.thrust_g * GRAVITY)
        burning = (rules.burn_s - age).clamp(0, self.dt)
        burning[burning < EPS_S] = 0
        for seconds, push in ((burning, power), (self.dt - burning, 0 * power)):
            if bool((seconds > 0).any()):
                pos, nose, speed = self.missile.fly(pos, nose, speed, wanted, push, seconds)
        age = age + self.dt
        for name, value in (("pos", pos), ("direction", nose), ("speed", speed), ("age", age)):
            now[f"missile_{name}"][missiles] = value
        move = now["pos"][target] - pos - before
        share = (-(before.conj() * move).real / (move.abs() ** 2).clamp(min=1e-9)).clamp(0, 1)
        hit = (before + share * move).abs() <= rules.kill_radius_m
        spent = (age >= rules.burn_s - 1e-4) & (speed < rules.min_speed)
        now["flying"][missiles] = ~(hit | spent)
        self.judge(on, fight[hit], 1 - side[hit])

    def guide(self, r: Tensor, target_velocity: Tensor, nose: Tensor, speed: Tensor) -> Tensor:
        v = target_velocity - nose * speed
        ahead = nose.conj() * r
        rate = (r.conj() * v).imag / (r.abs() ** 2).clamp(min=1.0)
        towards = torch.where(ahead.imag < 0, -1.0, 1.0)
        return torch.where(ahead.real < 0, towards, self.cfg.missile.navigation * rate * self.missile.radius / speed)

    def fly_fighters(self, on: Tensor, rudder: Tensor, thrust: Tensor) -> None:
        now, travel = self.now, self.cfg.rudder_rate * self.dt
        if travel > 0:
            rudder = now["rudder"] + (rudder - now["rudder"]).clamp(-travel, travel)
        moved = self.fighter.fly(now["pos"], now["direction"], now["speed"], rudder, thrust, self.dt)
        both = on[:, None]
        for name, value in zip(("pos", "direction", "speed", "rudder"), (*moved, rudder), strict=True):
            now[name] = torch.where(both, value, now[name])
        now["since_shot"] += self.dt * both
        now["clock"] += self.dt * on

    def judge(self, on: Tensor, fight: Tensor, victim: Tensor) -> None:
        now = self.now
        dead = torch.zeros_like(now["left"], dtype=torch.bool)
        dead[fight, victim] = True
        outcome = torch.zeros_like(now["outcome"])
        outcome[(now["left"] == 0).all(1) & ~now["flying"].flatten(1).any(1)] = NO_MISSILES
        outcome[dead[:, 1]] = FIRST_WON
        outcome[dead[:, 0]] = SECOND_WON
        outcome[dead.all(1)] = DRAW
        now["outcome"] = torch.where(on, outcome, now["outcome"])
