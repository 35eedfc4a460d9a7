"""An algorithm of your own: trust region policy optimisation (TRPO, Schulman et al. 2015) in one file.

    fledge train gym:CartPole-v1 algo=examples/trpo.py:TRPO
    fledge train navigation algo=examples/trpo.py:TRPO algo_config.max_kl=0.02

Each update takes the natural gradient step (conjugate gradients on the Fisher matrix) that changes the policy by at most
`max_kl`, halved until the surrogate improves. The critic is fitted by Adam afterwards. One rank only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import functional as F

from fledge.agents.actor_critic import ActorCritic
from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings, setting
from fledge.learn.base import Learner, finite_report
from fledge.learn.returns import gae


@dataclass
class TRPOConfig:
    rollout_steps: int = setting(64, at_least=1)
    """Decisions per env and iteration."""
    max_kl: float = setting(0.01, above=0)
    """Largest KL divergence between the policies before and after an update."""
    damping: float = setting(0.1, at_least=0)
    """Added to the diagonal of the Fisher matrix."""
    cg_steps: int = setting(10, at_least=1)
    """Steps of conjugate gradients."""
    backtracks: int = setting(10, at_least=1)
    """Times that a step is halved before it is given up."""
    critic_lr: float = setting(1e-3, above=0)
    """Adam's learning rate of the critic."""
    critic_steps: int = setting(10, at_least=1)
    """Gradient steps of the critic per iteration."""
    gamma: float = setting(0.99, at_least=0, at_most=1)
    """Discount per decision."""
    gae_lambda: float = setting(0.95, at_least=0, at_most=1)
    """Decay of the advantage estimate: 0 relies on the critic, 1 on the returns."""


class TRPO(Learner):
    """One natural gradient step on each rollout."""

    config = TRPOConfig

    def __init__(self, policy: ActorCritic, cfg: TRPOConfig, ranks: int = 1) -> None:
        check_settings(cfg, "algo_config.")
        if ranks > 1:
            raise ConfigError(f"TRPO learns on one rank, but there are {ranks}: set ranks=1.")
        self.policy, self.cfg = policy, cfg
        params, _ = policy(torch.zeros(1, policy.inputs, device=policy.device))
        grads = torch.autograd.grad(sum(p.sum() for p in params), list(policy.parameters()), allow_unused=True)
        self.actor = [p for p, grad in zip(policy.parameters(), grads, strict=True) if grad is not None]
        critic = [p for p, grad in zip(policy.parameters(), grads, strict=True) if grad is None]
        self.optimizers = {"critic": torch.optim.Adam(critic, lr=cfg.critic_lr)}  # what the action does not depend on

    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        cfg, policy = self.cfg, self.policy
        steps = (rollout[name] for name in ("reward", "value", "next_value", "terminated", "truncated"))
        advantage, target = gae(*steps, cfg.gamma, cfg.gae_lambda)
        policy.value_norm.update_preserving(target.mean(), target.square().mean(), policy.critic)
        advantage = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
        inputs, raw_action = rollout["input"].flatten(0, 1), rollout["raw_action"].flatten(0, 1)

        def log_prob() -> Tensor:
            return policy.head.log_prob(policy(inputs)[0], raw_action)

        gain, kl = self._improve(log_prob, advantage)
        goal = policy.value_norm.normalize(target.flatten())
        for _ in range(cfg.critic_steps):
            self.optimizers["critic"].zero_grad()
            value_loss = F.mse_loss(policy(inputs)[1], goal)
            value_loss.backward()
            self.optimizers["critic"].step()
        policy.learn_inputs(inputs, lambda values: values)
        return finite_report(("surrogate_gain", "kl", "value_loss"), torch.stack([gain, kl, value_loss.detach()]))

    def _improve(self, log_prob: Callable[[], Tensor], advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Change the actor; return the gain of the surrogate and the KL divergence, both 0 if no step improves it."""
        cfg, start = self.cfg, torch.nn.utils.parameters_to_vector(self.actor).detach().clone()
        before = self._log_prob_at(start, log_prob)
        gradient = self._gradient(log_prob, advantage)

        def fisher(vector: Tensor) -> Tensor:
            """Multiply with the Fisher matrix of the samples, J^T J / B; J v by central differences, for any network."""
            epsilon = 1e-2 / (vector.norm() + 1e-8)
            sides = [self._log_prob_at(start + sign * epsilon * vector, log_prob) for sign in (1, -1)]
            self._set_weights(start)
            return self._gradient(log_prob, (sides[0] - sides[1]) / (2 * epsilon)) + cfg.damping * vector

        direction = conjugate_gradients(fisher, gradient, cfg.cg_steps)
        scale = (2 * cfg.max_kl / (direction @ fisher(direction)).clamp(min=1e-12)).sqrt()
        for halvings in range(cfg.backtracks):
            change = self._log_prob_at(start + scale * direction * 0.5**halvings, log_prob) - before
            gain, kl = ((change.exp() - 1) * advantage).mean(), (change.exp() - 1 - change).mean()
            if gain > 0 and kl <= cfg.max_kl:
                return gain, kl
        self._set_weights(start)
        return torch.zeros(()), torch.zeros(())

    def _gradient(self, log_prob: Callable[[], Tensor], weight: Tensor) -> Tensor:
        """Return the gradient of the mean of `weight * log_prob`, flat."""
        grads = torch.autograd.grad((log_prob() * weight).mean(), self.actor)
        return torch.cat([grad.reshape(-1) for grad in grads])

    @torch.no_grad()
    def _log_prob_at(self, weights: Tensor, log_prob: Callable[[], Tensor]) -> Tensor:
        """Give the actor these weights, and return the log-probabilities of the actions."""
        self._set_weights(weights)
        return log_prob()

    @torch.no_grad()
    def _set_weights(self, weights: Tensor) -> None:
        offset = 0
        for parameter in self.actor:
            parameter.copy_(weights[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Solve `product(x) = b` approximately."""
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    error = residual @ residual
    for _ in range(steps):
        if error < 1e-12:
            break
        image = product(direction)
        step = error / (direction @ image)
        x, residual = x + step * direction, residual - step * image
        error, last = residual @ residual, error
        direction = residual + error / last * direction
    return x
