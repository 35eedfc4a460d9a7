"""Memory stays flat however many frames are added."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from fledge.replay import DictReplayBuffer
from fledge.storage import save_checkpoint


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def episode(rng: np.random.Generator, length: int) -> dict[str, np.ndarray]:
    lidar = np.where(rng.random((length + 1, 36)) < 0.85, 0.0, rng.random((length + 1, 36))).astype(np.float32)
    state = np.cumsum(rng.normal(size=(length + 1, 8)) * 0.01, 0).astype(np.float32)
    return {"lidar": lidar, "state": state, "reward": rng.normal(size=length).astype(np.float32)}


def grow(frames: int, max_size: int, longest: int) -> tuple[list[int], list[int]]:
    """Bytes held by the stores and by the process, at ten moments after the buffer is full."""
    rng = np.random.default_rng(0)
    held, resident = [], []
    episodes = [episode(rng, int(n)) for n in rng.integers(1, longest, 50)]
    with DictReplayBuffer(max_size, ["lidar", "state", "reward", "next_lidar", "next_state"]) as buffer:
        added = mark = 0
        while added < frames:
            chosen = episodes[int(rng.integers(50))]
            buffer.add(chosen)
            added += len(chosen["reward"])
            if added > frames / 3 + mark * frames / 15:
                mark += 1
                buffer.sample(32)
                held.append(buffer.stats()["held_bytes"])
                resident.append(resident_bytes())
        assert max_size - longest < len(buffer) <= max_size
    return held, resident


def test_memory_is_flat_over_many_frames_of_adding() -> None:
    held, _ = grow(60_000, 5_000, 400)
    assert max(held) <= 1.3 * min(held) + 3 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("frames", [10_000_000])
def test_memory_is_flat_over_ten_million_frames(frames: int) -> None:
    torch.set_num_threads(1)
    held, resident = grow(frames, 200_000, 1_000)
    assert max(held) <= 1.1 * min(held) + 3 * 2**20
    assert resident[-1] <= resident[0] + 32 * 2**20


def test_saving_makes_no_second_copy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with DictReplayBuffer(100_000, ["x", "next_x"]) as buffer:
        for _ in range(40):
            buffer.add({"x": rng.random((200, 400)).astype(np.float32)})
        save_checkpoint({"replay": buffer.state_dict()}, tmp_path / "warm.fledge")
        tracemalloc.start()
        try:
            save_checkpoint({"replay": buffer.state_dict()}, tmp_path / "replay.fledge")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert buffer.stats()["bytes"] > 10 * 2**20
        assert peak < buffer.stats()["bytes"] / 4
