"""EnvSlice: the columns of a rollout that one env fills, decision by decision.

    rollout [T, N]     env 0: columns 0 to n     env 1: columns n to 2 n     ...

Row t of `obs` is written by the env's step t - 1; the step after the last row writes into the lane's spare slot, which
becomes row 0 of the next rollout. A row cut to a lane's columns is contiguous, so the env writes into the rollout itself.
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
from fledge.envs.base import TensorEnv

ACTING = ("input", "raw", "action", "log_prob", "value", "next_value")


@dataclass(frozen=True)
class Slot:
    """Views of one row of a rollout, cut to a lane's columns."""

    row: dict[str, Any]  # what acting writes, and what the env returned for it
    obs: dict[str, Tensor]  # what is acted on
    out: TensorDict  # what the env fills


class EnvSlice:
    """One env and where it writes. `simulate_s` sums the seconds of its steps."""

    def __init__(self, env: TensorEnv, first: int) -> None:
        self.env, self.columns = env, slice(first, first + env.num_envs)
        buffers = env.make_buffers()
        self.final, self.spare = buffers["final_obs"], buffers["obs"]
        self.begun = False
        self.simulate_s = 0.0

    def slots(self, rollout: TensorDict) -> list[Slot]:
        """This lane's part of every row of a rollout."""
        own = {k: v[:, self.columns] for k, v in rollout.items() if k != "obs"}
        seen = {k: v[:, self.columns] for k, v in rollout["obs"].items()}
        steps = rollout.shape[0]
        slots = []
        for t in range(steps):
            into = {k: v[t + 1] for k, v in seen.items()} if t + 1 < steps else dict(self.spare.items())
            results = {k: own[k][t] for k in RESULTS}
            out = TensorDict({"obs": into, "final_obs": self.final, **results}, [self.env.num_envs])
            row = {k: own[k][t] for k in ACTING} | results
            slots.append(Slot(row, {k: v[t] for k, v in seen.items()}, out))
        return slots

    def begin(self, slot: Slot) -> None:
        """Write the observation to act on into the first row of a rollout."""
        if not self.begun:
            self.env.reset(out=TensorDict({"obs": self.spare}, [self.env.num_envs]))
            self.begun = True
        for name, value in self.spare.items():
            slot.obs[name].copy_(value)

    def step(self, slot: Slot) -> None:
        """Let the env carry out the row's action."""
        begun = time.perf_counter()
        self.env.step(slot.row["action"], out=slot.out)
        self.simulate_s += time.perf_counter() - begun

    def value_truncations(self, slot: Slot, policy: ActorCritic) -> None:
        """Put V(final_obs) into next_value where the clock ended an episode."""
        if self.env.device.type == "cpu":
            index = slot.row["truncated"].nonzero().flatten()
            if len(index):
                final = {k: v[index] for k, v in self.final.items()}
                slot.row["next_value"][index] = policy.value(policy.encode(final))
        else:  # looking would wait for the device; valuing all rows does not
            slot.row["next_value"].copy_(policy.value(policy.encode(self.final)))

    def state_dict(self) -> dict[str, Any]:
        return {"env": self.env.state_dict(), "obs": {k: v.clone() for k, v in self.spare.items()}}

    def load_state_dict(self, env: dict[str, Any], obs: dict[str, Tensor]) -> None:
        self.env.load_state_dict(env)
        for name, value in self.spare.items():
            value.copy_(obs[name])


def fill_next_value(slot: Slot, next_value: Tensor) -> None:
    """Take the value of what followed wherever the clock did not end the episode."""
    row = slot.row
    torch.where(row["truncated"], row["next_value"], next_value, out=row["next_value"])
