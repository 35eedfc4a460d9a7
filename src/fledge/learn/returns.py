"""Generalised advantage estimation (Schulman et al. 2016), with truncation bootstrapping and off-policy correction."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return advantages and value targets, both [T, N], by generalised advantage estimation.

    Args:
        value: [T, N] value of the observation before the step.
        next_value: [T, N] value after the step: of the final observation where an episode was truncated, of the next
            observation elsewhere. Ignored where terminated.
        terminated: [T, N] bool, whether the task ended the episode, so that no reward follows.
        truncated: [T, N] bool, whether the time limit ended the episode: `next_value` counts, but the next row is another
            episode.
        gae_lambda: 0 relies on the predicted values, 1 on the rewards.
        weight: [T, N] in 0 to 1: probability of each action under the present policy, divided by that under the policy
            that took it, at most 1. A step's advantage is multiplied by its weight where it enters the advantages of
            earlier steps and the step's value target, as in V-trace (Espeholt et al. 2018). None if the present policy
            collected the rollout.
    """
    alive = (~terminated).to(reward.dtype)
    carry = (~(terminated | truncated)).to(reward.dtype) * (gamma * gae_lambda)
    advantage = reward + gamma * next_value * alive - value
    if weight is not None:
        carry[:-1] *= weight[1:]
    for t in range(reward.shape[0] - 2, -1, -1):
        advantage[t].addcmul_(carry[t], advantage[t + 1])
    return advantage, value + (advantage if weight is None else weight * advantage)
