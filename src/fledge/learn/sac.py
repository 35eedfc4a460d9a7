"""Soft actor-critic (Haarnoja et al. 2018) with twin critics and a learned temperature."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fledge.agents.base import Obs
from fledge.agents.squashed import SquashedActor, TwinCritic
from fledge.core.settings import check_settings, setting
from fledge.learn.off_policy import Batch, OffPolicy, OffPolicyConfig, Replay, ReplayConfig, next_observations


@dataclass
class SACConfig(OffPolicyConfig):
    target_entropy: float | None = None
    """Target entropy of the action, summed over its axes, each in [-1, 1]; null: minus the number of axes."""
    alpha: float = setting(0.02, above=0)
    """Temperature (weight of the entropy) at the start of training."""
    alpha_lr: float = setting(5e-4, at_least=0)
    """Adam's learning rate for the temperature; 0 keeps it fixed."""
    critic_hidden: list[int] = setting([256, 128], at_least=1, items=(1, None), resume="weights")
    """Widths of the critics' hidden layers."""


class Temperature(nn.Module):
    """Learned weight of the entropy relative to rewards (alpha), stored as its logarithm."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(alpha)]))


class SAC(OffPolicy):
    """SAC learner, which trains a `SquashedActor`."""

    config, policy_form = SACConfig, "sac"
    names = ("critic_loss", "actor_loss", "q", "entropy", "alpha")

    def __init__(self, policy: SquashedActor, cfg: SACConfig, replay: ReplayConfig, buffer: Replay, ranks: int = 1):
        check_settings(cfg, "sac.")
        super().__init__(policy, replay, buffer, cfg.gamma, ranks)
        self.cfg, self.actor = cfg, policy
        self.target_entropy = -float(policy.actions) if cfg.target_entropy is None else cfg.target_entropy
        self.critic = TwinCritic(policy.inputs, policy.actions, cfg.critic_hidden).to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.temperature = Temperature(cfg.alpha).to(self.device)
        self.train_module("actor", policy, cfg.lr, cfg.lr_final_share)
        self.train_module("critic", self.critic, cfg.lr, cfg.lr_final_share, self.target)
        self.train_module("temperature", self.temperature, cfg.alpha_lr)

    def explore(self, obs: Obs) -> Tensor:
        return self.actor.act(obs, deterministic=False)

    def step(self, batch: Batch) -> Tensor:
        cfg, alpha = self.cfg, self.temperature.log_alpha.detach().exp()
        x = self.actor.encode(batch)
        action = self.actor.scale.from_env(batch["action"])
        with torch.no_grad():
            next_x = self.actor.encode(next_observations(batch, self.actor.observes))
            next_action, next_log_prob = self.actor.sample(next_x)
            next_value = self.target(next_x, next_action).amin(0) - alpha * next_log_prob
            target = batch["reward"] + self.discount(batch) * next_value
        q = self.critic(x, action)
        critic_loss = (q - target).square().mean(1).sum()
        self.descend("critic", critic_loss, cfg.max_grad_norm)

        new_action, log_prob = self.actor.sample(x)
        self.critic.requires_grad_(False)
        actor_loss = (alpha * log_prob - self.critic(x, new_action).amin(0)).mean()
        self.descend("actor", actor_loss, cfg.max_grad_norm)
        self.critic.requires_grad_(True)

        entropy = -log_prob.detach().mean()
        if cfg.alpha_lr > 0:
            surplus = entropy - self.target_entropy
            self.descend("temperature", self.temperature.log_alpha.sum() * surplus, float("inf"))
        self.follow("critic", cfg.tau)
        return torch.stack([critic_loss.detach(), actor_loss.detach(), q.detach().mean(), entropy, alpha.squeeze()])
