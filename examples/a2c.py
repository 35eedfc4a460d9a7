"""A custom algorithm: advantage actor-critic (A2C, Mnih et al. 2016) in one file.

    fledge train gym:CartPole-v1 algo=examples/a2c.py:A2C
    fledge train navigation algo=examples/a2c.py:A2C algo_config.lr=1e-3

It trains on any task and any number of ranks, and is saved, evaluated and exported like the built-in algorithms. A run is
resumed bit for bit if you name the algorithm again: `--resume RUN algo=examples/a2c.py:A2C`. CartPole's return rises above
400 within a minute. `--help-config` lists its settings, `algo_config.*`. The contract is in `fledge/learn/base.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch.nn import functional as F

from fledge.agents.actor_critic import ActorCritic
from fledge.core.settings import check_settings, setting
from fledge.learn.base import Learner, finite_report
from fledge.learn.flat import FlatParameters
from fledge.learn.returns import gae


@dataclass
class A2CConfig:
    rollout_steps: int = setting(16, at_least=1)
    """Decisions per env and iteration."""
    lr: float = setting(2e-3, above=0)
    """Learning rate of RMSprop at the start; decays linearly to 0."""
    gamma: float = setting(0.99, at_least=0, at_most=1)
    """Discount factor per decision."""
    gae_lambda: float = setting(0.95, at_least=0, at_most=1)
    """Lambda of generalised advantage estimation: 0 relies on the critic, 1 on the returns."""
    value_coef: float = setting(0.5, at_least=0)
    """Weight of the value loss."""
    entropy_coef: float = setting(0.01, at_least=0)
    """Weight of the entropy bonus."""
    max_grad_norm: float = setting(0.5, above=0)
    """Largest norm of the gradient."""


class A2C(Learner):
    """One gradient step on each rollout."""

    config = A2CConfig
    policy_form = "ppo"  # trains an ActorCritic, like PPO

    def __init__(self, policy: ActorCritic, cfg: A2CConfig, ranks: int = 1) -> None:
        check_settings(cfg, "algo_config.")
        self.policy, self.cfg, self.ranks = policy, cfg, ranks
        self.flat = FlatParameters(policy)
        self.optimizers = {"policy": torch.optim.RMSprop([self.flat.values], lr=cfg.lr, alpha=0.99, eps=1e-5)}

    def schedule(self, progress: float) -> None:
        self.optimizers["policy"].param_groups[0]["lr"] = self.cfg.lr * (1.0 - progress)

    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        cfg, policy = self.cfg, self.policy
        self.schedule(progress)
        steps = (rollout[name] for name in ("reward", "value", "next_value", "terminated", "truncated"))
        advantage, target = gae(*steps, cfg.gamma, cfg.gae_lambda)
        moments = torch.stack([target.mean(), target.square().mean(), advantage.mean(), advantage.square().mean()])
        mean, square, adv_mean, adv_square = self.average(moments)
        policy.value_norm.update_preserving(mean, square, policy.critic)  # the critic learns normalised returns
        advantage = (advantage - adv_mean) / ((adv_square - adv_mean**2).clamp(min=0).sqrt() + 1e-8)

        inputs = rollout["input"].flatten(0, 1)
        params, value = policy(inputs)
        log_prob = policy.head.log_prob(params, rollout["raw_action"].flatten(0, 1))
        policy_loss = -(log_prob * advantage.flatten()).mean()
        value_loss = F.mse_loss(value, policy.value_norm.normalize(target.flatten()))
        entropy = policy.head.entropy(params).mean()
        loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy

        self.flat.zero_grad()
        loss.backward()
        self.flat.average_grads(self.ranks)
        norm = self.flat.clip_grad_norm(cfg.max_grad_norm)
        self.optimizers["policy"].step()
        policy.learn_inputs(inputs, self.average)
        parts = torch.stack([policy_loss, value_loss, entropy, norm]).detach()
        return finite_report(("policy_loss", "value_loss", "entropy", "grad_norm"), parts)

    def average(self, values: torch.Tensor) -> torch.Tensor:
        """Average tensors over ranks, in place."""
        if self.ranks > 1:
            torch.distributed.all_reduce(values)
            values.div_(self.ranks)
        return values
