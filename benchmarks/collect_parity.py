"""Check each collector against a plain loop without threads, bit for bit, while the policy learns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from benchmarks.collect_loop import Loop
from fledge.collect import CompressedBatch, SyncDataCollector
from fledge.core.errors import FledgeError
from fledge.training.config import TrainConfig

DRONES, STEPS, ITERATIONS = 48, 16, 3
Flown = tuple[list[TensorDictBase], Tensor]  # batches, and the weights learned from them


def check_results(cfg: TrainConfig, level: int) -> dict[str, dict[str, int]]:
    """Return the batches and values compared per collector; raise FledgeError if any differs."""
    small = copy.deepcopy(cfg)
    small.env.num_envs, small.env.num_maps, small.env.max_episode_steps = DRONES, 4, 5 * STEPS
    small.ppo.rollout_steps, small.ppo.minibatch = STEPS, 256
    baselines: dict[str, tuple[str, Callable[[Loop], Flown]]] = {
        "pipelined": ("synchronous", _fly_with_lag_one),
        "halves": ("halves", _fly_side_by_side),
        "compressed": ("synchronous", _fly),
    }
    found = {}
    for kind, (beside, fly) in baselines.items():
        results = []
        for name, how in ((kind, _fly), (beside, fly)):
            loop = Loop(name, small, 1, level)
            try:
                results.append(how(loop))
            finally:
                loop.close()
        found[kind] = {"batches": ITERATIONS, "values": _compare(kind, *results)}
    return found


def _fly(loop: Loop) -> Flown:
    torch.manual_seed(loop.cfg.seed)
    batches = []
    for _ in range(ITERATIONS):
        batch: Any = loop.collector.rollout()
        batches.append(batch.decode() if isinstance(batch, CompressedBatch) else batch.clone())
        if isinstance(batch, CompressedBatch):
            some = torch.arange(1, DRONES, 5)
            _compare("compressed (some envs)", ([batch.decode(some)], some), ([batches[-1][:, some]], some))
        loop.learner.update(batch)
    return batches, loop.learner.flat.values.detach().clone()


def _fly_side_by_side(loop: Loop) -> Flown:
    """Collect from the same two envs in one thread, one after the other."""
    loop.collector = SyncDataCollector(loop.base.envs, loop.policy, loop.base.frames_per_batch)
    try:
        return _fly(loop)
    finally:
        loop.collector = loop.base


def _fly_with_lag_one(loop: Loop) -> Flown:
    """Collect batch k + 1 when batch k is returned, before the policy learns from batch k."""
    collector, loop.learner.stale_policy = loop.base, True
    collector.policy = copy.deepcopy(loop.policy)
    collector.draw_from(
        torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    )  # as the pipelined one seeds its own
    torch.manual_seed(loop.cfg.seed)
    ahead: TensorDictBase = collector.rollout().clone()
    batches: list[TensorDictBase] = []
    for _ in range(ITERATIONS):
        batches.append(ahead)
        collector.policy.load_state_dict(loop.policy.state_dict())
        ahead = collector.rollout().clone()
        loop.learner.update(batches[-1])
    return batches, loop.learner.flat.values.detach().clone()


def _compare(kind: str, ours: Flown, theirs: Flown) -> int:
    """Return the number of values compared; raise FledgeError if any bit differs."""
    values = 0
    for number, (batch, expected) in enumerate(zip(ours[0], theirs[0], strict=True)):
        for key in expected.keys(include_nested=True, leaves_only=True):
            if not torch.equal(batch[key], expected[key]):
                raise FledgeError(
                    f"Batch {number} of the {kind} collector differs from its baseline in {key}. Nothing was timed."
                )
            values += expected[key].numel()
    if not torch.equal(ours[1], theirs[1]):
        raise FledgeError(f"With the {kind} collector the policy learned other weights. Nothing was timed.")
    return values
