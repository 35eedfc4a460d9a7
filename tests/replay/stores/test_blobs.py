"""Blobs come back from wherever they lie, segments are filled to the brim, and a state is taken over without a copy."""

from __future__ import annotations

import ctypes

import numpy as np

from fledge.replay.packing.chunks import AHEAD
from fledge.replay.stores.blobs import BlobStore


def filled(count: int, rng: np.random.Generator) -> tuple[BlobStore, list[bytes]]:
    store, blobs = BlobStore(), [rng.bytes(int(n)) for n in rng.integers(0, 9_000, count)]
    for a in range(0, count, 7):  # several at a time, more than a segment holds
        part = blobs[a : a + 7]
        edges = np.cumsum([0, *(len(b) for b in part)])
        assert store.extend(np.frombuffer(b"".join(part), np.uint8), edges) == a
    return store, blobs


def at(store: BlobStore, numbers: np.ndarray, blobs: list[bytes]) -> list[bytes]:
    """Return the bytes at the blobs' addresses; the bytes behind them are read too."""
    found = [
        ctypes.string_at(int(a), len(blobs[n]) + AHEAD) for a, n in zip(store.addresses(numbers), numbers, strict=True)
    ]
    return [data[:-AHEAD] for data in found]


def test_blobs_come_back_by_view_by_address_and_joined() -> None:
    store, blobs = filled(50, np.random.default_rng(0))
    assert [bytes(store.view(n)) for n in range(50)] == blobs
    numbers = np.array([49, 0, 7, 7, 30])
    assert at(store, numbers, blobs) == [blobs[n] for n in numbers]
    data, begins = store.join(numbers)
    assert data == b"".join(blobs[n] for n in numbers)
    assert begins.tolist() == [0, *np.cumsum([len(blobs[n]) for n in numbers[:-1]]).tolist()]


def test_little_room_is_left_over() -> None:
    store, blobs = filled(2_000, np.random.default_rng(1))
    index = 3 * 8 * 1.25 * len(blobs)
    assert store.nbytes == sum(map(len, blobs))
    assert store.held_bytes < 1.08 * store.nbytes + index


def test_what_was_dropped_frees_segments_and_the_rest_stays() -> None:
    store, blobs = filled(400, np.random.default_rng(2))
    before = store.held_bytes
    store.drop(300)
    assert store.held_bytes < before / 2
    numbers = np.arange(300, 400)
    assert at(store, numbers, blobs) == blobs[300:]


def test_a_loaded_state_is_shared_and_never_written_to() -> None:
    store, blobs = filled(60, np.random.default_rng(3))
    state = store.state()
    for segment in state["segments"]:
        segment.flags.writeable = False
    other = BlobStore()
    other.load(state)
    assert other.extend(np.frombuffer(b"more", np.uint8), np.array([0, 4])) == 60
    assert at(other, np.arange(60), blobs) == blobs
    assert bytes(other.view(60)) == b"more"
    shared = [np.shares_memory(a, b) for a, b in zip(other.state()["segments"], state["segments"], strict=False)]
    assert all(shared[:-1])
