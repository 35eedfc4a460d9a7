"""Compressed observations: `CompressedDataCollector` for batches, `CompressedLidarTransform` for single steps.

    collector = CompressedDataCollector(SyncDataCollector(...), compression_level=1)
    for data in collector:
        data["_compressed_lidar"]                               # one LZ4 frame per env, [T, 1, 36, 4] float32
        data["agents", "observation", "lidar"]                  # the whole batch, decoded, [N, T, 1, 36, 4]
        collector._decompress_observations(data, indices)       # transitions, [len(indices), 1, 36, 4]

Transition `idx` is step `idx % T` of env `idx // T`. A batch is stored in fledge's own compressed form, several times
smaller than LZ4; the LZ4 frames are made when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import lz4.frame
import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.collect import compressed
from fledge.collect.base import Collector
from fledge.collect.compressed import CompressedBatch, Key
from fledge.collect.sync import SyncDataCollector
from fledge.compat.layout import OBSERVATIONS, TIME, env_major, find_observations
from fledge.compat.lz4_images import compress_image, decompress_image, describe, native_level
from fledge.core.errors import InputError

__all__ = ["CompressedDataCollector", "CompressedLidarTransform", "CompressedRollout", "decompress_observations"]

LIDAR = "lidar"


class CompressedRollout(CompressedBatch):
    """A `CompressedBatch` [N, T] with one more entry, "_compressed_lidar": a list with one LZ4 frame per env."""

    lz4_level = 1

    def __getitem__(self, key: Key) -> Any:
        if key != "_compressed_lidar":
            return super().__getitem__(key)
        lidar = super().__getitem__(self.lidar_key()).cpu()
        return [lz4.frame.compress(env.numpy().tobytes(), compression_level=self.lz4_level) for env in lidar]

    def lidar_key(self) -> Key:
        """Return the key of the LiDAR entry."""
        known = {(key,) if isinstance(key, str) else key for key in self.keys()}
        found: Key | None = next((key for key in ((*path, LIDAR) for path in OBSERVATIONS) if key in known), None)
        if found is None:
            raise InputError(f"The batch needs an observation named {LIDAR!r}, but has only {sorted(known)}.")
        return found


class CompressedDataCollector(compressed.CompressedDataCollector):
    """Compress the batches [N, T] of another collector.

    Args:
        base_collector: A collector of fledge or TorchRL, or any iterable of TensorDicts [N, T].
        compression_level: 0 to 16, as in LZ4; every level is lossless.
        keys: Entries to compress; by default those with at least 64 numbers per step, which includes LiDAR.
    """

    batch_class = CompressedRollout

    def __init__(
        self,
        base_collector: Collector | Iterable[TensorDictBase],
        compression_level: int = 1,
        keys: Sequence[Key] | None = None,
    ) -> None:
        super().__init__(base_collector, native_level(compression_level), keys)
        self.lz4_level = compression_level
        self._cache: dict[int, Tensor] = {}  # decoded LiDAR of `_cached` by env
        self._cached: CompressedRollout | None = None  # the batch last passed to _decompress_observations

    def _compress(self, data: TensorDictBase, copies: bool) -> CompressedRollout:
        return self._compress_observations(data, copies)

    def _compress_observations(self, data: TensorDictBase, copies: bool = True) -> CompressedRollout:
        """Return the batch with its large entries compressed; `copies` copies the other entries instead of sharing them."""
        if not data._has_names() or TIME not in data.names:
            inner = getattr(self.base_collector, "base_collector", self.base_collector)
            data = env_major(data) if isinstance(inner, SyncDataCollector) else data.copy().refine_names(..., TIME)
        batch: Any = super()._compress(data, copies)
        batch.lz4_level = self.lz4_level
        return batch

    def _decompress_observations(self, data: CompressedRollout, minibatch_indices: Sequence[int] | Tensor) -> Tensor:
        """Return the LiDAR scans of some transitions, [len(minibatch_indices), ...]; each env is decoded once per batch."""
        if data is not self._cached:
            self._cache, self._cached = {}, data
        index = torch.as_tensor(minibatch_indices).long().cpu().flatten()
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < data.batch_size.numel():
            given = f"{int(index.min())} to {int(index.max())}"
            raise InputError(f"minibatch_indices is {given}, but must lie between 0 and {data.batch_size.numel() - 1}.")
        steps = data.batch_size[1]
        envs, key = index // steps, data.lidar_key()
        if new := [env for env in envs.unique().tolist() if env not in self._cache]:
            decoded = data.packed[key].unpack(new) if key in data.packed else data.rest[key][torch.tensor(new)]
            self._cache.update(zip(new, decoded, strict=True))
        places = zip(envs.tolist(), (index % steps).tolist(), strict=True)
        return torch.stack([self._cache[env][step] for env, step in places])

    @property
    def num_envs(self) -> int:
        """Number of envs in a batch."""
        return int(self.latest.batch_size[0])

    @property
    def device(self) -> torch.device:
        """Device of decoded entries."""
        return next(iter(self.latest.rest.values(True, True))).device


class CompressedLidarTransform:
    """Replace the entry "lidar" of a dict or TensorDict by "lidar_compressed", the bytes of an LZ4 frame.

    `fledge.CompressedLidarTransform` is another class: a TorchRL transform that compresses whole rollouts.

    Args:
        compression_level: 0 (fastest) to 16 (smallest).
    """

    def __init__(self, compression_level: int = 1) -> None:
        native_level(compression_level)
        self.compression_level = compression_level

    def __call__(self, tensordict: Any) -> Any:
        observations = find_observations(tensordict)
        if LIDAR not in observations.keys():  # noqa: SIM118 - a TensorDict is no dict
            raise InputError(f"The data needs an observation {LIDAR!r}, but has only {sorted(observations.keys())}.")
        observations[LIDAR + "_compressed"] = compress_image(observations[LIDAR], self.compression_level)
        del observations[LIDAR]
        return tensordict

    forward = __call__


def decompress_observations(observations: Any) -> dict[str, Tensor]:
    """Return observations as a dict of tensors, with "lidar" decoded from "lidar_compressed" if that entry exists."""
    names = list(observations.keys())
    found = {name: value for name in names if isinstance(value := observations[name], Tensor)}
    if LIDAR + "_compressed" in names:
        data = observations[LIDAR + "_compressed"]
        said = describe(data)[0] is not None
        array = decompress_image(data) if said else decompress_image(data, dtype="float32").reshape(-1, 1, 36, 4)
        found[LIDAR] = torch.from_numpy(array)
    return found
