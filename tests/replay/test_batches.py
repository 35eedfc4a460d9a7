"""Windows lie inside one episode, are exact, masked past its end, and all equally likely."""

from __future__ import annotations

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


def test_the_index_names_the_first_frame() -> None:
    with DictReplayBuffer(60, KEYS) as buffer:
        for number in range(4):  # one is evicted
            buffer.add(make_episode(number + 1, 20))
        batch = buffer.sample_sequences(8, 4)
        assert torch.equal(buffer.get(batch["index"])["id"], batch["id"][:, 0])
        with pytest.raises(InputError, match="at least 1"):
            buffer.sample_sequences(8, 0)
