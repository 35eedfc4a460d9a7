"""PrefixSum against a list, whatever is added, evicted and looked up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.replay import PrefixSum


def test_the_worked_example() -> None:
    sums = PrefixSum(10)
    for value in (3, 2, 4):
        sums.add(value)
    assert sums.total == 9
    assert sums.get_range_idx(4) == 1
    assert sums.get_range_relative_idx(4) == (1, 1)
    assert sums.evict() == 3
    assert sums.total == 6
    assert sums.get_range_relative_idx(4) == (1, 2)
    ranges, places = sums.get_range_relative_idx(np.array([0, 1, 2, 5]))
    assert ranges.tolist() == [0, 0, 1, 1]
    assert places.tolist() == [0, 1, 0, 3]


@settings(max_examples=60, deadline=None)
@given(
    max_len=st.integers(1, 12),
    moves=st.lists(st.one_of(st.integers(1, 9), st.just("evict")), max_size=80),
)
def test_any_moves_agree_with_a_list(max_len: int, moves: list[int | str]) -> None:
    sums, plain, gone = PrefixSum(max_len), [], 0
    for move in moves:
        if move == "evict":
            if plain:
                assert sums.evict() == plain[0]
                gone += plain.pop(0)
        else:
            assert sums.add(int(move)) == (len(plain) == max_len)
            plain.append(int(move))
            if len(plain) > max_len:
                gone += plain.pop(0)
        assert len(sums) == len(plain)
        assert sums.values.tolist() == plain
        assert (sums.total, sums.evicted_total) == (sum(plain), gone)
        pairs = [(i, k) for i, n in enumerate(plain) for k in range(n)]
        if pairs:
            ranges, places = sums.get_range_relative_idx(np.arange(len(pairs)))
            assert list(zip(ranges.tolist(), places.tolist(), strict=True)) == pairs
            assert sums.prefix_sum.tolist() == [0, *np.cumsum(plain).tolist()]


def test_memory_stays_with_what_is_kept() -> None:
    sums = PrefixSum(50)
    for _ in range(20_000):
        sums.add(3)
    assert len(sums._ends._data) <= 256


def test_wrong_calls_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        PrefixSum(0)
    sums = PrefixSum(3)
    with pytest.raises(InputError, match="empty"):
        sums.evict()
    with pytest.raises(InputError, match="at least 1"):
        sums.add(0)
    sums.add(2)
    with pytest.raises(InputError, match="0 to 1 exist"):
        sums.get_range_idx(2)
    with pytest.raises(InputError, match="integers"):
        sums.get_range_idx(np.array([0.5]))


def test_state_goes_there_and_back() -> None:
    one = PrefixSum(5)
    for value in (4, 1, 7, 2, 2, 9):
        one.add(value)
    other = PrefixSum(5)
    other.load_state_dict(one.state_dict())
    assert other.values.tolist() == one.values.tolist()
    assert other.evicted_total == one.evicted_total == 4
    with pytest.raises(InputError, match="5 ranges, but at most 2 fit"):
        PrefixSum(2).load_state_dict(one.state_dict())
    with pytest.raises(FormatError, match="damaged"):
        PrefixSum(9).load_state_dict({"values": np.array([3, 0]), "evicted_total": 0})
    assert other.values.tolist() == one.values.tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_prefix_sums_look_up_numbers_of_small_types(dtype: Any) -> None:
    ranges = PrefixSum(100)
    for _ in range(30):
        ranges.add(10)
    for _ in range(20):
        ranges.evict()
    found, offset = ranges.get_range_relative_idx(np.array([5, 60, 99], dtype))
    assert (found.tolist(), offset.tolist()) == ([0, 6, 9], [5, 0, 9])
    with pytest.raises(InputError, match="whole number"):
        ranges.add(2.5)  # type: ignore[arg-type]
