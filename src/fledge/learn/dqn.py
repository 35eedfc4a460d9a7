"""Deep Q-learning (Mnih et al. 2015) with double Q-targets (van Hasselt et al. 2016) on discrete actions."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fledge.agents.base import Obs
from fledge.agents.distributions import sample_index
from fledge.agents.q_network import QNetwork
from fledge.core.settings import check_settings, setting
from fledge.learn.off_policy import Batch, OffPolicy, OffPolicyConfig, Replay, ReplayConfig, next_observations


@dataclass
class DQNConfig(OffPolicyConfig):
    epsilon: float = setting(0.4, at_least=0, at_most=1)
    """Share of random actions in the first env; in env i of n, the share is epsilon ** (1 + 7 i / (n - 1))."""
    huber_delta: float = setting(1.0, above=0)
    """Error above which the loss is linear instead of quadratic (Huber loss). If it is much smaller than the returns, rare
    terminal transitions count too little."""


class DQN(OffPolicy):
    """DQN learner, which trains a `QNetwork`."""

    config, policy_form = DQNConfig, "dqn"
    names = ("q_loss", "q")
    prioritizes = True

    def __init__(self, policy: QNetwork, cfg: DQNConfig, replay: ReplayConfig, buffer: Replay, ranks: int = 1):
        check_settings(cfg, "dqn.")
        super().__init__(policy, replay, buffer, cfg.gamma, ranks)
        self.cfg, self.online = cfg, policy
        self.target = copy.deepcopy(policy)
        self.train_module("online", policy, cfg.lr, cfg.lr_final_share, self.target)

    def explore(self, obs: Obs) -> Tensor:
        best = self.online.act(obs)
        count = len(best)
        exponent = 1.0 + 7.0 * torch.arange(count, device=best.device) / max(count - 1, 1)
        stray = torch.rand(count, device=best.device) < self.cfg.epsilon**exponent
        allowed = self.online.allowed(obs)
        if allowed is None:
            other = torch.randint_like(best, self.online.num_actions)
        else:
            free = allowed | ~allowed.any(-1, keepdim=True)  # a mask that forbids every action is ignored
            other = sample_index(free.float())
        return torch.where(stray, other, best)

    def step(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            next_obs = next_observations(batch, self.online.observes)
            choice = self.online(next_obs).argmax(-1, keepdim=True)
            next_value = self.target(next_obs).gather(-1, choice).squeeze(-1)
            target = batch["reward"] + self.discount(batch) * next_value
        q = self.online(batch).gather(-1, batch["action"][:, None]).squeeze(-1)
        error = F.huber_loss(q, target, reduction="none", delta=self.cfg.huber_delta)
        loss = (error * batch["weight"]).mean() if "weight" in batch else error.mean()
        self.descend("online", loss, self.cfg.max_grad_norm)
        if "weight" in batch:
            self.buffer.update_priorities(batch["index"], (q.detach() - target).abs() + 1e-3)
        self.follow("online", self.cfg.tau)
        return torch.stack([loss.detach(), q.detach().mean()])
