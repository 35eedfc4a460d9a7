"""Scripted policies with varied behaviour, to compare simulators: they turn, shoot and run, none of them well."""

from __future__ import annotations

import numpy as np
import torch

from fledge.tasks.aircombat.env import AircombatEnv

PURSUES, WANDERS, STRAIGHT, RUNS = range(4)
Action = dict[str, torch.Tensor]


class Pilots:
    """A behaviour per row: chase the opponent with a lead or lag, wander, fly straight, or run.

    Args:
        rows: Number of rows, two per fight.
        seed: Random seed of behaviours and actions.
    """

    def __init__(self, rows: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.habit = self.rng.integers(0, 4, rows)
        self.gain = self.rng.uniform(0.5, 4.0, rows)
        self.aside = self.rng.uniform(-1.0, 1.0, rows)  # radians beside the nose
        self.eager = self.rng.uniform(0.0, 0.2, rows)  # chance of a shot in a second

    def act(self, env: AircombatEnv) -> Action:
        """Return the actions of the next decision."""
        rows, rng = len(self.habit), self.rng
        pos, nose = (torch.view_as_complex(env.state[name].cpu()).numpy() for name in ("pos", "dir"))
        enemy = pos.reshape(-1, 2)[:, ::-1].ravel() - pos
        to_enemy = np.angle(enemy / nose)
        away = np.angle(-enemy / nose * np.exp(1j * self.aside))
        chase = self.gain * (to_enemy + 0.5 * self.aside) + rng.normal(0.0, 0.2, rows)
        rudder = np.select(
            [self.habit == PURSUES, self.habit == WANDERS, self.habit == STRAIGHT],
            [chase, rng.uniform(-1.0, 1.0, rows), 0.0],
            self.gain * away,
        )
        throttle = np.where(self.habit == STRAIGHT, 1.0, rng.uniform(0.2, 1.0, rows))
        aimed = (np.abs(to_enemy) < 1.0) | (rng.random(rows) < 0.1)
        fire = aimed & (rng.random(rows) < self.eager)
        return {
            "rudder": torch.from_numpy(np.clip(rudder, -1.0, 1.0).astype(np.float32)),
            "throttle": torch.from_numpy(throttle.astype(np.float32)),
            "fire": torch.from_numpy(fire.astype(np.int64)),
        }
