"""RankParts: rank 0's checkpoint gets every rank's part, as it was when that rank saved."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory
from fledge.training import rank_parts
from fledge.training.rank_parts import RankParts
from fledge.training.ranks import Ranks
from tests.storage.states import assert_same


class OneProcess:
    """Stands in for torch.distributed: messages of rank 1 to rank 0 in one process."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    def new_group(self, backend: str) -> str:
        return backend

    def send(self, tensor: torch.Tensor, rank: int, group: str) -> None:
        assert (rank, group) == (0, "gloo")
        self.messages.put(tensor.clone())

    def recv(self, tensor: torch.Tensor, rank: int, group: str) -> None:
        assert (rank, group) == (1, "gloo")
        tensor.copy_(self.messages.get(timeout=30))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RankParts, RankParts]]:
    monkeypatch.setattr(rank_parts, "dist", OneProcess())
    first, second = RankParts(Ranks(0, 2)), RankParts(Ranks(1, 2))
    yield first, second
    second.close()
    first.close()


def part_of(seed: float) -> dict[str, Any]:
    return {
        "collector": {"obs": torch.full((3, 5), seed), "leaf": 7, "tags": ("a", np.arange(4) + seed)},
        "rng": torch.arange(9, dtype=torch.uint8),
        "none": torch.empty(0),
        "bytes": b"12345",
    }


def test_every_rank_is_in_the_file_as_it_was_when_it_saved(pair: tuple[RankParts, RankParts], tmp_path: Path) -> None:
    first, second = pair
    with AsyncCheckpointSaver() as saver:
        history = CheckpointHistory(tmp_path, saver=saver)
        state = {"model": {"w": torch.ones(4)}, "ranks": [part_of(0.0)], "iteration": 8}
        handle = history.save(state, 8, complete=first.receiver(8))
        mine = part_of(1.0)
        second.send(mine, 8)
        mine["collector"]["obs"].zero_()
        handle.wait(30)
    assert_same(history.load_latest()[0], {**state, "ranks": [part_of(0.0), part_of(1.0)]})


def test_parts_of_a_checkpoint_that_failed_are_not_taken_for_the_next(
    pair: tuple[RankParts, RankParts], tmp_path: Path
) -> None:
    first, second = pair

    def fail(node: Any, leaves: Any) -> Any:
        raise StorageError("no space")

    with AsyncCheckpointSaver() as saver:
        history = CheckpointHistory(tmp_path, saver=saver)
        for iteration, complete in ((8, fail), (9, first.receiver(9))):
            second.send(part_of(float(iteration)), iteration)
            history.save({"model": {}, "ranks": [part_of(0.0)]}, iteration, complete=complete)
    assert history.load_latest()[0]["ranks"][1]["collector"]["obs"][0, 0] == 9.0


def test_a_single_rank_has_nothing_to_receive() -> None:
    parts = RankParts(Ranks())
    assert parts.receiver(1) is None
    parts.close()


def test_a_rank_leaves_only_when_a_slow_first_rank_has_its_part(
    pair: tuple[RankParts, RankParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = pair
    ready, send = threading.Event(), rank_parts.dist.send
    monkeypatch.setattr(rank_parts.dist, "send", lambda *message, **group: (ready.wait(30), send(*message, **group)))
    second.send(part_of(1.0), 8)
    second.close(0.01)
    assert second._thread is not None
    assert second._thread.is_alive(), "after a failure a rank does not wait for long"
    threading.Timer(0.2, ready.set).start()
    second.close(rank_parts.FINISH_S)
    assert not second._thread.is_alive()
