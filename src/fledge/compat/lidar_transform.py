"""CompressedLidarTransform: NavRL's name for a transform that compresses LiDAR entries."""

from __future__ import annotations

from tensordict import TensorDictBase

from fledge.collect.compress_transform import CompressTransform
from fledge.collect.compressed import Key, tensor_keys

NAMES = ("lidar", "input")


class CompressedLidarTransform(CompressTransform):
    """A `CompressTransform` whose default entries are those named "lidar" or "input", at any depth."""

    def default_keys(self, data: TensorDictBase) -> list[Key]:
        return [key for key in tensor_keys(data) if (key if isinstance(key, str) else key[-1]) in NAMES]
