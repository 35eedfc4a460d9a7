"""Small trainings on a device, for the tests on a GPU and for their speed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

TASKS = {
    "fast": ("navigation", "fast", ["env.max_episode_steps=24"]),
    "navrl": ("navigation", "navrl", ["env.max_episode_steps=24"]),
    "planned": ("navigation", "planned", ["env.max_episode_steps=24"]),
    "duel": ("aircombat", "fast", ["env.max_episode_s=12"]),
}
SMALL = ["env.num_envs=256", "total_frames=1000000", "ppo.rollout_steps=16", "ppo.minibatch=1024", "ppo.epochs=2"]


def make_run(name: str, device: str, settings: list[str]) -> TrainingState:
    task_name, preset, _ = TASKS[name]
    task = find_task(task_name)
    return TrainingState(make_config(task, preset, [*settings, f"device={device}"]), Ranks(), task)


@contextlib.contextmanager
def graphs(on: bool) -> Iterator[None]:
    """Make runs inside with or without CUDA graphs."""
    before = os.environ.get("FLEDGE_CUDA_GRAPHS")
    os.environ["FLEDGE_CUDA_GRAPHS"] = str(int(on))
    try:
        yield
    finally:
        os.environ.pop("FLEDGE_CUDA_GRAPHS")
        os.environ.update({} if before is None else {"FLEDGE_CUDA_GRAPHS": before})


def train(
    name: str, device: str, iterations: int, captured: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the last rollout and the weights of a small training, on the CPU."""
    with graphs(captured):
        run = make_run(name, device, [*SMALL, *TASKS[name][2]])
    for _ in range(iterations):
        rollout = run.collect()
        run.learn(rollout)
    found = {str(k): v.cpu().clone() for k, v in rollout.items(include_nested=True, leaves_only=True)}
    weights = {k: v.cpu().clone() for k, v in run.policy.state_dict().items()}
    run.close()
    return found, weights


def state_of(run: TrainingState) -> dict[str, Any]:
    """Return a run's state as a checkpoint has it, on the CPU."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(Tensor, lambda tensor: tensor.cpu().clone(), run.state_dict())
