"""CompressedLidarTransform: a CompressTransform that finds its entries by NavRL's names."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

import fledge


def test_entries_named_lidar_or_input_are_compressed_whatever_their_size() -> None:
    pytest.importorskip("torchrl")
    from fledge.collect import CompressTransform

    data = {"lidar": torch.rand(3, 4, 2), "input": torch.rand(3, 4, 2), "image": torch.rand(3, 4, 100)}
    batch = TensorDict({"obs": TensorDict(data, [3, 4])}, [3, 4])
    transform = fledge.CompressedLidarTransform(compression_level=1)
    assert isinstance(transform, CompressTransform)
    packed = transform(batch)
    assert set(packed["obs"].keys()) == {"lidar_packed", "input_packed", "image"}
    restored = transform.inv(packed)
    assert all(torch.equal(restored["obs", name], value) for name, value in data.items())
    assert set(CompressTransform()(batch)["obs"].keys()) == {"lidar", "input", "image_packed"}
