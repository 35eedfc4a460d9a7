"""SumTree against a plain array of priorities."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.replay import SumTree


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 40), data=st.data())
def test_a_sum_tree_agrees_with_a_plain_array(size: int, data: st.DataObject) -> None:
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 5))):
        slots = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=10)))
        values = np.array(data.draw(st.lists(st.integers(0, 100), min_size=len(slots), max_size=len(slots))), float)
        tree.update(slots, values)
        for slot, value in zip(slots, values, strict=True):
            plain[slot] = value
        assert tree.priorities.tolist() == plain.tolist()
        assert tree.total == plain.sum()
        if tree.total:
            queries = np.arange(tree.total)
            assert tree.find(queries).tolist() == np.searchsorted(np.cumsum(plain), queries, side="right").tolist()


def test_an_empty_slot_is_never_drawn() -> None:
    tree = SumTree(7)
    tree.update(np.array([2, 5]), np.array([0.1, 0.2]))
    found = tree.find(np.array([0.0, 0.1, 0.3, 0.5, tree.total]))  # at and past the end, too
    assert set(found.tolist()) <= {2, 5}
