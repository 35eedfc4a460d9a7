"""Images come back exactly, alone and as stacks; each is stored once; damaged ones are refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import FormatError
from fledge.replay import DictReplayBuffer
from fledge.replay.schema import KeySpec
from fledge.replay.stores.base import chunk_rows
from fledge.replay.stores.tiles import TileStore, find_stack
from fledge.replay.workers import Workers
from tests.replay.stores.plain_tiles import read_chunk

DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.float32}
KINDS = ["zeros", "bits", "sprites", "noise", "holes", "random"]


def images(kind: str, count: int, shape: tuple[int, ...], word: int, rng: np.random.Generator) -> np.ndarray:
    """Images [count, *shape] as words, of every kind that the codec treats differently."""
    most = 2 ** (8 * word) - 1
    still = rng.integers(0, min(most, 2**20), shape)
    if kind == "zeros":
        out = np.zeros((count, *shape), np.int64)
    elif kind == "bits":
        out = (rng.random((count, *shape)) < 0.2).astype(np.int64)
    elif kind == "random":
        out = rng.integers(0, most, (count, *shape), endpoint=True)
    else:
        out = np.repeat(still[None], count, 0)
        if kind == "sprites":
            for frame in out:
                flat = frame.reshape(-1)
                begin = rng.integers(flat.size)
                flat[begin : begin + 9] = rng.integers(0, most, endpoint=True)
        else:
            out = np.clip(out + rng.integers(-5, 6, out.shape), 0, most)
        if kind == "holes":
            out[rng.random(out.shape) < 0.02] = 0
    return out.astype(f"u{word}")


def stacks(planes: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Stacks of the last `count` planes, newest last, along the first or the last axis of a frame."""
    before = np.concatenate([planes[:1]] * (count - 1) + [planes])
    return np.ascontiguousarray(np.stack([before[k : k + len(planes)] for k in range(count)], axis))


def read(store: TileStore, episode: Any, row: Any, threads: int = 1) -> np.ndarray:
    return store.take(np.asarray(episode), np.asarray(row), Workers(threads))(store.keys[0], slice(None))


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    word=st.sampled_from([1, 2, 4]),
    shape=st.sampled_from([(5,), (8, 8), (9, 7), (6, 5, 3), (31, 33), (70, 3)]),
    rows=st.sampled_from([1, 4, 8]),
    count=st.sampled_from([1, 2, 4]),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chunks_say_what_the_format_says(
    kind: str, word: int, shape: tuple[int, ...], rows: int, count: int, last: bool, seed: int
) -> None:
    """The plain reader and the native one both return the frames, in any order, on any thread."""
    rng = np.random.default_rng(seed)
    frames = images(kind, 11, shape, word, rng)
    way = (1, 1, frames[0].size)
    if count > 1:
        cells = frames[0].size
        frames = stacks(frames, count, -1 if last else 1)
        way = (cells, count, 1) if last else (1, count, cells)
        frames[6] = images("random", 1, frames.shape[1:], word, rng)[0]  # a stack that does not continue
    store = TileStore("x", KeySpec(frames.shape[1:], DTYPES[word]), rows, way)
    encoded = store.encode({"x": frames})
    store.append(encoded)
    store.append(store.encode({"x": frames[:3]}))
    plain: list[np.ndarray] = []
    for a, b, held in zip(encoded.edges, encoded.edges[1:], chunk_rows(11, rows).tolist(), strict=False):
        plain += read_chunk(encoded.data[a:b].tobytes(), held, way, word, store.above)
    assert np.array_equal(np.stack(plain).reshape(frames.shape), frames)
    row = rng.permutation(np.arange(11).repeat(2))
    assert np.array_equal(read(store, 0 * row, row, 2), frames[row])
    assert np.array_equal(read(store, [1, 0, 1], [99, 99, 1]), frames[[2, 10, 1]])  # past the end is the last
    again = store.encode({"x": frames})
    assert np.array_equal(again.data, encoded.data)  # nothing but the frames decides the bytes


def test_each_image_of_a_stack_is_stored_once() -> None:
    planes = images("random", 64, (20, 20), 1, np.random.default_rng(0))
    sizes = []
    for axis, way in ((-1, (400, 4, 1)), (1, (1, 4, 400))):
        frames = stacks(planes, 4, axis)
        assert find_stack(KeySpec(frames.shape[1:], torch.uint8), frames) == way
        store = TileStore("x", KeySpec(frames.shape[1:], torch.uint8), 32, way)
        store.append(store.encode({"x": frames}))
        sizes.append(store.bytes_per_frame("x"))
    assert sizes[0] == sizes[1] < 400 * 1.25  # random bytes, once; and the first frame of a chunk completely


def test_stacks_of_colour_images_are_found() -> None:
    rng = np.random.default_rng(0)
    planes = images("random", 20, (8, 8, 3), 1, rng)
    before = np.concatenate([planes[:1]] * 3 + [planes])
    last = np.concatenate([before[k : k + 20] for k in range(4)], -1)  # [8, 8, 12]
    assert find_stack(KeySpec((8, 8, 12), torch.uint8), last) == (64, 4, 3)
    first = np.stack([before[k : k + 20] for k in range(4)], 1)  # [4, 8, 8, 3]
    assert find_stack(KeySpec((4, 8, 8, 3), torch.uint8), first) == (1, 4, 192)
    assert find_stack(KeySpec((8, 8, 3), torch.uint8), planes) is None
    assert find_stack(KeySpec((8, 8, 4), torch.uint8), np.zeros((9, 8, 8, 4), np.uint8)) is None  # nothing moves


def test_what_stands_still_costs_little_and_decodes_without_its_neighbours() -> None:
    still = np.random.default_rng(0).integers(0, 256, (84, 84), np.uint8)
    frames = np.repeat(still[None], 320, 0)
    frames[np.arange(320), np.arange(320) % 84, 3:11] = 255
    store = TileStore("x", KeySpec((84, 84), torch.uint8), 32, (1, 1, 7056))
    store.append(store.encode({"x": frames}))
    assert store.bytes_per_frame("x") < 84 * 84 / 32 * 1.1 + 40  # the reference of the chunk, and one sprite
    assert np.array_equal(read(store, [0, 0], [319, 17]), frames[[319, 17]])


KEYS = ["image", "id", "next_image"]


def episode(number: int, length: int) -> dict[str, np.ndarray]:
    """Arcade-like stacks; the first pixel of a plane is the number of its frame."""
    rng = np.random.default_rng(number)
    planes = images("sprites", length + 1, (40, 40), 1, rng)
    planes[:, 0, 0] = np.arange(length + 1) % 256
    planes[:, 0, 1] = number
    return {"image": stacks(planes, 4, -1), "id": 1000 * number + np.arange(length)}


@pytest.mark.parametrize("layout", ["frame", "chunk", "episode"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_buffer_of_stacks_stays_exact_when_it_wraps_around(layout: Any, prioritized: bool) -> None:
    episodes = {number: episode(number, 30 + 37 * number % 60) for number in range(12)}
    with DictReplayBuffer(200, KEYS, layout=layout, prioritized=prioritized, decode_threads=2) as buffer:
        for number, added in episodes.items():
            buffer.add(added)
            batch = buffer.sample(40)
            for b, identity in enumerate(batch["id"].tolist()):
                images_of, t = episodes[identity // 1000]["image"], identity % 1000
                assert number - 8 < identity // 1000 <= number
                assert np.array_equal(batch["image"][b], images_of[t])
                assert np.array_equal(batch["next_image"][b], images_of[t + 1])  # of its own episode, also at the end
        codec = buffer.stats()["keys"]["image"]["codec"]
        assert (codec == "tiles") == (layout != "episode")


def test_prioritised_images_are_sampled_by_priority() -> None:
    with DictReplayBuffer(200, KEYS, prioritized=True, alpha=1.0, seed=0) as buffer:
        for number in range(3):
            buffer.add(episode(number, 50))
        priority = np.where(np.arange(150) % 10 == 0, 9.0, 1.0)
        buffer.update_priorities(np.arange(150), priority)
        drawn = np.concatenate([buffer.sample(250)["id"].numpy() for _ in range(20)])
        counts = np.bincount(drawn // 1000 * 50 + drawn % 1000, minlength=150) / len(drawn)
        expected = priority / priority.sum()
        assert np.abs(counts - expected).max() < 6 * np.sqrt(expected.max() / len(drawn))
        assert (counts > 0).all()


def test_saved_stacks_continue() -> None:
    with DictReplayBuffer(200, KEYS) as one, DictReplayBuffer(200, KEYS, seed=9) as other:
        for number in range(5):
            one.add(episode(number, 60))
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        for buffer in (one, other):
            buffer.add(episode(7, 60))
        a, b = one.sample(64), other.sample(64)
        assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("threads", [1, 2])
def test_any_damage_is_told_or_changes_only_pixels(threads: int) -> None:
    """Bytes of chunks are not trusted: whatever they are, decoding stays inside them."""
    rng = np.random.default_rng(threads)
    spec = KeySpec((24, 24, 4), torch.uint8)
    frames = stacks(images("holes", 40, (24, 24), 1, rng), 4, -1)
    store = TileStore("x", spec, 8, (576, 4, 1))
    store.append(store.encode({"x": frames}))
    state = store.state()
    refused = 0
    for _ in range(300):
        blobs = {**state["blobs"], "segments": [s.copy() for s in state["blobs"]["segments"]]}
        data = blobs["segments"][0]
        data[rng.integers(0, 60) if rng.random() < 0.5 else rng.integers(len(data))] = rng.integers(256)
        try:
            TileStore("x", spec, 8, (576, 4, 1)).load({**state, "blobs": blobs})
        except FormatError:
            refused += 1
    assert refused > 60
    blobs = {**state["blobs"], "end": state["blobs"]["end"] - 1}
    with pytest.raises(FormatError, match="'x' with an invalid structure: it is damaged"):
        TileStore("x", spec, 8, (576, 4, 1)).load({**state, "blobs": blobs})


@pytest.mark.parametrize("stack", [None, [1, 1], [1, 4, 400.0], [400, 4, 2], [0, 4, 0], [-1, -4, 400], "x"])
def test_a_damaged_plan_of_stacks_is_refused(stack: Any) -> None:
    with DictReplayBuffer(200, KEYS) as buffer:
        buffer.add(episode(1, 60))
        state = copy.deepcopy(buffer.state_dict())
    row = next(row for row in state["plan"] if row["codec"] == "tiles")
    row["stack"] = stack
    with DictReplayBuffer(200, KEYS) as buffer, pytest.raises(FormatError, match="damaged"):
        buffer.load_state_dict(state)
