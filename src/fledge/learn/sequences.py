"""Sequences: the samples of PPO for recurrent policies (`agents.recurrent` has the contract of hidden states).

A rollout [T, N] is cut into T / L chunks of L decisions. Each chunk of each env is a sequence, so there are S = T / L * N:

    rollout  [T, N, ...]  ->  sequences [L, S, ...],  sequence c * N + n = decisions c * L to (c + 1) * L of env n
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fledge.core.errors import ConfigError

KEPT = ("input", "begins")  # entries that stay [L, B, ...] in a minibatch


def sequence_length(steps: int, wanted: int) -> int:
    """Return the length of sequences in rollouts of `steps` decisions, for the setting ppo.sequence_length.

    Raises:
        ConfigError: The length does not divide the rollout.
    """
    if wanted and steps % wanted:
        raise ConfigError(
            f"ppo.sequence_length is {wanted}, but must divide the {steps} decisions of a rollout (ppo.rollout_steps): "
            "change one of them, or set ppo.sequence_length=0 for whole rollouts."
        )
    return wanted or steps


def find_begins(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Return where an episode begins, [T, N] bool; row 0 is false, as the stored states are cleared already."""
    begins = torch.zeros_like(terminated)
    torch.logical_or(terminated[:-1], truncated[:-1], out=begins[1:])
    return begins


def cut(entry: Tensor, length: int) -> Tensor:
    """Return the sequences [L, S, ...] of an entry [T, N, ...] of a rollout; a view if the rollout is one chunk."""
    return entry.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)


def cut_states(hidden: Tensor, length: int) -> Tensor:
    """Return the states [S, H] with which the sequences begin, from those of all decisions, [T, N, H]."""
    return hidden[::length].flatten(0, 1)


def take(sequences: Mapping[str, Tensor], hidden: Tensor, index: Tensor) -> dict[str, Tensor]:
    """Return the minibatch of the sequences `index` [B]: `KEPT` [L, B, ...], hidden [B, H], other entries [L * B, ...]."""
    taken = {name: entry.index_select(1, index) for name, entry in sequences.items()}
    taken = {name: entry if name in KEPT else entry.flatten(0, 1) for name, entry in taken.items()}
    return taken | {"hidden": hidden.index_select(0, index)}
