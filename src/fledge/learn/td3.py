"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fledge.agents.squashed import SquashedActor, TwinCritic, from_env, to_env
from fledge.core.errors import ConfigError
from fledge.learn.off_policy import Batch, OffPolicy, Replay, ReplayConfig, check_numbers, observations
from fledge.learn.sac import OBSERVED


@dataclass
class TD3Config:
    lr: float = 5e-4
    """Adam's learning rate of actor and critics."""
    lr_final_share: float = 0.2
    """Share of it left at the end (linear)."""
    gamma: float = 0.99
    """Discount per decision."""
    tau: float = 0.005
    """Share by which target networks follow at each step of the actor."""
    noise_range: list[float] = field(default_factory=lambda: [0.05, 0.4])
    """Deviations of the exploration noise: the first drone flies with the least, the last with the most."""
    target_noise: float = 0.2
    """Deviation of the noise on target actions."""
    target_noise_clip: float = 0.5
    """Largest such noise."""
    delay: int = 2
    """Critic steps per actor step."""
    critic_hidden: list[int] = field(default_factory=lambda: [256, 128])
    """Widths of the critics' layers."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""

    def validate(self) -> None:
        check_numbers(self, "td3", ["noise_range", "target_noise", "target_noise_clip"])
        if len(self.noise_range) != 2:
            raise ConfigError(f"td3.noise_range is {self.noise_range}, but must be two deviations: least and most.")
        if self.delay < 1:
            raise ConfigError(f"td3.delay is {self.delay}, but must be at least 1.")


class TD3(OffPolicy):
    """Learner of a `SquashedActor`, whose spread it leaves alone."""

    names = ("critic_loss", "actor_loss", "q")

    def __init__(self, policy: SquashedActor, cfg: TD3Config, replay: ReplayConfig, buffer: Replay, ranks: int = 1):
        super().__init__(policy, replay, buffer, cfg.gamma, ranks)
        self.cfg, self.actor = cfg, policy
        self.critic = TwinCritic(policy.inputs, policy.actions, cfg.critic_hidden).to(self.device)
        self.target_critic, self.target_actor = copy.deepcopy(self.critic), copy.deepcopy(policy)
        self.train_module("actor", policy, cfg.lr, cfg.lr_final_share, self.target_actor)
        self.train_module("critic", self.critic, cfg.lr, cfg.lr_final_share, self.target_critic)
        self.actor_loss = torch.zeros((), device=self.device)

    def explore(self, obs: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            mean = self.actor.mean(self.actor.encode(obs))
        low, high = self.cfg.noise_range
        spread = torch.linspace(low, high, len(mean), device=mean.device)[:, None]
        return to_env((mean + spread * torch.randn_like(mean)).clamp(-1.0, 1.0))

    def step(self, batch: Batch) -> Tensor:
        cfg = self.cfg
        x = self.actor.encode(observations(batch, OBSERVED))
        with torch.no_grad():
            following = self.actor.encode(observations(batch, OBSERVED, "next_"))
            best = self.target_actor.mean(following)
            noise = (cfg.target_noise * torch.randn_like(best)).clamp(-cfg.target_noise_clip, cfg.target_noise_clip)
            next_value = self.target_critic(following, (best + noise).clamp(-1.0, 1.0)).amin(0)
            wanted = batch["reward"] + self.discount(batch) * next_value
        q = self.critic(x, from_env(batch["action"]))
        critic_loss = (q - wanted).square().mean(1).sum()
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
        return {**super().state_dict(), "actor_loss": self.actor_loss.clone()}  # what steps without one report

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.actor_loss = torch.full_like(self.actor_loss, float(state.get("actor_loss", 0.0)))
