"""Packed chunks give back every bit of any table, row by row, and hostile ones are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fledge.replay.packing import chunks as packing
from fledge.replay.packing.words import FLOAT
from fledge.replay.stores.base import chunk_rows
from fledge.replay.workers import Workers

EDGES = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0x7FC00001, 0xFF800000, 0x3F800000]
WORDS = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**32 - 1), st.integers(0, 300))


def unpack(packed: np.ndarray, offsets: np.ndarray, kinds: np.ndarray, spans: np.ndarray, out: np.ndarray) -> None:
    """Rows of chunks that lie one after the other, `offsets` in words."""
    unpack_with(Workers(1), packed, offsets, kinds, spans, out)


def unpack_with(workers: Workers, packed: np.ndarray, offsets: np.ndarray, *rest: np.ndarray) -> None:
    words = np.append(packed, np.zeros(packing.AHEAD // 4, np.uint32))
    addresses = (words.ctypes.data + 4 * np.asarray(offsets)).astype(np.uint64)
    kinds, spans, out = rest
    packing.unpack(addresses, kinds, np.asarray(spans, np.int32), out, workers)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    rows, columns = draw(st.integers(1, 70)), draw(st.integers(1, 40))
    step = draw(st.integers(1, packing.MAX_ROWS))
    table = draw(hnp.arrays(np.uint32, (rows, columns), elements=WORDS, fill=st.just(0)))
    if draw(st.booleans()):  # ramps: differences and differences of differences
        table += (np.arange(rows, dtype=np.uint32) ** draw(st.integers(0, 2)))[:, None] * draw(
            st.integers(0, 2**32 - 1)
        )
    kinds = draw(hnp.arrays(np.int32, columns, elements=st.integers(0, 2)))
    return table, kinds, step


@settings(max_examples=120, deadline=None)
@given(case=tables(), data=st.data())
def test_any_row_of_any_table_comes_back(case: tuple[np.ndarray, np.ndarray, int], data: st.DataObject) -> None:
    table, kinds, step = case
    counts = chunk_rows(len(table), step)
    packed = packing.pack(table, kinds, counts)
    assert packing.check(packed.words, packed.offsets, counts, len(kinds))
    chunk = data.draw(st.integers(0, len(counts) - 1))
    first = data.draw(st.integers(0, int(counts[chunk]) - 1))
    number = data.draw(st.integers(1, int(counts[chunk]) - first))
    out = np.zeros((number + 1, len(kinds)), np.uint32)
    spans = np.array([[counts[chunk], first, number, 1]])
    unpack(packed.words, packed.offsets[chunk : chunk + 1], kinds, spans, out)
    begin = chunk * step + first
    assert np.array_equal(out[1:], table[begin : begin + number])
    assert not out[0].any()


def test_zeros_cost_a_bit_and_slow_numbers_little() -> None:
    kinds = np.full(64, FLOAT, np.int32)
    assert packing.pack(np.zeros((16, 64), np.uint32), kinds, np.array([16])).words.nbytes == 8
    slow = (1 + 1e-4 * np.arange(16, dtype=np.float32))[:, None].repeat(64, 1)
    packed = packing.pack(slow.view(np.uint32), kinds, np.array([16]))
    assert packed.words.nbytes < slow.nbytes / 4


def beams(rows: int, columns: int) -> np.ndarray:
    """4 - distance of beams one above the other that hit the same wall, some rows of which hit nothing."""
    near = 2.5 + np.cumsum(np.random.default_rng(0).normal(0, 0.05, rows)).astype(np.float32)
    found = np.float32(4) - near[:, None] / np.cos(np.linspace(0, 0.4, columns)).astype(np.float32)
    return np.where(np.arange(rows)[:, None] % 5 == 0, np.float32(0), found).astype(np.float32)


def test_columns_in_a_fixed_ratio_cost_little_more_than_one() -> None:
    table = beams(16, 12)
    kinds = np.full(12, FLOAT, np.int32)
    packed = packing.pack(np.ascontiguousarray(table.view(np.uint32)), kinds, np.array([16]))
    assert packed.column_bits[1:].mean() < 0.5 * packed.column_bits[0]
    assert packing.check(packed.words, packed.offsets, np.array([16]), 12)
    out = np.zeros((7, 12), np.uint32)
    unpack(packed.words, packed.offsets[:1], kinds, np.array([[16, 4, 7, 0]]), out)
    assert np.array_equal(out.view(np.float32), table[4:11])


@settings(max_examples=120, deadline=None)
@given(
    slope=st.floats(-5, 5, width=32),
    height=st.floats(-100, 100, width=32),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e30]),
    odd=st.sampled_from([0.0, -0.0, np.nan, np.inf, 1e-42]),
    seed=st.integers(0, 2**16),
)
def test_lines_of_any_slope_and_size_come_back(
    slope: float, height: float, scale: float, odd: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first = rng.normal(size=16).astype(np.float32)
    table = np.stack([first, slope * first + height, first, rng.normal(size=16)], 1).astype(np.float32) * np.float32(
        scale
    )
    table[rng.integers(0, 16, 3), rng.integers(0, 4, 3)] = odd
    words, kinds = np.ascontiguousarray(table).view(np.uint32), np.full(4, FLOAT, np.int32)
    packed = packing.pack(words, kinds, np.array([8, 8]))
    assert packing.check(packed.words, packed.offsets, np.array([8, 8]), 4)
    out = np.zeros_like(words)
    unpack(packed.words, packed.offsets[:2], kinds, np.array([[8, 0, 8, 0], [8, 0, 8, 8]]), out)
    assert np.array_equal(out, words)


def test_a_first_column_that_follows_another_fails_the_check() -> None:
    line = np.zeros(8, np.uint32)
    line[0] = 1 | (3 << 6 << 1)  # one column, not zero, width 0, order 3
    assert not packing.check(line[:3], np.array([0, 3]), np.array([8]), 1)


def test_noise_takes_hardly_more_than_raw() -> None:
    noise = np.random.default_rng(0).integers(0, 2**32, (16, 64), dtype=np.uint32)
    packed = packing.pack(noise, np.zeros(64, np.int32), np.array([16]))
    assert packed.words.nbytes < 1.1 * noise.nbytes


@settings(max_examples=150, deadline=None)
@given(
    words=hnp.arrays(np.uint32, st.integers(0, 40), elements=WORDS), columns=st.integers(1, 50), rows=st.integers(1, 32)
)
def test_check_never_reads_beyond_its_chunk(words: np.ndarray, columns: int, rows: int) -> None:
    offsets = np.array([0, len(words)])
    sound = packing.check(words, offsets, np.array([rows]), columns)
    if sound:  # then decoding stays inside, too
        out = np.zeros((rows, columns), np.uint32)
        unpack(words, np.zeros(1, np.int64), np.zeros(columns, np.int32), np.array([[rows, 0, rows, 0]]), out)


def test_a_cut_or_stretched_chunk_fails_the_check() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 1000, (16, 20), dtype=np.uint32)
    packed = packing.pack(table, np.zeros(20, np.int32), np.array([16]))
    longer = np.append(packed.words, np.zeros(1, np.uint32))
    for words in (packed.words[:-1], longer):
        assert not packing.check(words, np.array([0, len(words)]), np.array([16]), 20)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_result_does_not_depend_on_threads(threads: int) -> None:
    rng = np.random.default_rng(1)
    table = rng.integers(0, 50, (16 * 200, 5), dtype=np.uint32)
    counts, kinds = np.full(200, 16), np.zeros(5, np.int32)
    packed = packing.pack(table, kinds, counts)
    spans = np.stack([counts, 0 * counts, counts, 16 * np.arange(200)], 1)
    out = np.zeros_like(table)
    workers = Workers(threads)
    unpack_with(workers, packed.words, packed.offsets[:-1], kinds, spans, out)
    workers.close()
    assert np.array_equal(out, table)
