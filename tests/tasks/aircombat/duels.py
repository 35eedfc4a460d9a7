"""Duels put in place by hand, and flown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.observations import State

Action = dict[str, torch.Tensor]
PLAIN = AircombatConfig(spacetime=False)


def make(duels: int, seed: int = 0, threads: int | None = None, **changes: Any) -> AircombatEnv:
    """An env whose fights have begun."""
    env = AircombatEnv(dataclasses.replace(PLAIN, num_envs=2 * duels, **changes), seed=seed, num_threads=threads)
    env.reset()
    return env


def place(env: AircombatEnv, **values: Any) -> None:
    """Load the env's own state with some of it changed."""
    state = env.state_dict()
    for name, value in values.items():
        old = state["duels"][name]
        new = torch.as_tensor(np.asarray(value)).to(old.dtype)
        state["duels"][name] = torch.broadcast_to(new, old.shape).clone()
    env.load_state_dict(state)


def action(rows: int, rudder: Any = 0.0, throttle: Any = 1.0, fire: Any = 0) -> Action:
    """Controls of all rows from numbers, or from one number a row."""
    given = {"rudder": (rudder, torch.float32), "throttle": (throttle, torch.float32), "fire": (fire, torch.int64)}
    return {
        name: torch.broadcast_to(torch.as_tensor(np.asarray(value)).to(kind), (rows,)).clone()
        for name, (value, kind) in given.items()
    }


def fight_out(env: AircombatEnv, control: Callable[[int], Action]) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes [rows] and times of their ends, s, of the fights that are on; `control(k)` gives the k-th decision."""
    out = env.make_buffers()
    outcome, ended = np.zeros(env.num_envs, np.int64), np.zeros(env.num_envs)
    for k in range(int(env.cfg.max_episode_s / env.decision_s) + 2):
        env.step(control(k), out=out)
        news = (outcome == 0) & (out["outcome"].numpy() > 0)
        outcome[news] = out["outcome"].numpy()[news]
        ended[news] = State.TIME.read(out["final_obs", "state"]).numpy()[news]
        if (outcome > 0).all():
            break
    return outcome, ended
