"""Deep Q-learning (Mnih et al. 2015) with double Q-targets (van Hasselt et al. 2016) on discrete headings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fledge.core.errors import ConfigError
from fledge.learn.off_policy import Batch, OffPolicy, Replay, ReplayConfig, check_numbers, observations
from fledge.tasks.navigation.grid_q import GridQ

OBSERVED = ("grid_map", "state")


@dataclass
class DQNConfig:
    lr: float = 5e-4
    """Adam's learning rate."""
    lr_final_share: float = 0.2
    """Share of it left at the end (linear)."""
    gamma: float = 0.99
    """Discount per decision."""
    tau: float = 0.005
    """Share by which the target network follows at each step."""
    epsilon: float = 0.4
    """Largest share of random headings: drone i of n flies with epsilon^(1 + 7 i / (n - 1))."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""

    def validate(self) -> None:
        check_numbers(self, "dqn")
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"dqn.epsilon is {self.epsilon}, but must lie between 0 and 1.")


class DQN(OffPolicy):
    """Learner of a `GridQ`."""

    names = ("loss", "q")

    def __init__(self, policy: GridQ, cfg: DQNConfig, replay: ReplayConfig, buffer: Replay, ranks: int = 1):
        super().__init__(policy, replay, buffer, cfg.gamma, ranks)
        self.cfg, self.online = cfg, policy
        self.target = copy.deepcopy(policy)
        self.train_module("online", policy, cfg.lr, cfg.lr_final_share, self.target)

    def explore(self, obs: Mapping[str, Tensor]) -> Tensor:
        best = self.online.act(obs)
        count = len(best)
        exponent = 1.0 + 7.0 * torch.arange(count, device=best.device) / max(count - 1, 1)
        stray = torch.rand(count, device=best.device) < self.cfg.epsilon**exponent
        return torch.where(stray, torch.randint_like(best, self.online.headings), best)

    def step(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            following = observations(batch, OBSERVED, "next_")
            choice = self.online(following).argmax(-1, keepdim=True)
            next_value = self.target(following).gather(-1, choice).squeeze(-1)
            wanted = batch["reward"] + self.discount(batch) * next_value
        q = self.online(observations(batch, OBSERVED)).gather(-1, batch["action"][:, None]).squeeze(-1)
        error = F.smooth_l1_loss(q, wanted, reduction="none")
        loss = (error * batch["weight"]).mean() if "weight" in batch else error.mean()
        self.descend("online", loss, self.cfg.max_grad_norm)
        if "weight" in batch:
            self.buffer.update_priorities(batch["index"], (q.detach() - wanted).abs() + 1e-3)
        self.follow("online", self.cfg.tau)
        return torch.stack([loss.detach(), q.detach().mean()])
