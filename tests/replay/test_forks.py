"""Other processes: a forked child, a DataLoader's workers and a copy are buffers of their own, and none of them hangs."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from fledge.core.errors import StorageError
from fledge.replay import DictReplayBuffer, KeySpec, forks
from tests.replay.forking import in_child
from tests.replay.plain import KEYS, PlainBuffer, check_batch, everything, make_episode

LAYOUTS = ["frame", "chunk", "episode"]
BATCH = 1024  # enough for every store to share the work between threads
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def filled(layout: str = "chunk", **settings: Any) -> DictReplayBuffer:
    buffer = DictReplayBuffer(500, KEYS, layout=layout, decode_threads=3, seed=1, **settings)  # type: ignore[arg-type]
    for number in range(6):
        buffer.add(make_episode(number + 1, 40))
    return buffer


def plain() -> PlainBuffer:
    model = PlainBuffer(500)
    for number in range(6):
        model.add(make_episode(number + 1, 40))
    return model


class Batches(IterableDataset):  # type: ignore[type-arg]
    """Batches of a buffer, as people wrap one for a DataLoader."""

    def __init__(self, buffer: DictReplayBuffer, count: int) -> None:
        self.buffer, self.count = buffer, count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(self.count):
            yield self.buffer.sample(8)


def sampled(buffer: DictReplayBuffer) -> None:
    check_batch(buffer.sample(BATCH), plain())


# ---- fork ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_forked_child_samples_adds_and_closes(layout: str) -> None:
    buffer = filled(layout)
    buffer.sample(BATCH)  # the decoding threads are there, in this process only

    def work() -> int:
        sampled(buffer)
        buffer.add(make_episode(7, 40))
        assert buffer.sample_sequences(BATCH, 8)["mask"].all()
        buffer.close()
        return buffer.num_episodes

    assert in_child(work) == 0
    assert buffer.num_episodes == 6  # what the child did, stayed there
    sampled(buffer)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_child_forked_while_other_threads_sample_and_add_gets_a_whole_buffer(layout: str) -> None:
    buffer, stop = filled(layout), threading.Event()

    def busy(call: Callable[[], Any]) -> None:
        while not stop.is_set():
            call()

    def check() -> bool:
        batch = buffer.sample(64)
        lengths = [len(store.length) for store in buffer.stores]
        assert lengths == [len(buffer.index)] * len(lengths)
        seeds = (batch["lidar"][:, 0] - batch["id"] % 1000) / 1000  # every frame names its episode
        assert torch.equal(seeds, batch["id"] // 1000)
        return True

    calls = (lambda: buffer.sample(64), lambda: buffer.add(make_episode(9, 40)))
    threads = [threading.Thread(target=busy, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        assert all(in_child(check) for _ in range(10))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_n_step_batches_do_not_need_torch_s_threads() -> None:
    """Torch's OpenMP threads are gone in a child, and it would wait for them: large batches are summed without."""
    buffer = DictReplayBuffer(500, KEYS, n_step=5, gamma=0.9)
    buffer.add(make_episode(1, 200))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (torch.ones(1000, 1000) + 1).sum()  # the parent has them
        assert in_child(lambda: len(buffer.sample(40_000)["reward"])) == 40_000
    finally:
        torch.set_num_threads(threads)


def test_ragged_masks_do_not_need_torch_s_threads() -> None:
    buffer = DictReplayBuffer(500, {"nodes": KeySpec((64, 1), torch.float32, ragged=True)})
    buffer.add({"nodes": [np.ones((k % 64 + 1, 1), np.float32) for k in range(100)]})
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (torch.ones(1000, 1000) + 1).sum()
        assert in_child(lambda: list(buffer.sample(2000)["nodes_mask"].shape)) == [2000, 64]
    finally:
        torch.set_num_threads(threads)


def test_children_draw_differently_and_by_the_seed_alone() -> None:
    seen = []
    for _ in range(2):
        forks._forks = 0
        buffer = filled()
        children = [in_child(lambda b=buffer: b.sample(16)["index"].tolist()) for _ in range(2)]
        seen.append([*children, buffer.sample(16)["index"].tolist()])
    assert seen[0] == seen[1]
    assert len({tuple(draws) for draws in seen[0]}) == 3
    assert seen[0][-1] == filled().sample(16)["index"].tolist()  # the parent's draws do not know of children


def test_after_a_fork_other_threads_get_at_the_buffer() -> None:
    buffer, free = filled(), list[bool]()
    in_child(lambda: 0)
    assert not forks._held  # nothing is kept alive
    thread = threading.Thread(target=lambda: free.append(buffer.lock.acquire(timeout=60)))
    thread.start()
    thread.join()
    assert free == [True]


# ---- DataLoader and multiprocessing, by every way of starting ----------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_dataloader_s_workers_sample_and_draw_differently(method: str) -> None:
    buffer = filled("episode")
    buffer.sample(BATCH)
    loader = DataLoader(Batches(buffer, 3), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120)
    batches = list(loader)
    assert len(batches) == 6
    for batch in batches:
        check_batch(batch, plain())
    assert len({tuple(batch["index"].tolist()) for batch in batches}) == 6


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_samples(method: str) -> None:
    buffer = filled()
    buffer.sample(BATCH)
    process = multiprocessing.get_context(method).Process(target=sampled, args=(buffer,))
    process.start()
    process.join(120)
    ended = process.exitcode
    process.kill()
    assert ended == 0


# ---- copies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_is_whole_goes_on_alike_and_shares_nothing(layout: str, way: Callable[[Any], Any]) -> None:
    buffer = filled(layout, prioritized=True, alpha=0.7)
    buffer.update_priorities(np.arange(40), np.arange(40.0))
    other = way(buffer)
    assert other.lock is not buffer.lock
    for _ in range(3):
        one, two = buffer.sample(32), other.sample(32)
        assert all(torch.equal(one[key], two[key]) for key in one)
    other.add(make_episode(8, 40))
    other.update_priorities(np.arange(40), np.zeros(40))
    assert (len(buffer), len(other)) == (240, 280)
    for number in range(20):  # evicts all, and fills up the memory that both began with
        buffer.add(make_episode(20 + number, 40))
    assert other.get(np.arange(240))["id"].tolist() == everything(filled(layout))["id"].tolist()
    buffer.close()
    check_batch(other.get(np.arange(240)), plain())


def test_an_empty_buffer_without_keys_is_copied_too() -> None:
    other = copy.deepcopy(DictReplayBuffer(10))
    other.add({"x": np.arange(3)})
    assert other.get([2])["x"].tolist() == [2]


def test_open_episodes_are_copied_too() -> None:
    buffer = DictReplayBuffer(100, ["x"], segment_frames=4)
    buffer.add_rollout({"x": np.arange(6).reshape(3, 2), "done": np.zeros((3, 2), bool)})
    other = pickle.loads(pickle.dumps(buffer))
    buffer.add_rollout({"x": np.zeros((3, 2), int), "done": np.zeros((3, 2), bool)})
    assert other.flush() == 2
    assert other.get(np.arange(6))["x"].tolist() == [0, 2, 4, 1, 3, 5]


class Named(DictReplayBuffer):
    """A buffer of a user, with more to it."""

    def __init__(self, name: str) -> None:
        super().__init__(100, ["x"])
        self.name = name


def test_a_subclass_keeps_its_own() -> None:
    other = pickle.loads(pickle.dumps(Named("mine")))
    assert (type(other), other.name) == (Named, "mine")


def test_a_closed_buffer_is_not_copied() -> None:
    buffer = filled()
    buffer.close()
    with pytest.raises(StorageError, match="closed"):
        copy.deepcopy(buffer)
