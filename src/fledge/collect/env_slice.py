"""EnvSlice: the columns of a rollout that one env fills, decision by decision.

    rollout [T, N]     env 0: columns 0 to n     env 1: columns n to 2 n     ...

Step t - 1 of the env writes row t of `obs`. The step after the last row writes into the spare buffer, which becomes row 0 of
the next rollout. A row cut to the slice's columns is contiguous, so the env writes into the rollout directly.

The slice keeps the hidden states of a recurrent policy in its env, from rollout to rollout (`agents.recurrent`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.collect.base import RESULTS
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv

POLICY_KEYS = ("input", "hidden", "raw_action", "action", "log_prob", "value", "next_value")


@dataclass(frozen=True)
class Slot:
    """Views of one row of a rollout, cut to the columns of one env."""

    row: dict[str, Any]  # outputs of the policy, and results of the env's step
    obs: dict[str, Tensor]  # input of the policy
    out: TensorDict  # buffers that the env's step fills


class EnvSlice:
    """One env and its columns of the rollout; `simulate_s` is the time spent in its steps, s.

    Args:
        first: The slice's first column.
        hidden_size: Width of the policy's hidden state; 0: it has none.
    """

    def __init__(self, env: TensorEnv, first: int, hidden_size: int = 0) -> None:
        self.env, self.columns = env, slice(first, first + env.num_envs)
        buffers = env.make_buffers()
        self.final, self.spare = buffers["final_obs"], buffers["obs"]
        self.begun = False
        self.simulate_s = 0.0
        self.hidden = torch.zeros(env.num_envs, hidden_size, device=env.device) if hidden_size else None
        """[n, H] state with which the next decisions begin; None for a policy without memory."""

    def slots(self, rollout: TensorDict) -> list[Slot]:
        """Return a slot per row of a rollout; they share one `final_obs` buffer if the rollout has no such entry."""
        own = {k: v[:, self.columns] for k, v in rollout.items()}
        obs, final, steps = own["obs"], own.get("final_obs"), len(rollout)
        slots = []
        for t in range(steps):
            next_obs = {k: v[t + 1] for k, v in obs.items()} if t + 1 < steps else dict(self.spare.items())
            results = {k: own[k][t] for k in RESULTS}
            buffers = {"obs": next_obs, "final_obs": self.final if final is None else final[t], **results}
            row = {k: own[k][t] for k in POLICY_KEYS if k in own} | results
            slots.append(Slot(row, {k: v[t] for k, v in obs.items()}, TensorDict(buffers, [self.env.num_envs])))
        return slots

    def begin(self, slot: Slot) -> None:
        """Copy the env's current observation into row 0 of a rollout; the first call resets the env before."""
        if not self.begun:
            self.env.reset(out=TensorDict({"obs": self.spare}, [self.env.num_envs]))
            self.begun = True
        for name, value in self.spare.items():
            slot.obs[name].copy_(value)

    def step(self, slot: Slot) -> None:
        """Step the env with the action of the row; the results go to the row, the observation to the next row."""
        begun = time.perf_counter()
        self.env.step(slot.row["action"], out=slot.out)
        self.simulate_s += time.perf_counter() - begun

    def value_truncations(self, slot: Slot, policy: ActorCritic, scale: tuple[Tensor, Tensor]) -> None:
        """Set next_value to V(final_obs) where an episode was truncated; call it before `forget`.

        Args:
            scale: Mean and standard deviation by which the network's values are normalised.
        """
        mean, std = scale
        if self.env.device.type == "cpu":
            index = slot.row["truncated"].nonzero().flatten()
            if len(index):
                final = {k: v[index] for k, v in self.final.items()}
                hidden = None if self.hidden is None else self.hidden[index]
                slot.row["next_value"][index] = policy.step(policy.encode(final), hidden)[1] * std + mean
        else:  # selecting rows would synchronise with the device; evaluating all rows does not
            value = policy.step(policy.encode(self.final), self.hidden)[1]
            torch.add(value * std, mean, out=slot.row["next_value"])

    def forget(self, slot: Slot) -> None:
        """Clear the hidden states where an episode ended."""
        if self.hidden is not None:
            ended = slot.row["terminated"] | slot.row["truncated"]
            self.hidden.masked_fill_(ended[:, None], 0.0)

    def state_dict(self) -> dict[str, Any]:
        state = {"env": self.env.state_dict(), "obs": {k: v.clone() for k, v in self.spare.items()}}
        return state if self.hidden is None else {**state, "hidden": self.hidden.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        for name, value in self.spare.items():
            value.copy_(state["obs"][name])
        if self.hidden is not None:
            if "hidden" not in state:
                raise ConfigError(
                    "The state is of a collector whose policy has no memory, but this policy is recurrent."
                )
            self.hidden.copy_(state["hidden"])


def fill_next_value(slot: Slot, next_value: Tensor) -> None:
    """Set next_value to the value of the next observation wherever the episode was not truncated."""
    row = slot.row
    torch.where(row["truncated"], row["next_value"], next_value, out=row["next_value"])
