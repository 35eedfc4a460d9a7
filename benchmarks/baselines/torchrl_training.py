"""NavRL's training loop on TorchRL: TorchRL's collector over `TorchRLEnv`, a Conv2d network, TensorDict minibatches.

Written as NavRL and its add-ons do it, with the same env, network and hyper-parameters as Fledge's loop, so that the two
differ in design only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn import functional as F

from fledge.core.extras import extra
from fledge.envs.base import TensorEnv
from fledge.learn.ppo import PPOConfig
from fledge.tasks.navigation.networks.navrl import NavRLNetwork


class _Actor(nn.Module):
    """Sample an action, its log-probability and the value, as NavRL's ProbabilisticActor does."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, lidar: Tensor, state: Tensor, dynamic_obstacle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        alpha, beta, value = self.policy({"lidar": lidar, "state": state, "dynamic_obstacle": dynamic_obstacle})
        distribution = Beta(alpha, beta)
        action = distribution.sample().clamp(1e-6, 1 - 1e-6)
        return action, distribution.log_prob(action).sum(-1, keepdim=True), value.unsqueeze(-1)


class TorchRLTraining:
    """Collect with TorchRL, learn with plain modules and TensorDict minibatches."""

    def __init__(self, env: TensorEnv, policy: Any, cfg: PPOConfig) -> None:
        with extra("torchrl"):
            from torchrl.collectors import Collector

        from fledge.envs.adapters.torchrl import TorchRLEnv

        self.policy, self.cfg = policy, cfg
        keys = ["lidar", "state", "dynamic_obstacle"]
        actor = TensorDictModule(_Actor(policy), in_keys=keys, out_keys=["action", "log_prob", "state_value"])
        self.collector = Collector(
            TorchRLEnv(env),
            actor,
            frames_per_batch=env.num_envs * cfg.rollout_steps,
            total_frames=-1,
            return_same_td=True,
            auto_register_policy_transforms=False,
        )
        net = policy.network
        parts: list[list[nn.Parameter]] = [
            [*net.lidar.parameters(), *net.obstacles.parameters(), *net.trunk.parameters()],
            [*net.alpha.parameters(), *net.beta.parameters()],
            list(net.critic.parameters()),
        ]
        self.parts = parts
        self.optimizers = [torch.optim.Adam(part, lr=cfg.lr) for part in parts]

    def iterations(self) -> Iterator[dict[str, float]]:
        """Yield the seconds of collecting and learning of each iteration, endlessly."""
        batches = iter(self.collector)
        while True:
            begun = time.perf_counter()
            data = next(batches)
            collected = time.perf_counter()
            loss = self.update(data)
            yield {"collect": collected - begun, "learn": time.perf_counter() - collected, "loss": loss}

    def update(self, data: TensorDict) -> float:
        """Make NavRL's update on a [N, T] batch and return the last loss."""
        cfg, norm = self.cfg, self.policy.value_norm
        with torch.no_grad():
            next_value = self._values(data["next"])
        reward, terminated = data["next", "reward"], data["next", "terminated"]
        advantage, returns = self._gae(reward, terminated, data["next", "done"], data["state_value"], next_value)
        data.set("old", norm.normalize(data["state_value"]))  # the network's own output
        norm.update(returns.mean(), returns.square().mean())
        advantage = (advantage - advantage.mean()) / advantage.std()
        data.set("adv", advantage)
        data.set("ret", norm.normalize(returns))
        flat = data.reshape(-1)
        loss = torch.zeros(())
        for _ in range(cfg.epochs):
            for index in torch.randperm(len(flat)).split(cfg.minibatch):
                loss = self._step(flat[index])
        return float(loss)

    def _values(self, obs: Any) -> Tensor:
        shape = obs["state"].shape[:-1]
        flat = {k: obs[k].reshape(-1, *obs[k].shape[len(shape) :]) for k in ("lidar", "state", "dynamic_obstacle")}
        return self.policy(flat)[2].reshape(*shape, 1)

    def _gae(
        self, reward: Tensor, terminated: Tensor, done: Tensor, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        cfg = self.cfg
        advantage = torch.zeros_like(reward)
        running = torch.zeros_like(reward[:, 0])
        for t in reversed(range(reward.shape[1])):
            delta = reward[:, t] + cfg.gamma * next_value[:, t] * ~terminated[:, t] - value[:, t]
            running = delta + cfg.gamma * cfg.gae_lambda * running * ~done[:, t]
            advantage[:, t] = running
        return advantage, advantage + value

    def _step(self, batch: TensorDict) -> Tensor:
        cfg = self.cfg
        alpha, beta, value = self.policy.network(batch)
        distribution = Beta(alpha, beta)
        log_prob = distribution.log_prob(batch["action"]).sum(-1, keepdim=True)
        ratio = torch.exp(log_prob - batch["log_prob"])
        adv = batch["adv"]
        actor_loss = -torch.min(ratio * adv, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv).mean() * cfg.actor_coef
        old, value = batch["old"], value.unsqueeze(-1)
        clipped = old + (value - old).clamp(-cfg.value_clip, cfg.value_clip)
        plain = F.huber_loss(value, batch["ret"], delta=cfg.huber_delta)
        critic_loss = torch.max(plain, F.huber_loss(clipped, batch["ret"], delta=cfg.huber_delta))
        loss = actor_loss + critic_loss - cfg.entropy_coef * distribution.entropy().sum(-1).mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for part in self.parts[1:]:  # the heads
            nn.utils.clip_grad_norm_(part, cfg.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()

    def close(self) -> None:
        self.collector.shutdown()


def network_flops() -> int:
    """Return the FLOPs of one forward pass of NavRL's network for one sample, counted on its layers."""
    net, total = NavRLNetwork(), 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear):
            total += 2 * module.in_features * module.out_features
        elif isinstance(module, nn.Conv2d):
            total += 2 * output.numel() * module.weight[0].numel()

    for module in net.modules():
        module.register_forward_hook(count)
    obs = {"lidar": torch.zeros(1, 1, 36, 4), "state": torch.zeros(1, 8), "dynamic_obstacle": torch.zeros(1, 1, 5, 10)}
    net(obs)
    return total
