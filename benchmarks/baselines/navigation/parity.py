"""Compare a baseline with the simulator: both from the same state, with the same actions, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.baselines.navigation.plain_step import Snapshot
from benchmarks.sim_benchmark import Baselines, require, verdict
from fledge.tasks.navigation.env import NavigationEnv

PARITY_STEPS = 20
# name: largest difference, and the share of values that may exceed it. Float32 decides otherwise where a beam grazes an
# edge, or two obstacles are equally near; a grazing beam then shows in its drone's reward.
TOLERANCES = {
    "state": (1e-4, 0.0),
    "lidar": (1e-3, 1e-3),
    "dynamic_obstacle": (1e-4, 1e-3),
    "reward": (1e-3, 1e-2),
    "terminated": (0.0, 1e-3),
}


def snapshot_of(env: NavigationEnv) -> Snapshot:
    """Return the current state of the env's drones and maps, for a baseline to continue from."""
    names = ("pos", "vel", "quat", "rate", "throttle", "start", "goal")
    return Snapshot(
        **{name: env.state[name].numpy().copy() for name in names},
        slot=env.state["slot"].numpy().astype(np.int64),
        step=env.state["step"].numpy().astype(np.int64),
        grid=env.bank.grid.numpy(),
        movers=env.cfg.moving_obstacles,
    )


def check_parity(env: NavigationEnv, out: TensorDict, baselines: Baselines) -> dict[str, Any]:
    """Step the env and every baseline with the same actions, and return their differences.

    Drones are compared until their episode ends. Actions change from step to step.

    Raises:
        FledgeError: if more than the allowed share of any quantity differs by more than its tolerance.
    """
    start = snapshot_of(env)
    sims = {name: make(start) for name, (make, _) in baselines.items()}
    found: dict[str, dict[str, list[np.ndarray]]] = {name: {key: [] for key in TOLERANCES} for name in sims}
    flying = np.ones(env.num_envs, dtype=bool)
    generator = torch.Generator().manual_seed(env.seed)
    for _ in range(PARITY_STEPS):
        action = torch.rand((env.num_envs, 3), generator=generator)
        env.step(action, out=out)
        ended = (out["terminated"] | out["truncated"]).numpy()
        ours = {key: _before_reset(out, key, ended) for key in TOLERANCES}
        crowd = env.bank.tensors
        for name, sim in sims.items():
            native = baselines[name][1]
            theirs = sim.step(native(action), native(crowd["trail"][-1]), native(crowd["vel"]))
            for key in TOLERANCES:
                gap = np.abs(np.asarray(theirs[key], dtype=np.float64) - ours[key])
                found[name][key].append(gap[flying].ravel())
        flying &= ~ended
    report: dict[str, Any] = {"steps": PARITY_STEPS, "drones": env.num_envs, "still_flying": int(flying.sum())}
    for name, gaps in found.items():
        report[name] = {key: verdict(np.concatenate(parts), *TOLERANCES[key]) for key, parts in gaps.items()}
        require(name, report[name])
    return report


def _before_reset(out: TensorDict, key: str, ended: np.ndarray) -> np.ndarray:
    """Return a result of the step as it was before auto-reset, float64."""
    if key in ("reward", "terminated"):
        return out[key].numpy().astype(np.float64)
    live, final = out["obs"][key].numpy(), out["final_obs"][key].numpy()
    return np.where(ended.reshape(-1, *[1] * (live.ndim - 1)), final, live).astype(np.float64)
