"""Rollouts of parallel envs: split at their ends, exact next observations, nothing lost or mixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import InputError
from fledge.replay import DictReplayBuffer
from tests.replay.counters import KEYS, Counters


def check_all(batch: dict[str, torch.Tensor]) -> None:
    """The next observation is one step later in the same episode of the same env, always."""
    assert torch.equal(batch["next_x"][:, :2], batch["x"][:, :2])
    assert torch.equal(batch["next_x"][:, 2], batch["x"][:, 2] + 1)
    assert torch.equal(batch["reward"], batch["action"].float())


@settings(max_examples=25, deadline=None)
@given(
    num_envs=st.integers(1, 5),
    pieces=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    segment=st.sampled_from([None, 1, 4, 7]),
    close=st.sampled_from(["exact", "plain", "leave"]),
    seed=st.integers(0, 1000),
)
def test_any_rollouts_become_exact_transitions(
    num_envs: int, pieces: list[int], ends: float, segment: int | None, close: str, seed: int
) -> None:
    envs = Counters(num_envs, seed, ends)
    with DictReplayBuffer(10_000, KEYS, segment_frames=segment) as buffer:
        flown = []
        for steps in pieces:
            rollout = envs.rollout(steps)
            buffer.add_rollout(rollout)
            flown.append(rollout)
        open_rows = int(buffer.open.count.sum())
        assert len(buffer) + open_rows == sum(pieces) * num_envs
        if close == "exact":
            buffer.flush({"x": envs.obs()})
            assert len(buffer) == sum(pieces) * num_envs
        elif close == "plain":
            running = int((buffer.open.count > 0).sum())
            buffer.flush()
            assert len(buffer) == sum(pieces) * num_envs - running
        if not len(buffer):
            return
        batch = buffer.get(np.arange(len(buffer)))
        check_all(batch)
        whole = torch.cat(flown)
        for name in ("terminated", "truncated"):
            assert int(batch[name].sum()) == int(whole[name].sum())
        names = {tuple(row) for row in batch["x"].int().tolist()}
        assert len(names) == len(buffer)  # none twice
        check_all(buffer.sample(16))
        if segment is not None:
            assert buffer.index.values.max() <= segment


def test_a_piecewise_rollout_gives_what_the_whole_gives() -> None:
    whole = Counters(3, 5, 0.1).rollout(40)
    got = []
    for cuts in ([40], [1] * 40, [7, 13, 20]):
        with DictReplayBuffer(1000, KEYS) as buffer:
            begin = 0
            for steps in cuts:
                buffer.add_rollout(whole[begin : begin + steps])
                begin += steps
            got.append(buffer.get(np.arange(len(buffer))))
    for other in got[1:]:
        assert all(torch.equal(got[0][k], other[k]) for k in got[0])


def test_mistakes_get_one_clear_sentence() -> None:
    envs = Counters(2, 0, 0.5)
    with DictReplayBuffer(1000, KEYS) as buffer:
        rollout = envs.rollout(20)
        with pytest.raises(InputError, match="lacks"):
            buffer.add_rollout(rollout.exclude("action"))
        with pytest.raises(InputError, match="final_obs"):
            buffer.add_rollout(rollout.exclude("final_obs"))
        assert buffer.open is None  # nothing of it was taken
    with DictReplayBuffer(50, ["x"]) as buffer, pytest.raises(InputError, match="split it into episodes"):
        buffer.add_rollout({"x": torch.zeros(3, 2)})
    with DictReplayBuffer(5, KEYS) as buffer, pytest.raises(InputError, match="segment_frames"):
        buffer.add_rollout(Counters(2, 0, 0.0).rollout(9))
    with DictReplayBuffer(50, KEYS) as buffer:
        buffer.add_rollout(Counters(2, 0, 0.1).rollout(3))
        with pytest.raises(InputError, match="3 envs"):
            buffer.add_rollout(Counters(3, 0, 0.1).rollout(3))
