"""Functions of NavRL's add-on for compressed rollouts, with Fledge's axes [T, N] and file format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from tensordict import TensorDictBase

from fledge.collect.compressed import CompressedBatch, tensor_keys
from fledge.core.errors import InputError
from fledge.replay.images import decompress_image
from fledge.storage.checkpoint import find_checkpoint, stage_now, target_path, write_state
from fledge.storage.format import codecs
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.rollout import describe, read_rollout, time_last, to_tree

decompress_single_gridmap = decompress_image


def compress_rollout(data: TensorDictBase, compression_level: int = 9) -> CompressedBatch:
    """Compress every tensor of a rollout [T, N] in memory, losslessly; the result owns its data.

    Args:
        compression_level: 0 (store) to 9 (smallest).
    """
    describe(data)  # raises InputError if it is not a rollout
    codecs.candidates(compression_level, 0)
    return CompressedBatch(data, tensor_keys(data), compression_level, copy=True)


def decompress_rollout(compressed: CompressedBatch, device: torch.device | str | None = None) -> TensorDictBase:
    """Return the rollout that was passed to `compress_rollout`, on `device`, by default on the device that it had then."""
    return _decode(compressed, None, device)


def decompress_minibatch(
    compressed: CompressedBatch, indices: torch.Tensor | Sequence[int], device: torch.device | str | None = None
) -> TensorDictBase:
    """Return transitions of a compressed rollout, [len(indices)]; index t * N + n means step t of env n."""
    return _decode(compressed, indices, device)


def save_rollout_compressed(
    data: TensorDictBase | CompressedBatch, path: str | os.PathLike[str], compression_level: int = 9
) -> Path:
    """Write a rollout durably to a file and return its path, with `.fledge` appended to the name if missing."""
    rollout = data.decode() if isinstance(data, CompressedBatch) else data
    target, note = target_path(path, "native"), describe(rollout)
    node, leaves = stage_now(to_tree(rollout))
    time_last(leaves, note["time_dim"])
    write_state(target, "native", node, leaves, level=compression_level, metadata={"rollout": note, "user": {}})
    return target


def load_rollout_compressed(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> TensorDictBase:
    """Return the rollout that `save_rollout_compressed` wrote to `path`."""
    with CheckpointFile(find_checkpoint(path)) as opened:
        return read_rollout(opened, device)


def _decode(
    compressed: CompressedBatch, indices: torch.Tensor | Sequence[int] | None, device: torch.device | str | None
) -> TensorDictBase:
    if not isinstance(compressed, CompressedBatch):
        raise InputError(
            f"compressed is a {type(compressed).__name__}, but must be a CompressedBatch (see compress_rollout)."
        )
    data = compressed.decode(transitions=indices)
    return data if device is None else data.to(device)
