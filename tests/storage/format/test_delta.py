"""Differences give back every bit, and small changes are small numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fledge.storage.format import codecs
from fledge.storage.format.leaves import WORDS


@pytest.mark.parametrize("word", [1, 2, 4, 8])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_difference_gives_back_any_bits(word: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 40))
    old, new = (data.draw(hnp.arrays(WORDS[word], size)).view(np.uint8) for _ in range(2))
    assert np.array_equal(codecs.apply_difference(codecs.difference(new, old, word), old, word), new)


def test_a_small_change_is_a_small_number_whichever_its_sign() -> None:
    old = np.array([10, 10, 10], np.uint32)
    new = np.array([11, 9, 10], np.uint32)
    assert codecs.difference(new.view(np.uint8), old.view(np.uint8), 4).view(np.uint32).tolist() == [2, 1, 0]
