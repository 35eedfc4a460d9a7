"""Flights that test the runtime's planner beside the simulator's: worlds, and a drone in front of a narrow gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fledge.core.overrides import from_plain, leaves, nested
from fledge.core.settings import flat_settings
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.metrics import PRESETS
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.planner.reader import PlanReader
from fledge.tasks.policy_loader import load_policy
from fledge_runtime.planner import Planner

CROSSING = {"num_maps": 4, "decimation": 4, "plan": True, "pose": True, "starts": "crossing", "walls": True}


def world(*names: str, policy: str = "", **settings: Any) -> NavigationConfig:
    """Return the settings of a crossing with 80 movers, changed by a policy's settings, by presets such as sensor/mid360, and
    by `settings`, in which planner_guard is planner.guard."""
    found: dict[str, Any] = dict(load_policy(policy).env.settings) if policy else {}
    for name in names:
        found.update(leaves(PRESETS.load(*name.split("/"))))
    found.update(CROSSING)
    for name, value in settings.items():
        found[name.replace("planner_", "planner.", 1)] = value
    return from_plain(NavigationConfig, nested(found))


@dataclass
class Agreement:
    """Decisions of planners beside the simulator's."""

    decisions: int = 0
    unequal: int = 0  # plans that are not the same bit for bit
    apart: int = 0  # plans with a number that differs by more than 1e-5
    commands_apart: int = 0
    furthest: float = 0.0
    ended: int = 0
    with_movers: int = 0
    rows_unequal: int = 0
    plans: list[np.ndarray] = field(default_factory=list)

    def add(self, ours: np.ndarray, expected: np.ndarray) -> None:
        gap = np.abs(ours - expected)
        self.decisions += 1
        self.unequal += not np.array_equal(ours, expected)
        self.apart += bool(gap.max() > 1e-5)
        self.commands_apart += bool(gap[:5].max() > 1e-5)
        self.furthest = max(self.furthest, float(gap.max()))


def compare(
    cfg: NavigationConfig, steps: int, make: Callable[[dict[str, Any]], Planner], seed: int = 5, noise: float = 0.15
) -> Agreement:
    """Fly the simulator's planner, with random errors, and compare the plans of one planner for each drone at every decision.

    All carry their memory along; where an episode ends, the next begins with an empty one.
    """
    env, found = NavigationEnv(cfg, seed=seed, num_threads=1), Agreement()
    planners = [make(flat_settings(cfg)) for _ in range(cfg.num_envs)]
    out, flown, generator = env.reset(), None, torch.Generator().manual_seed(seed)
    for _ in range(steps):
        obs = {name: values.numpy() for name, values in out["obs"].items()}
        for i, planner in enumerate(planners):
            seen = {name: values[i] for name, values in obs.items()}
            got = planner.step({**seen, "flown": None if flown is None else flown[i]})
            found.add(got["plan"], seen["plan"])
            if planner.tracks:
                found.rows_unequal += not np.array_equal(got["dynamic_obstacle"], seen["dynamic_obstacle"])
            found.with_movers += bool(seen["dynamic_obstacle"].any())
        action = 0.5 * out["obs"]["plan"][:, :3] + 0.5
        action = (action + noise * torch.randn(action.shape, generator=generator)).clamp(0.0, 1.0)
        out, flown = env.step(action), action.numpy()
        over = (out["terminated"] | out["truncated"]).numpy()
        found.ended += int(over.sum())
        for i in np.flatnonzero(over):
            planners[i].reset()
    env.close()
    return found


def compare_alone(
    cfg: NavigationConfig, steps: int, make: Callable[[dict[str, Any]], Planner], seed: int = 5
) -> Agreement:
    """Fly the scripted policy `planner`, and compare its commands with those of one planner for each drone."""
    env, found, agent = NavigationEnv(cfg, seed=seed, num_threads=1), Agreement(), PlannerPilot(cfg.planner, cfg)
    planners = [make(flat_settings(cfg)) for _ in range(cfg.num_envs)]
    out = env.reset()
    for _ in range(steps):
        command = agent.command(out["obs"])
        for i, planner in enumerate(planners):
            planner.step({name: values[i].numpy() for name, values in out["obs"].items()})
            found.add(planner.command, command[i].numpy())
        out = env.step(agent.as_action(command))
        over = out["terminated"] | out["truncated"]
        agent.reset(over)
        found.ended += int(over.sum())
        for i in np.flatnonzero(over.numpy()):
            planners[i].reset()
    env.close()
    return found


WALL_M = -18.0  # x of a wall of 6 m, with a gap of 0.9 m in its middle; the goal is at (0, 0)
GAP = NavigationConfig(pose=True, plan=True, lidar_azimuths=360, decimation=4)
GAP.planner.climb, GAP.planner.ways_every, GAP.planner.margin_cost = (
    0.0,
    1,
    3.0,
)  # clearance outweighs the way behind it


def gap_scan(at: np.ndarray) -> np.ndarray:
    """Return level beams from a point that end at the wall; nothing else."""
    angle, ahead = np.radians(np.arange(360)), WALL_M - at[0]
    lidar, toward = np.zeros((360, 4), np.float32), np.cos(angle) * ahead > 1e-6
    across = np.abs(at[1] + ahead * np.tan(angle))
    distance = ahead / np.where(toward, np.cos(angle), 1.0)
    hit = toward & (across >= 0.45) & (across <= 3.0) & (distance < 4.0)
    lidar[hit, 1] = 4.0 - distance[hit]
    return lidar


def fly_to_the_gap(steps: int, make: Callable[[dict[str, Any]], Planner]) -> tuple[Agreement, np.ndarray]:
    """Fly the reader's commands from 2 m in front of the wall; return how a planner agrees, and the last position."""
    reader, planner, found = PlanReader(GAP), make(flat_settings(GAP)), Agreement()
    at, vel, acc, flown = np.array([-20.0, 0.1, 1.6]), np.zeros(3), np.zeros(3), None
    for _ in range(steps):
        away = math.hypot(at[0], at[1])
        state = np.array([-at[0] / away, -at[1] / away, 0.0, away, 0.0, *vel], np.float32)
        obs = {"state": state, "lidar": gap_scan(at), "pose": np.array([at[2], 0.0], np.float32)}
        obs["dynamic_obstacle"] = np.zeros((1, 5, 10), np.float32)
        plan = reader.read(obs, flown).numpy()[0]
        found.add(planner.step({**obs, "flown": flown})["plan"], plan)
        flown = 0.5 * plan[:3] + 0.5
        for _ in range(GAP.decimation):
            acc = acc + GAP.dt_s / 0.15 * (2.2 * (GAP.speed_limit * plan[:3] - vel) - acc)
            vel = vel + GAP.dt_s * (acc - 0.2 * vel)
            at = at + GAP.dt_s * vel
    return found, at


def record(cfg: NavigationConfig, steps: int, seed: int = 5) -> list[dict[str, np.ndarray]]:
    """Return the observations of one drone's flight, with `flown` and the simulator's plan."""
    env, rows = NavigationEnv(cfg, seed=seed, num_threads=1), []
    out, flown = env.reset(), None
    for _ in range(steps):
        row = {name: values[0].numpy().copy() for name, values in out["obs"].items()}
        rows.append({**row, **({} if flown is None else {"flown": flown[0].numpy()})})
        flown = 0.5 * out["obs"]["plan"][:, :3] + 0.5
        out = env.step(flown)
        if bool((out["terminated"] | out["truncated"])[0]):
            break
    env.close()
    return rows


def replay(planner: Planner, rows: Sequence[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Return the plans for a recorded flight."""
    planner.reset()
    return [planner.step(row)["plan"] for row in rows]
