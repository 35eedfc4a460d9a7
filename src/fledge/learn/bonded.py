"""BondedPPO: PPO with a bond to the policy before, for a policy that goes on learning where it already flies well.

    loss = PPO's loss + bond * mean KL(policy || policy before)

The mean is over all observations of a rollout, old and new. `bond` adapts to keep the divergence near `kl_target`: it doubles
after an update that ends above 1.5 times the target, and halves after one below two thirds of it (Schulman et al. 2017).

Rollouts may come from another policy, such as an archive or a stream: values are computed again, and samples and advantages
are weighted by the probability ratio, as V-trace does (`stale_policy` of PPO). The spread of exploration is the policy's own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.distributions import BetaHead, CategoricalHead, Head, MixedHead, Params
from fledge.learn.base import finite_report
from fledge.learn.ppo import PPO, PPOConfig

BAND = 1.5  # factor around the target within which the bond stays as it is
LIMITS = (1e-3, 1e3)  # of the bond


class BondedPPO(PPO):
    """PPO learner that stays near the policy that it began with, or that `bind` set last.

    Args:
        kl_target: Divergence from the policy before, nats per decision, that an update aims at.
    """

    def __init__(self, policy: ActorCritic, cfg: PPOConfig, kl_target: float) -> None:
        self.before = copy.deepcopy(policy).requires_grad_(False)
        super().__init__(policy, cfg, stale_policy=True)
        self.kl_target, self.bond = kl_target, 1.0
        self._params: Params = ()
        self._divergences: list[Tensor] = []

    def bind(self) -> None:
        """Make the present policy the policy before."""
        self.before.load_state_dict(self.policy.state_dict())

    def schedule(self, progress: float) -> None:
        """Keep the learning rate and the spread of exploration as they are; schedules belong to the first training."""
        self.entropy_coef = 0.0

    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Learn from one rollout; return mean losses and diagnostics."""
        self._divergences.clear()
        report = super().update(rollout, progress)
        steps = torch.stack(self._divergences)
        mean, last = steps.mean(), steps[-max(1, len(steps) // self.cfg.epochs) :].mean()
        own = finite_report(("divergence", "divergence_last"), torch.stack([mean, last]))
        if own["divergence_last"] > BAND * self.kl_target:
            self.bond = min(2.0 * self.bond, LIMITS[1])
        elif own["divergence_last"] < self.kl_target / BAND:
            self.bond = max(0.5 * self.bond, LIMITS[0])
        return report | {"divergence": own["divergence_last"], "bond": self.bond}

    def _evaluate(self, batch: dict[str, Tensor]) -> tuple[Params, Tensor]:
        self._params, value = super()._evaluate(batch)
        return self._params, value

    def losses(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, parts = super().losses(batch)
        with torch.no_grad():
            if self.policy.hidden_size:
                before = self.before.unroll(batch["input"], batch["hidden"], batch["begins"])[0]
            else:
                before = self.before(batch["input"])[0]
        apart = divergence(self.policy.head, self._params, before).mean()
        self._divergences.append(apart.detach())
        return loss + self.bond * apart, parts

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "bond": self.bond}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.bond = float(state["bond"])


def divergence(head: Head, params: Params, other: Params) -> Tensor:
    """Return the Kullback-Leibler divergence KL(params || other) of a head's distributions, [B]."""
    if isinstance(head, MixedHead):
        parts = zip(head.parts, head.places, strict=True)
        return torch.stack([divergence(part, params[place], other[place]) for part, place in parts]).sum(0)
    if isinstance(head, CategoricalHead):
        return (params[0].exp() * (params[0] - other[0])).sum((-1, -2))
    kind: Any = torch.distributions.Beta if isinstance(head, BetaHead) else torch.distributions.Normal
    mine, others = (kind(*each, validate_args=False) for each in (params, other))  # checks would wait for a GPU
    apart: Tensor = torch.distributions.kl_divergence(mine, others).sum(-1)
    return apart
