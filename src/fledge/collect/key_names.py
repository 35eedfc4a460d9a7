"""The key names of NavRL and TorchRL for the entries of a rollout, as views of the same memory.

    fledge                          NavRL, TorchRL
    obs/X                           (agents, observation, X)
    action                          (agents, action)
    log_prob, value                 sample_log_prob, state_value [..., 1]
    next_value                      (next, state_value) [..., 1]
    reward                          (next, agents, reward) [..., 1]
    terminated, truncated           terminated, truncated; also (next, terminated), (next, truncated) [..., 1]
    terminated or truncated         done and (next, done) [..., 1]

The rollout stays time-major, [T, N], and its first axis gets the name "time". There is no (next, agents, observation):
on-policy rollouts keep only the value of the next observation, which is exact where an episode was truncated.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict

KEY_NAMES = ("fledge", "navrl")


def add_navrl_names(rollout: TensorDict) -> None:
    """Add entries with NavRL's key names to a rollout; all but `done` are views of its entries."""
    batch = rollout.batch_size
    terminated, truncated = rollout["terminated"][..., None], rollout["truncated"][..., None]
    done = torch.zeros_like(terminated)
    observation = TensorDict(dict(rollout["obs"].items()), batch)
    rollout["agents"] = TensorDict({"observation": observation, "action": rollout["action"]}, batch)
    rollout["sample_log_prob"] = rollout["log_prob"]
    rollout["state_value"] = rollout["value"][..., None]
    rollout["done"] = done
    rollout["next"] = TensorDict(
        {
            "agents": TensorDict({"reward": rollout["reward"][..., None]}, batch),
            "done": done,
            "terminated": terminated,
            "truncated": truncated,
            "state_value": rollout["next_value"][..., None],
        },
        batch,
    )
    rollout.names = ["time", None]


def fill_done(rollout: TensorDict) -> None:
    """Recompute `done`, the only added entry that is not a view."""
    torch.logical_or(rollout["terminated"][..., None], rollout["truncated"][..., None], out=rollout["done"])
