"""Prioritised draws: proportions, weights, updates of what is kept and of what is gone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fledge.core.errors import InputError
from fledge.replay import DictReplayBuffer
from tests.replay.plain import KEYS, PlainBuffer, check_batch, make_episode


def test_draws_follow_priorities_and_weights_undo_it() -> None:
    with DictReplayBuffer(40, KEYS, prioritized=True, alpha=1.0, beta=1.0) as buffer:
        for number in range(5):  # the first is evicted
            buffer.add(make_episode(number + 1, 10))
        begin = buffer.index.evicted_total
        priority = 1.0 + np.arange(40) % 4
        buffer.update_priorities(np.arange(begin, begin + 40), priority)
        drawn = torch.cat([buffer.sample(100)["index"] for _ in range(50)]).numpy() - begin
        share = np.bincount(drawn, minlength=40) / 5000
        assert np.abs(share / (priority / priority.sum()) - 1).max() < 0.4
        assert abs(share[priority == 4].sum() - 0.4) < 0.02
        batch = buffer.sample(100)
        expected = 1 / priority[batch["index"].numpy() - begin]
        assert np.allclose(batch["weight"], expected / expected.max(), rtol=1e-5)


def test_new_transitions_get_the_largest_priority_and_old_indices_are_passed_over() -> None:
    plain = PlainBuffer(40)
    with DictReplayBuffer(40, KEYS, prioritized=True, alpha=1.0) as buffer:
        buffer.add(make_episode(1, 20))
        plain.add(make_episode(1, 20))
        old = buffer.sample(20)
        buffer.update_priorities(old["index"], torch.full((20,), 50.0))
        for number in (2, 3):
            buffer.add(make_episode(number, 20))
            plain.add(make_episode(number, 20))
        assert buffer.priorities is not None
        assert buffer.priorities.tree.priorities.tolist() == [50.0] * 40
        buffer.update_priorities(old["index"], torch.zeros(20))  # all evicted
        assert buffer.priorities.tree.total == 40 * 50.0
        check_batch(buffer.sample(30), plain)
        with pytest.raises(InputError, match="finite"):
            buffer.update_priorities(buffer.sample(2)["index"], torch.tensor([1.0, float("nan")]))
        with pytest.raises(InputError, match="2 indices"):
            buffer.update_priorities(buffer.sample(2)["index"], torch.ones(3))
