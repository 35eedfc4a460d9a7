"""Episodes flown by a policy, for the replay benchmark.

Contract
    An episode is NumPy arrays per key: observations [T + 1, ...] with the final one, the rest [T, ...]. The forest has 350
    columns and 80 moving obstacles; recording begins when the drones are among them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from fledge.envs.placement import EnvPlacement
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task

Episode = dict[str, np.ndarray]
FLIGHT = ("lidar", "dynamic_obstacle", "state", "direction")
MAPS = ("grid_map",)
STEP = ("action", "reward", "terminated", "truncated")
WARM_S = 4.0  # of flight before anything is recorded
GRID_CELLS, GRID_M = 224, 8.0


def fly(frames: int, seed: int, policy: str, decimation: int, grid_maps: bool = False) -> list[Episode]:
    """Fly at least `frames` decisions; episodes still open at the end are cut there.

    Args:
        policy: Any name or path for `load_policy`.
        decimation: Physics steps per decision (at 62.5 a second).
        grid_maps: Record 224x224 occupancy maps instead of what the policy sees.
    """
    envs = 8 if grid_maps else 64
    task = find_task("navigation")
    cfg = task.config(num_envs=envs, static_obstacles=350, moving_obstacles=80, decimation=decimation)
    if grid_maps:
        cfg.grid_map, cfg.grid_size, cfg.grid_resolution_m = True, GRID_CELLS, GRID_M / GRID_CELLS
    keys = MAPS if grid_maps else FLIGHT
    env, pilot = task.make_env(cfg, EnvPlacement(seed=seed)), load_policy(policy).agent
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # batches of 64: handing them to more threads costs more than it saves
    obs = env.reset()["obs"]
    seen: dict[str, list[torch.Tensor]] = {k: [] for k in keys}
    taken: dict[str, list[torch.Tensor]] = {k: [] for k in STEP}
    finals: dict[tuple[int, int], dict[str, np.ndarray]] = {}  # (t, env) where an episode ended
    warm, steps = int(WARM_S / env.decision_s), -(-frames // envs)
    with torch.no_grad():
        for t in range(-warm, steps):
            action: Any = pilot.act(obs)
            if t >= 0:
                for k in keys:
                    seen[k].append(obs[k].clone())
            out = env.step(action)
            obs = out["obs"]
            if t < 0:
                continue
            for k in STEP:
                taken[k].append((action if k == "action" else out[k]).clone())
            for n in (out["terminated"] | out["truncated"]).nonzero().flatten().tolist():
                finals[t, n] = {k: out["final_obs"][k][n].numpy().copy() for k in keys}
    for k in keys:
        seen[k].append(obs[k].clone())
    env.close()
    torch.set_num_threads(threads)
    arrays = {k: torch.stack(v).numpy() for k, v in {**seen, **taken}.items()}
    return split(arrays, keys, finals)


def split(
    arrays: Episode, keys: tuple[str, ...], finals: dict[tuple[int, int], dict[str, np.ndarray]]
) -> list[Episode]:
    """Return the episodes in arrays [T + 1, N, ...] (observations) and [T, N, ...] (the rest), cut where `finals` says."""
    steps, envs = arrays["reward"].shape[:2]
    episodes = []
    for n in range(envs):
        ends = sorted(t + 1 for t, env in finals if env == n)
        for a, b in itertools.pairwise(sorted({0, *ends, steps})):
            episode = {k: arrays[k][a:b, n] for k in STEP}
            for k in keys:
                final = finals[b - 1, n][k] if (b - 1, n) in finals else arrays[k][b, n]
                episode[k] = np.concatenate([arrays[k][a:b, n], final[None]])
            episodes.append({k: np.ascontiguousarray(v) for k, v in episode.items()})
    return episodes
