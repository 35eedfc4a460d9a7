"""The gate: decide whether a candidate replaces the accepted policy, from episodes that both fly.

Both policies fly the same held-out episodes, so the difference of each pair has a much narrower interval than two rates. A
candidate is accepted if

    old worlds   the lower bound of (candidate - run's policy) is at least -tolerance
    new worlds   the mean of (candidate - accepted policy) is above 0

The bound is one-sided, 95 %: a policy that truly loses more than the tolerance is accepted at most once in twenty times. Old
worlds compare with the run's own policy, so that many small losses cannot add up. If new worlds cannot be flown, their gain is
an estimate from held-out rollouts (`estimated_gain`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.core.machine import default_threads
from fledge.evaluation.episodes import VALIDATION_SEED, evaluate
from fledge.learn.ppo import find_raw_action
from fledge.learn.returns import gae
from fledge.tasks.base import Task

Z = 1.645  # one-sided 95 %


@dataclass
class Change:
    """Mean change of a score, with its one-sided 95 % bounds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: np.ndarray) -> Change:
        """Return the change whose samples are `differences`, [n]."""
        mean = float(differences.mean())
        half = Z * float(differences.std(ddof=1)) / math.sqrt(len(differences))
        return cls(mean, mean - half, mean + half)


def fly(policy: ActorCritic, task: Task, cfg: Any, episodes: int, device: str = "cpu") -> np.ndarray:
    """Return the score of each held-out episode, [episodes]: 1 or 0 for success, or the return."""
    was_training = policy.training
    with torch.random.fork_rng(devices=[]):
        threads = default_threads()
        result = evaluate(policy.eval(), task, cfg, episodes, VALIDATION_SEED, device=device, num_threads=threads)
    policy.train(was_training)
    head = task.primary_metric
    return result.returns.copy() if head == "return" else result.ended(head).astype(float)


@torch.no_grad()
def estimated_gain(
    candidate: ActorCritic, accepted: ActorCritic, rollouts: list[TensorDictBase], gamma: float, gae_lambda: float
) -> Change:
    """Estimate the gain of a candidate per decision, in reward, from rollouts that neither learned from.

    The mean advantage of the recorded actions under the accepted policy, weighted by how much more often the candidate takes
    them. First order: it is trusted near the accepted policy only, where the bond keeps the candidate.
    """
    gains = list[Tensor]()
    for rollout in rollouts:
        raw_action = find_raw_action(rollout)
        params, value = _outputs(accepted, rollout)
        log_prob = accepted.head.log_prob(params, raw_action)
        weight = (log_prob - rollout["log_prob"]).exp().clamp(max=1.0)
        value = accepted.value_norm.denormalize(value)
        ends = (rollout["reward"], value, rollout["next_value"], rollout["terminated"], rollout["truncated"])
        advantage, _ = gae(*ends, gamma, gae_lambda, weight)
        ratio = (candidate.head.log_prob(_outputs(candidate, rollout)[0], raw_action) - log_prob).exp()
        gains.append((weight * (ratio.clamp(0.5, 2.0) - 1.0) * (advantage - advantage.mean())).mean(0))
    return Change.of(torch.cat(gains).cpu().numpy().astype(float))


def _outputs(policy: ActorCritic, rollout: TensorDictBase) -> tuple[Any, Tensor]:
    """Return action parameters and normalised values [T, N] of a rollout."""
    x = rollout["input"]
    if policy.hidden_size:
        begins = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        begins[1:] = (rollout["terminated"] | rollout["truncated"])[:-1]
        params, value, _ = policy.unroll(x, rollout["hidden"][0], begins)
    else:
        params, value = policy(x.flatten(0, 1))
    return tuple(p.unflatten(0, x.shape[:2]) for p in params), value.unflatten(0, x.shape[:2])


def verdict(old: Change, new: Change, tolerance: float) -> str:
    """Return "" if a candidate is accepted, else why it is refused."""
    if old.low < -tolerance:
        return f"old worlds: may lose {-old.low:.3f}, more than {tolerance:g}"
    return "" if new.mean > 0 else "new worlds: no gain"
