"""Actor-critics for PPO: an input encoding without parameters, a network, an action head, a normalised value.

encode(obs)              [B, F] float32, the network's input; computed once per decision and kept in the rollout
forward(x)               (action parameters, normalised value [B]) of a policy without memory
step(x, hidden)          the same of any policy, and its next state; `agents.recurrent` has the contract of states
unroll(x, hidden, ...)   the same for sequences of a recurrent policy

The network predicts values normalised by a running mean and standard deviation of returns. When these change, PopArt
rescales the last layer so that the denormalised values stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fledge.agents.base import STATE_IN, Action, BaseAgent, Obs
from fledge.agents.distributions import Head, Params, make_head
from fledge.agents.mlp import mlp, value_layer
from fledge.agents.observations import Flattener, RunningNorm
from fledge.agents.recurrent import GRU
from fledge.core.errors import InputError
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
    """Base class of actor-critics; a subclass adds `head`, `critic`, `inputs`, `encode` and `forward`.

    One that can have a memory adds `features` and `decide` instead of `forward`, and calls `add_memory`.
    """

    head: Head
    critic: nn.Linear
    inputs: int
    captures: bool = False
    """Whether `encode`, `step` and `head` may be captured as CUDA graphs (`core.cuda_graphs`): they read what changes from
    tensors, and nothing that Python computes. A network of your own runs uncaptured unless it sets this."""
    _hidden: Tensor | None = None  # state of `act`, [num_envs, H]; None: all episodes begin

    def __init__(self) -> None:
        super().__init__()
        self.value_norm = ValueNorm()

    def encode(self, obs: Obs) -> Tensor:
        raise NotImplementedError

    def add_memory(self, features: int, size: int) -> int:
        """Add a GRU of `size` units if that is not 0; return the width of the trunk's input for `features` features."""
        if size:
            self.gru, self.hidden_size = GRU(features, size), size
        return features + size

    def features(self, x: Tensor) -> Tensor:
        """Return what the memory and the trunk read, [B, D]; by default the input itself."""
        return x

    def decide(self, x: Tensor, z: Tensor) -> tuple[Params, Tensor]:
        """Return action parameters and normalised values for inputs x and the trunk's input z = [features | hidden]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        if self.hidden_size:
            raise InputError(
                "This policy is recurrent, but was called without its hidden state: call policy.step(x, hidden) or "
                "policy.unroll(x, hidden, begins), or load a policy with policy.gru_size=0."
            )
        return self.decide(x, self.features(x))

    def step(self, x: Tensor, hidden: Tensor | None = None) -> tuple[Params, Tensor, Tensor | None]:
        """Return action parameters, normalised values [B], and the state after the decision, [B, H].

        The state is None for a policy without memory.

        Args:
            hidden: [B, H] state with which the decision begins; None: the episodes begin.
        """
        if not self.hidden_size:
            return *self(x), None
        z = self.features(x)
        hidden = self.gru.step(z, z.new_zeros(len(z), self.hidden_size) if hidden is None else hidden)
        return *self.decide(x, torch.cat([z, hidden], dim=-1)), hidden

    def unroll(self, x: Tensor, hidden: Tensor, begins: Tensor) -> tuple[Params, Tensor, Tensor]:
        """Return action parameters [T * B, ...], normalised values [T * B], and the state after each decision, [T, B, H].

        Args:
            x: [T, B, F] inputs of sequences.
            hidden: [B, H] state with which the sequences begin.
            begins: [T, B] bool, where an episode begins, so that the state is cleared; row 0 is not read.
        """
        flat = x.flatten(0, 1)
        z = self.features(flat)
        states = self.gru(z.unflatten(0, x.shape[:2]), hidden, begins)
        return *self.decide(flat, torch.cat([z, states.flatten(0, 1)], dim=-1)), states

    def value(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return values in reward units, [B]; `hidden` as in `step`."""
        return self.value_norm.denormalize(self.step(x, hidden)[1])

    def learn_inputs(self, x: Tensor, average: Callable[[Tensor], Tensor]) -> None:
        """Update the input normalisation from a batch of inputs; the base class has no normalisation.

        Args:
            x: Inputs of the network, [B, F].
            average: Function that averages a tensor over ranks.
        """

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        """Return actions for the env, [B, ...]. A recurrent policy remembers each row's episode until `reset`."""
        action, self._hidden = self.act_with(obs, self._hidden, deterministic)
        return action

    @torch.no_grad()
    def act_with(self, obs: Obs, hidden: Tensor | None, deterministic: bool = True) -> tuple[Action, Tensor | None]:
        """Return actions and the next state for a state that the caller keeps; `hidden` as in `step`."""
        x = self.encode(obs)
        if hidden is not None and len(hidden) != len(x):
            raise InputError(
                f"The recurrent policy got observations of {len(x)} envs, but remembers episodes of {len(hidden)}: call "
                "reset() before the number of envs changes, and pass the rows of all envs each time."
            )
        params, _, hidden = self.step(x, hidden)
        return self.head.to_env(self.head.mean(params) if deterministic else self.head.sample(params)), hidden

    def reset(self, env_mask: Tensor | None = None) -> None:
        if env_mask is None or self._hidden is None or len(env_mask) != len(self._hidden):
            self._hidden = None
        else:
            self._hidden = self._hidden.masked_fill(env_mask.to(self._hidden.device)[:, None], 0.0)

    def episode_state(self) -> dict[str, Any]:
        return {} if self._hidden is None else {"hidden": self._hidden.clone()}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        hidden = state.get("hidden")
        if hidden is not None and hidden.shape[1:] != (self.hidden_size,):
            raise InputError(
                f"The saved memory has width {hidden.shape[-1]}, but this policy's has {self.hidden_size}: use the policy "
                "that it was saved with."
            )
        self._hidden = None if hidden is None else hidden.to(self.device).clone()

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        params, _, hidden = self.step(self.encode(obs), obs[STATE_IN] if self.hidden_size else None)
        action = self.head.to_env(self.head.mean(params))
        parts = (action,) if isinstance(action, Tensor) else tuple(action.values())
        return parts if hidden is None else (*parts, hidden)


class MLPActorCritic(ActorCritic):
    """Two separate MLPs, one for the action and one for the value, that read all observations of an env.

    Args:
        normalize: Normalise observations by their running mean and standard deviation.
        beta: Use Beta instead of normal distributions for actions with bounds.
        gru_size: Width of a memory that both MLPs read; 0: none.
    """

    captures = True

    def __init__(
        self,
        observation: Mapping[str, TensorSpec],
        action: ActionSpec,
        hidden: Sequence[int] = (64, 64),
        normalize: bool = True,
        beta: bool = False,
        gru_size: int = 0,
    ) -> None:
        super().__init__()
        self.flattener = Flattener(observation, action)
        self.observes, self.inputs = self.flattener.keys, self.flattener.inputs
        self.reads, self.acts = self.flattener.specs, action
        self.outputs = ("action",) if isinstance(action, TensorSpec) else tuple(action)
        self.norm = RunningNorm(self.inputs - self.flattener.masks) if normalize else None
        width = self.add_memory(self.inputs, gru_size)
        self.actor_trunk = mlp(width, hidden, nn.Tanh)
        self.head = make_head(hidden[-1], action, beta)
        self.critic_trunk = mlp(width, hidden, nn.Tanh)
        self.critic = value_layer(hidden[-1])

    def encode(self, obs: Obs) -> Tensor:
        return self.flattener(obs)

    def features(self, x: Tensor) -> Tensor:
        if self.norm is None:
            return x
        seen, mask = self.norm(x[..., : self.norm.mean.numel()]), self.flattener.split(x)
        return seen if mask is None else torch.cat([seen, mask], dim=-1)

    def decide(self, x: Tensor, z: Tensor) -> tuple[Params, Tensor]:
        params = self.head(self.actor_trunk(z), self.flattener.split(x))
        return params, self.critic(self.critic_trunk(z)).squeeze(-1)

    def learn_inputs(self, x: Tensor, average: Callable[[Tensor], Tensor]) -> None:
        if self.norm is not None:
            seen = x[..., : self.norm.mean.numel()]
            mean, square = average(torch.stack([seen.mean(0), seen.square().mean(0)]))
            self.norm.update(mean, square, len(x))

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return self.flattener.examples(batch, seed)
