"""Actor-critics for PPO: an input encoding without parameters, a network, an action head, a normalised value.

encode(obs)   [B, F] float32, the network's input; computed once per decision and kept in the rollout
forward(x)    (action parameters, normalised value [B])

The network predicts values normalised by a running mean and standard deviation of returns. When these change, PopArt
rescales the last layer so that the denormalised values stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fledge.agents.base import Action, BaseAgent, Obs
from fledge.agents.distributions import Head, Params, make_head
from fledge.agents.mlp import mlp, value_layer
from fledge.agents.observations import Flattener, RunningNorm
from fledge.core.specs import ActionSpec, TensorSpec


class ValueNorm(nn.Module):
    """Running mean and standard deviation of returns by a debiased exponential average (NavRL: beta 0.995)."""

    mean_avg: Tensor
    square_avg: Tensor
    weight: Tensor

    def __init__(self, beta: float = 0.995, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.beta, self.epsilon = beta, epsilon
        self.register_buffer("mean_avg", torch.zeros(1))
        self.register_buffer("square_avg", torch.zeros(1))
        self.register_buffer("weight", torch.zeros(()))

    def mean_std(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (variance at least 0.01); 0 and 1 before the first update."""
        weight = self.weight.clamp(min=self.epsilon)
        mean = self.mean_avg / weight  # 0 before the first update
        variance = (self.square_avg / weight - mean**2).clamp(min=1e-2)
        return mean, torch.where(self.weight == 0.0, 1.0, variance.sqrt())  # reading it would wait for the GPU

    @torch.no_grad()
    def update(self, mean: Tensor, square: Tensor) -> None:
        """Update the averages with the mean and mean square of a batch of returns."""
        self.mean_avg.mul_(self.beta).add_(mean, alpha=1 - self.beta)
        self.square_avg.mul_(self.beta).add_(square, alpha=1 - self.beta)
        self.weight.mul_(self.beta).add_(1 - self.beta)

    def normalize(self, x: Tensor) -> Tensor:
        mean, std = self.mean_std()
        return (x - mean) / std

    def denormalize(self, x: Tensor) -> Tensor:
        mean, std = self.mean_std()
        return x * std + mean

    @torch.no_grad()
    def update_preserving(self, mean: Tensor, square: Tensor, layer: nn.Linear) -> None:
        """Update the averages and keep the denormalised output of `layer` the same (PopArt, van Hasselt et al. 2016)."""
        old_mean, old_std = self.mean_std()
        self.update(mean, square)
        new_mean, new_std = self.mean_std()
        layer.weight.mul_(old_std / new_std)
        layer.bias.mul_(old_std).add_(old_mean - new_mean).div_(new_std)


class ActorCritic(BaseAgent):
    """Base class of actor-critics; a subclass adds `head`, `critic`, `inputs`, `encode` and `forward`."""

    head: Head
    critic: nn.Linear
    inputs: int

    def __init__(self) -> None:
        super().__init__()
        self.value_norm = ValueNorm()

    def encode(self, obs: Obs) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        raise NotImplementedError

    def value(self, x: Tensor) -> Tensor:
        """Return values in reward units, [B]."""
        return self.value_norm.denormalize(self(x)[1])

    def learn_inputs(self, x: Tensor, average: Callable[[Tensor], Tensor]) -> None:
        """Update the input normalisation from a batch of inputs; the base class has no normalisation.

        Args:
            x: Inputs of the network, [B, F].
            average: Function that averages a tensor over ranks.
        """

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        """Return actions for the env, [B, ...]."""
        params, _ = self(self.encode(obs))
        raw = self.head.mean(params) if deterministic else self.head.sample(params)
        return self.head.to_env(raw)

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        params, _ = self(self.encode(obs))
        action = self.head.to_env(self.head.mean(params))
        return (action,) if isinstance(action, Tensor) else tuple(action.values())


class MLPActorCritic(ActorCritic):
    """Two separate MLPs, one for the action and one for the value, that read all observations of an env.

    Args:
        normalize: Normalise observations by their running mean and standard deviation.
        beta: Use Beta instead of normal distributions for actions with bounds.
    """

    def __init__(
        self,
        observation: Mapping[str, TensorSpec],
        action: ActionSpec,
        hidden: Sequence[int] = (64, 64),
        normalize: bool = True,
        beta: bool = False,
    ) -> None:
        super().__init__()
        self.flattener = Flattener(observation, action)
        self.observes, self.inputs = self.flattener.keys, self.flattener.inputs
        self.reads, self.acts = self.flattener.specs, action
        self.outputs = ("action",) if isinstance(action, TensorSpec) else tuple(action)
        self.norm = RunningNorm(self.inputs - self.flattener.masks) if normalize else None
        self.actor_trunk = mlp(self.inputs, hidden, nn.Tanh)
        self.head = make_head(hidden[-1], action, beta)
        self.critic_trunk = mlp(self.inputs, hidden, nn.Tanh)
        self.critic = value_layer(hidden[-1])

    def encode(self, obs: Obs) -> Tensor:
        return self.flattener(obs)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        mask = self.flattener.split(x)
        if self.norm is not None:
            seen = self.norm(x[..., : self.norm.mean.numel()])
            x = seen if mask is None else torch.cat([seen, mask], dim=-1)
        return self.head(self.actor_trunk(x), mask), self.critic(self.critic_trunk(x)).squeeze(-1)

    def learn_inputs(self, x: Tensor, average: Callable[[Tensor], Tensor]) -> None:
        if self.norm is not None:
            seen = x[..., : self.norm.mean.numel()]
            mean, square = average(torch.stack([seen.mean(0), seen.square().mean(0)]))
            self.norm.update(mean, square, len(x))

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return self.flattener.examples(batch, seed)
