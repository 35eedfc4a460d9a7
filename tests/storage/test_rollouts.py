"""RolloutStorage: the same TensorDict back, in whole or in part, written off the training thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from fledge.core.errors import ConfigError, FormatError, InputError, StorageError
from fledge.storage import AsyncCheckpointSaver, RolloutStorage, save_checkpoint
from tests.storage.states import assert_same, state_at

T, N = 16, 12


def rollout(seed: int = 0) -> TensorDict:
    """A small rollout [T, N] with a LiDAR that sees mostly nothing."""
    torch.manual_seed(seed)
    lidar = (torch.cumsum(torch.randn(T, N, 36) * 0.02, 0) + 3.9).clamp(max=4.0)
    inner = TensorDict({"lidar": lidar, "state": torch.cumsum(torch.randn(T, N, 8) * 0.01, 0)}, [T, N])
    deeper = TensorDict({"x": torch.arange(T * N * 2).view(T, N, 2)}, [T, N, 2])
    return TensorDict(
        {
            "agents": TensorDict({"observation": inner, "deeper": deeper}, [T, N]),
            "reward": torch.randn(T, N, 1),
            "half": torch.randn(T, N).bfloat16(),
            "double": torch.randn(T, N, 2, dtype=torch.complex128),
            "done": torch.rand(T, N, 1) < 0.1,
            "empty": torch.zeros(T, N, 0),
            "note": NonTensorData("seen", batch_size=[T, N]),
        },
        [T, N],
    )


def test_the_same_comes_back(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        data = rollout()
        storage.save(data, 7)
        got = storage.load(7)
    assert got.batch_size == data.batch_size
    assert got["agents", "deeper"].batch_size == torch.Size([T, N, 2])
    assert set(got.keys(True, True)) == set(data.keys(True, True))
    for key in data.keys(True, True):
        if key != "note":
            assert_same(got[key], data[key], str(key))
    assert got["note"] == "seen"


def test_a_buffer_may_be_reused_right_after_the_call(tmp_path: Path) -> None:
    buffer = rollout(0)
    with RolloutStorage(tmp_path) as storage:
        for i in range(4):
            buffer.update_(rollout(i).exclude("note"))
            storage.save(buffer, i)
        assert storage.drain(60)
        assert storage.list() == [0, 1, 2, 3]
        for i in range(4):
            assert_same(storage.load(i)["agents", "observation", "lidar"], rollout(i)["agents", "observation", "lidar"])


def test_a_savers_threads_can_be_shared(tmp_path: Path) -> None:
    with AsyncCheckpointSaver() as saver:
        with RolloutStorage(tmp_path, saver=saver) as storage:
            storage.save(rollout(), 1)
        assert storage.list() == [1]
        saver.save_async(state_at(1), tmp_path / "a").wait(60)  # closing the storage does not shut the saver down
        assert saver.get_stats()["saves"] == storage.get_stats()["saves"] == 2


def test_parts_can_be_loaded(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        data = rollout()
        storage.save(data, 1)
        part = storage.load(1, keys=["agents/observation/state", "reward"], envs=slice(2, 5), steps=[0, 7])
        assert part.batch_size == torch.Size([2, 3])
        assert set(part.keys(True, True)) == {("agents", "observation", "state"), "reward"}
        assert_same(part["reward"], data["reward"][[0, 7]][:, 2:5].contiguous())
        assert_same(
            part["agents", "observation", "state"], data["agents", "observation", "state"][[0, 7]][:, 2:5].contiguous()
        )
        assert storage.load(1, envs=3).batch_size == torch.Size([T, 1])
        with pytest.raises(InputError, match="'lidar' is not in"):
            storage.load(1, keys=["lidar"])


def test_env_major_rollouts_and_names_say_where_time_is(tmp_path: Path) -> None:
    data = TensorDict({"a": torch.randn(N, T, 3)}, [N, T])
    with RolloutStorage(tmp_path, time_dim=1) as storage:
        storage.save(data, 0)
        assert_same(storage.load(0, envs=[1], steps=slice(0, 2))["a"], data["a"][[1]][:, :2].contiguous())
    named = TensorDict({"a": torch.randn(N, T, 3)}, [N, T], names=["env", "time"])
    with RolloutStorage(tmp_path / "named") as storage:
        storage.save(named, 0)
        got = storage.load(0, steps=slice(0, 2))
        assert (got.batch_size, got.names) == (torch.Size([N, 2]), ["env", "time"])


def test_time_innermost_makes_lidar_smaller(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ranges = torch.cumsum(torch.randn(64, 32, 1, 1) * 0.02, 0) + torch.rand(1, 32, 36, 4) * 4 + 2
    data = TensorDict({"lidar": ranges.clamp(max=4.0)}, [64, 32])
    with RolloutStorage(tmp_path) as storage:
        ours = storage.save(data, 0).wait(60).stat().st_size
    plain = save_checkpoint({"lidar": data["lidar"]}, tmp_path / "plain", compression_level=9).stat().st_size
    assert ours < 0.8 * plain
    assert ours < data["lidar"].nbytes / 2


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="time_dim"):
        RolloutStorage(tmp_path, time_dim=2)
    with pytest.raises(ConfigError, match="compression_level"):
        RolloutStorage(tmp_path, compression_level=11)
    with RolloutStorage(tmp_path) as storage:
        with pytest.raises(InputError, match="TensorDict"):
            storage.save({"a": torch.ones(2)}, 0)  # type: ignore[arg-type]
        with pytest.raises(StorageError, match="has no rollout 3"):
            storage.load(3)
        save_checkpoint(state_at(1), storage.path(4))
        with pytest.raises(FormatError, match="not a rollout"):
            storage.load(4)
