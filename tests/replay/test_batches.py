"""Windows are of one episode, exact, masked outside of it, and all equally likely; padded ones cover it evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import InputError
from fledge.replay import DictReplayBuffer
from fledge.replay.batches import sequence_starts
from tests.replay.plain import KEYS, OBS, PlainBuffer, assert_bits_equal, make_episode


@pytest.mark.parametrize("layout", ["frame", "chunk", "episode"])
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=6), window=st.integers(1, 50), seed=st.integers(0, 2**31)
)
def test_windows_are_consecutive_frames_of_one_episode(layout: str, lengths: list[int], window: int, seed: int) -> None:
    plain = PlainBuffer(100)
    with DictReplayBuffer(100, KEYS, layout=layout, seed=seed) as buffer:
        for number, length in enumerate(lengths):
            buffer.add(make_episode(number + 1, length))
            plain.add(make_episode(number + 1, length))
        batch = buffer.sample_sequences(5, window)
    assert batch["mask"].shape == (5, window)
    for b in range(5):
        episode, t = plain.find(int(batch["id"][b, 0]))
        valid = min(window, len(episode["id"]) - t)
        assert valid == min(window, len(episode["id"]))  # a window is short only where the episode is
        assert batch["mask"][b].tolist() == [i < valid for i in range(window)]
        for name in ("id", "action", "reward", "terminated", *OBS):
            assert_bits_equal(batch[name][b, :valid], episode[name][t : t + valid])
            assert not batch[name][b, valid:].any()
        for name in OBS:
            assert_bits_equal(batch[f"next_{name}"][b, :valid], episode[name][t + 1 : t + 1 + valid])


def test_every_window_is_equally_likely() -> None:
    lengths = np.array([5, 2, 8])  # 3 + 1 + 6 windows of 3
    episode, start = sequence_starts(lengths, 3, 20_000, np.random.default_rng(0))
    pairs, counts = np.unique(np.stack([episode, start]), axis=1, return_counts=True)
    assert pairs.shape[1] == 10
    assert np.abs(counts / 2000 - 1).max() < 0.15


@pytest.mark.parametrize("layout", ["frame", "chunk", "episode"])
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=6), window=st.integers(1, 50), seed=st.integers(0, 2**31)
)
def test_padded_windows_are_exact_and_empty_outside_the_episode(
    layout: str, lengths: list[int], window: int, seed: int
) -> None:
    plain = PlainBuffer(100)
    with DictReplayBuffer(100, KEYS, layout=layout, seed=seed) as buffer:
        for number, length in enumerate(lengths):
            buffer.add(make_episode(number + 1, length))
            plain.add(make_episode(number + 1, length))
        batch = buffer.sample_sequences(5, window, ends="pad")
        first = buffer.get(batch["index"])["id"]
    for b in range(5):
        places = batch["mask"][b].nonzero()[:, 0]
        assert len(places)  # no window without a transition
        assert torch.equal(places, torch.arange(int(places[0]), int(places[-1]) + 1))  # in one piece
        episode, t = plain.find(int(first[b]))
        count = len(places)
        assert places[0] == 0 or t == 0  # padded in front only before the episode's first
        assert places[-1] == window - 1 or t + count == len(episode["id"])
        for name in ("id", "action", "reward", "terminated", *OBS):
            assert_bits_equal(batch[name][b, places], episode[name][t : t + count])
            assert not batch[name][b, ~batch["mask"][b]].any()
        for name in OBS:
            assert_bits_equal(batch[f"next_{name}"][b, places], episode[name][t + 1 : t + 1 + count])


class Every:
    """Stands for a generator, and draws every number once."""

    def integers(self, low: int, high: int, count: int) -> np.ndarray:
        assert count == high - low
        return np.arange(low, high)


def covered(lengths: list[int], length: int, windows: int, ends: Any) -> list[list[int]]:
    """In how many of all windows each transition of each episode is."""
    found = [[0] * n for n in lengths]
    starts = sequence_starts(np.array(lengths), length, windows, Every(), ends)  # type: ignore[arg-type]
    for episode, start in zip(*starts, strict=True):
        for t in range(max(start, 0), min(start + length, lengths[episode])):
            found[episode][t] += 1
    return found


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5), length=st.integers(1, 12))
def test_padded_windows_cover_every_transition_equally_often(lengths: list[int], length: int) -> None:
    windows = sum(n + length - 1 for n in lengths)
    assert covered(lengths, length, windows, "pad") == [[length] * n for n in lengths]


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5), length=st.integers(1, 12))
def test_windows_inside_cover_the_ends_less_as_documented(lengths: list[int], length: int) -> None:
    windows = sum(max(n - length + 1, 1) for n in lengths)
    expected = [[min(t + 1, n - t, length, max(n - length, 0) + 1) for t in range(n)] for n in lengths]
    for row in (row for row in expected if len(row) < length):
        row[:] = [1] * len(row)  # a short episode is one window
    assert covered(lengths, length, windows, "inside") == expected


def test_draws_of_padded_windows_are_uniform_over_transitions() -> None:
    with DictReplayBuffer(100, ["id"], seed=3) as buffer:
        for begin, length in ((0, 5), (5, 2), (7, 23)):
            buffer.add({"id": np.arange(begin, begin + length)})
        batch = buffer.sample_sequences(30_000, 6, ends="pad")
        counts = np.bincount(batch["id"][batch["mask"]], minlength=30)
        assert np.abs(counts / counts.mean() - 1).max() < 0.06  # five standard deviations
        with pytest.raises(InputError, match="ends is 'both', but must be one of inside, pad"):
            buffer.sample_sequences(8, 4, ends="both")  # type: ignore[arg-type]


def test_the_index_names_the_first_frame() -> None:
    with DictReplayBuffer(60, KEYS) as buffer:
        for number in range(4):  # one is evicted
            buffer.add(make_episode(number + 1, 20))
        batch = buffer.sample_sequences(8, 4)
        assert torch.equal(buffer.get(batch["index"])["id"], batch["id"][:, 0])
        with pytest.raises(InputError, match="at least 1"):
            buffer.sample_sequences(8, 0)
