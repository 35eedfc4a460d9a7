"""Threads: none outlives the buffer, failures reach the caller with their cause, results do not depend on them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from fledge.core.errors import ConfigError, FormatError, StorageError
from fledge.replay import DictReplayBuffer
from fledge.replay.stores.block import BlockStore
from fledge.replay.workers import Workers
from tests.replay.plain import KEYS, make_episode


def replay_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("fledge-replay")]


def filled(threads: int, layout: str = "episode") -> DictReplayBuffer:
    buffer = DictReplayBuffer(500, KEYS, layout=layout, decode_threads=threads, seed=1)  # type: ignore[arg-type]
    for number in range(6):
        buffer.add(make_episode(number + 1, 40))
    return buffer


def test_threads_live_as_long_as_the_buffer() -> None:
    others = set(replay_threads())  # of buffers that are not collected yet
    buffer = filled(3)
    seen: set[threading.Thread] = set()
    for _ in range(20):
        buffer.sample(64)
        seen |= set(replay_threads()) - others
    assert 1 <= len(seen) <= 2  # the caller is the third; the same ones, not new ones per batch
    assert all(thread.is_alive() for thread in seen)
    buffer.close()
    assert not any(thread.is_alive() for thread in seen)


def test_a_buffer_that_is_forgotten_leaves_no_thread() -> None:
    others = set(replay_threads())
    buffer = filled(2)
    buffer.sample(64)
    own = set(replay_threads()) - others
    assert own
    del buffer
    gc.collect()
    for thread in own:
        thread.join(10)
        assert not thread.is_alive()


def test_a_program_that_never_closes_its_buffer_ends() -> None:
    code = (
        "import torch\nfrom fledge.replay import DictReplayBuffer\n"
        "b = DictReplayBuffer(99, ['x'], layout='episode', decode_threads=2)\n"
        "[b.add({'x': torch.zeros(20, 50)}) for _ in range(4)]\nb.sample(32)\nprint('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_draws_do_not_depend_on_threads() -> None:
    for layout in ("chunk", "episode"):
        batches = []
        for threads in (1, 3):
            with filled(threads, layout) as buffer:
                batches.append([buffer.sample(200) for _ in range(2)])
        for a, b in zip(*batches, strict=True):
            assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("fails_at", [0, 3])  # on the caller's thread, and on another
def test_a_failure_in_decoding_reaches_the_caller(fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = BlockStore.decode

    def broken(store: BlockStore, number: int, *rest: Any) -> object:
        if number == fails_at:
            raise MemoryError("no more")
        return decode(store, number, *rest)

    with filled(2) as buffer:
        monkeypatch.setattr(BlockStore, "decode", broken)
        with pytest.raises(StorageError, match="no more") as caught:
            buffer.sample(200)
        assert isinstance(caught.value.__cause__, MemoryError)
        monkeypatch.undo()
        assert len(buffer.sample(8)["id"]) == 8  # and the buffer still works


def test_a_damaged_chunk_is_told() -> None:
    with filled(2) as buffer:
        store = next(s for s in buffer.stores if isinstance(s, BlockStore) and s.codec != "raw")
        next(iter(store.blobs._segments.values()))[:] = 255
        with pytest.raises(FormatError, match=r"damaged|torn"):
            buffer.sample(100)


def test_workers_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Workers(0)
    workers = Workers(2)
    workers.close()
    with pytest.raises(StorageError, match="closed"):
        workers.run([lambda: None])
