"""Soft actor-critic (Haarnoja et al. 2018) with twin critics and a learned temperature."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fledge.agents.squashed import SquashedActor, TwinCritic, from_env
from fledge.core.errors import ConfigError
from fledge.learn.off_policy import Batch, OffPolicy, Replay, ReplayConfig, check_numbers, observations

OBSERVED = ("state", "lidar", "dynamic_obstacle")


@dataclass
class SACConfig:
    lr: float = 5e-4
    """Adam's learning rate of actor and critics."""
    lr_final_share: float = 0.2
    """Share of it left at the end (linear)."""
    gamma: float = 0.99
    """Discount per decision."""
    tau: float = 0.005
    """Share by which target critics follow at each step."""
    target_entropy: float = -3.0
    """Entropy of the actions (in [-1, 1], all axes together) that the temperature aims at."""
    alpha: float = 0.02
    """Temperature at the start."""
    alpha_lr: float = 5e-4
    """Adam's learning rate of the temperature; 0 keeps it."""
    critic_hidden: list[int] = field(default_factory=lambda: [256, 128])
    """Widths of the critics' layers."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""

    def validate(self) -> None:
        check_numbers(self, "sac", ["alpha_lr"])
        if not self.alpha > 0:
            raise ConfigError(f"sac.alpha is {self.alpha}, but must be greater than 0; alpha_lr=0 keeps it.")


class Temperature(nn.Module):
    """How much a unit of entropy is worth in rewards, as its logarithm."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(alpha)]))


class SAC(OffPolicy):
    """Learner of a `SquashedActor`."""

    names = ("critic_loss", "actor_loss", "q", "entropy", "alpha")

    def __init__(self, policy: SquashedActor, cfg: SACConfig, replay: ReplayConfig, buffer: Replay, ranks: int = 1):
        super().__init__(policy, replay, buffer, cfg.gamma, ranks)
        self.cfg, self.actor = cfg, policy
        self.critic = TwinCritic(policy.inputs, policy.actions, cfg.critic_hidden).to(self.device)
        self.target = copy.deepcopy(self.critic)
        self.temperature = Temperature(cfg.alpha).to(self.device)
        self.train_module("actor", policy, cfg.lr, cfg.lr_final_share)
        self.train_module("critic", self.critic, cfg.lr, cfg.lr_final_share, self.target)
        self.train_module("temperature", self.temperature, cfg.alpha_lr)

    def explore(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.actor.act(obs, deterministic=False)

    def step(self, batch: Batch) -> Tensor:
        cfg, alpha = self.cfg, self.temperature.log_alpha.detach().exp()
        x = self.actor.encode(observations(batch, OBSERVED))
        action = from_env(batch["action"])
        with torch.no_grad():
            following = self.actor.encode(observations(batch, OBSERVED, "next_"))
            next_action, next_density = self.actor.sample(following, self._noise(following))
            next_value = self.target(following, next_action).amin(0) - alpha * next_density
            wanted = batch["reward"] + self.discount(batch) * next_value
        q = self.critic(x, action)
        critic_loss = (q - wanted).square().mean(1).sum()
        self.descend("critic", critic_loss, cfg.max_grad_norm)

        own, density = self.actor.sample(x, self._noise(x))
        self.critic.requires_grad_(False)
        actor_loss = (alpha * density - self.critic(x, own).amin(0)).mean()
        self.descend("actor", actor_loss, cfg.max_grad_norm)
        self.critic.requires_grad_(True)

        entropy = -density.detach().mean()
        if cfg.alpha_lr > 0:
            surplus = entropy - cfg.target_entropy
            self.descend("temperature", self.temperature.log_alpha.sum() * surplus, float("inf"))
        self.follow("critic", cfg.tau)
        return torch.stack([critic_loss.detach(), actor_loss.detach(), q.detach().mean(), entropy, alpha.squeeze()])

    def _noise(self, x: Tensor) -> Tensor:
        return torch.randn(len(x), self.actor.actions, device=x.device)
