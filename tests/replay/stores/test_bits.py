"""Frames of bits come back exactly, whatever their size, and damaged ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import FormatError
from fledge.replay import DictReplayBuffer
from fledge.replay.schema import KeySpec
from fledge.replay.stores.bits import BitStore
from fledge.replay.workers import Workers

SHAPES = [(224, 224), (1, 64, 64), (33,), (5, 7), (3, 32), (84, 84), (2048,)]


def store_of(frames: np.ndarray) -> BitStore:
    store = BitStore("map", KeySpec(frames.shape[1:], torch.uint8))
    store.append(store.encode({"map": frames}))
    return store


@settings(max_examples=60, deadline=None)
@given(shape=st.sampled_from(SHAPES), share=st.sampled_from([0.0, 0.001, 0.3, 1.0]), seed=st.integers(0, 99))
def test_any_frame_comes_back(shape: tuple[int, ...], share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = (rng.random((6, *shape)) < share).astype(np.uint8)
    if seed % 3 == 0:
        frames[2].reshape(-1)[rng.integers(frames[2].size)] = 200  # not a bit: this frame is stored as it is
    store = store_of(frames)
    store.append(store.encode({"map": frames[::-1]}))
    row = np.array([5, 0, 2, 2, 9, 3])
    got = store.take(np.array([0, 0, 0, 1, 1, 1]), row, Workers(2))("map", slice(None))
    assert np.array_equal(got[:3], frames[row[:3]])
    assert np.array_equal(got[3:], frames[::-1][[2, 5, 3]])  # past the end is the last


def test_of_a_solid_thing_only_the_outline_is_kept() -> None:
    frames = np.zeros((1, 224, 224), np.uint8)
    frames[0, 50:150, 60:180] = 1
    assert store_of(frames).bytes_per_frame("map") < 100
    assert store_of(np.zeros_like(frames)).bytes_per_frame("map") == 17  # level 3, and its length


def test_a_buffer_puts_occupancy_maps_here_and_restores_them() -> None:
    rng = np.random.default_rng(0)
    maps = np.repeat(np.repeat(rng.random((21, 28, 28)) < 0.1, 8, 1), 8, 2).astype(np.uint8)
    buffer = DictReplayBuffer(100, ["map", "next_map"])
    buffer.add({"map": maps})
    assert buffer.stats()["keys"]["map"]["codec"] == "bits"
    other = DictReplayBuffer(100, ["map", "next_map"])
    other.load_state_dict(buffer.state_dict())
    batch = other.get(np.arange(20))
    assert np.array_equal(batch["map"], maps[:20])
    assert np.array_equal(batch["next_map"], maps[1:])


@pytest.mark.parametrize("damage", ["short", "long", "size", "level 3"])
def test_damaged_frames_are_refused(damage: str) -> None:
    frames = (np.random.default_rng(0).random((30, 64, 64)) < 0.1).astype(np.uint8)
    store = store_of(frames)
    state = store.state()
    blobs = {k: (np.copy(v) if isinstance(v, np.ndarray) else v) for k, v in state["blobs"].items()}
    blobs["segments"] = [np.copy(s) for s in blobs["segments"]]
    if damage == "size":
        blobs["segments"][0][0] ^= 1
    elif damage == "level 3":
        blobs["segments"][0][4 * 8] ^= 1
    else:
        blobs["end"][1] += -4 if damage == "short" else 4
        blobs["begin"][2] = blobs["end"][1]
    with pytest.raises(FormatError, match="damaged"):
        BitStore("map", KeySpec((64, 64), torch.uint8)).load({**state, "blobs": blobs})
    store.load(state)
