"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import Obs
from fledge.agents.squashed import SquashedActor, TwinCritic
from fledge.core.settings import check_settings, setting
from fledge.learn.off_policy import Batch, OffPolicy, OffPolicyConfig, Replay, ReplayConfig, next_observations


@dataclass
class TD3Config(OffPolicyConfig):
    noise_range: list[float] = setting([0.05, 0.4], at_least=0, items=(2, 2))
    """Standard deviation of the exploration noise in the first and in the last env; linear in between."""
    target_noise: float = setting(0.2, at_least=0)
    """Standard deviation of the noise on target actions."""
    target_noise_clip: float = setting(0.5, at_least=0)
    """Largest absolute value of the noise on target actions."""
    delay: int = setting(2, at_least=1)
    """Gradient steps of the critics per gradient step of the actor."""
    critic_hidden: list[int] = setting([256, 128], at_least=1, items=(1, None), resume="weights")
    """Widths of the critics' hidden layers."""


class TD3(OffPolicy):
    """TD3 learner, which trains a `SquashedActor` except for its standard deviation."""

    config, policy_form = TD3Config, "td3"
    names = ("critic_loss", "actor_loss", "q")

    def __init__(self, policy: SquashedActor, cfg: TD3Config, replay: ReplayConfig, buffer: Replay, ranks: int = 1):
        check_settings(cfg, "td3.")
        super().__init__(policy, replay, buffer, cfg.gamma, ranks)
        self.cfg, self.actor = cfg, policy
        self.critic = TwinCritic(policy.inputs, policy.actions, cfg.critic_hidden).to(self.device)
        self.target_critic, self.target_actor = copy.deepcopy(self.critic), copy.deepcopy(policy)
        self.train_module("actor", policy, cfg.lr, cfg.lr_final_share, self.target_actor)
        self.train_module("critic", self.critic, cfg.lr, cfg.lr_final_share, self.target_critic)
        self.actor_loss = torch.zeros((), device=self.device)

    def explore(self, obs: Obs) -> Tensor:
        with torch.no_grad():
            mean = self.actor.mean(self.actor.encode(obs))
        low, high = self.cfg.noise_range
        spread = torch.linspace(low, high, len(mean), device=mean.device)[:, None]
        return self.actor.scale.to_env((mean + spread * torch.randn_like(mean)).clamp(-1.0, 1.0))

    def step(self, batch: Batch) -> Tensor:
        cfg = self.cfg
        x = self.actor.encode(batch)
        with torch.no_grad():
            next_x = self.actor.encode(next_observations(batch, self.actor.observes))
            best = self.target_actor.mean(next_x)
            noise = (cfg.target_noise * torch.randn_like(best)).clamp(-cfg.target_noise_clip, cfg.target_noise_clip)
            next_value = self.target_critic(next_x, (best + noise).clamp(-1.0, 1.0)).amin(0)
            target = batch["reward"] + self.discount(batch) * next_value
        q = self.critic(x, self.actor.scale.from_env(batch["action"]))
        critic_loss = (q - target).square().mean(1).sum()
        self.descend("critic", critic_loss, cfg.max_grad_norm)
        if self.steps_done % cfg.delay == cfg.delay - 1:
            self.critic.requires_grad_(False)
            loss = -self.critic(x, self.actor.mean(x))[0].mean()
            self.descend("actor", loss, cfg.max_grad_norm)
            self.critic.requires_grad_(True)
            self.follow("critic", cfg.tau)
            self.follow("actor", cfg.tau)
            self.actor_loss = loss.detach()
        return torch.stack([critic_loss.detach(), self.actor_loss, q.detach().mean()])

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "actor_loss": self.actor_loss.clone(),
        }  # reported by steps that do not train the actor

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.actor_loss = torch.full_like(self.actor_loss, float(state.get("actor_loss", 0.0)))
