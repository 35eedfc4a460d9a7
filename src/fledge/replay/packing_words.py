"""Warp functions on words: ordering, zig-zag, widths, bits in a run of words. Importing this starts Warp, quietly."""
# mypy: ignore-errors
# (annotations of kernels are no types)

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import warp as wp


@contextlib.contextmanager
def _quiet_native_stderr() -> Iterator[None]:
    """Hide what native code prints: without a GPU, Warp's library warns on stderr when it starts."""
    sys.stderr.flush()
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


wp.config.log_level = wp.LOG_ERROR
wp.set_module_options({"enable_backward": False})
with _quiet_native_stderr():
    wp.init()

UNSIGNED, SIGNED, FLOAT = 0, 1, 2  # kinds of a column: how its words are ordered
TOP = wp.constant(wp.uint32(0x80000000))
ONE = wp.constant(wp.uint32(1))
ZERO = wp.constant(wp.uint32(0))
ALL = wp.constant(wp.uint32(0xFFFFFFFF))


@wp.func
def to_ordered(word: wp.uint32, kind: wp.int32) -> wp.uint32:
    """Word whose unsigned order is the numbers' order, so that neighbours in value are near as integers."""
    if kind == 0:
        return word
    if kind == 2 and (word & TOP) != ZERO:
        return ~word
    return word ^ TOP


@wp.func
def from_ordered(word: wp.uint32, kind: wp.int32) -> wp.uint32:
    if kind == 0:
        return word
    if kind == 2 and (word & TOP) == ZERO:
        return ~word
    return word ^ TOP


@wp.func
def fold(gap: wp.uint32) -> wp.uint32:
    """Zig-zag: small differences of either sign become small numbers (modulo 2^32)."""
    if (gap & TOP) != ZERO:
        return ~(gap << ONE)
    return gap << ONE


@wp.func
def unfold(code: wp.uint32) -> wp.uint32:
    if (code & ONE) != ZERO:
        return ~(code >> ONE)
    return code >> ONE


@wp.func
def width_of(word: wp.uint32) -> wp.int32:
    width = wp.int32(0)
    rest = word
    while rest != ZERO:
        rest = rest >> ONE
        width = width + 1
    return width


@wp.func
def ones(width: wp.int32) -> wp.uint32:
    if width >= 32:
        return ALL
    return (ONE << wp.uint32(width)) - ONE


@wp.func
def count_ones(word: wp.uint32) -> wp.int32:
    x = word - ((word >> ONE) & wp.uint32(0x55555555))
    x = (x & wp.uint32(0x33333333)) + ((x >> wp.uint32(2)) & wp.uint32(0x33333333))
    x = (x + (x >> wp.uint32(4))) & wp.uint32(0x0F0F0F0F)
    return wp.int32((x * wp.uint32(0x01010101)) >> wp.uint32(24))


@wp.func
def read_bits(words: wp.array(dtype=wp.uint32), place: wp.int64, width: wp.int32) -> wp.uint32:
    i = wp.int32(place >> wp.int64(5))
    pair = wp.uint64(words[i]) | (wp.uint64(words[i + 1]) << wp.uint64(32))
    return wp.uint32(pair >> wp.uint64(place & wp.int64(31))) & ones(width)


@wp.func
def write_bits(words: wp.array(dtype=wp.uint32), place: wp.int64, value: wp.uint32, width: wp.int32):
    i = wp.int32(place >> wp.int64(5))
    shift = wp.int32(place & wp.int64(31))
    words[i] = words[i] | (value << wp.uint32(shift))
    if shift + width > 32:
        words[i + 1] = words[i + 1] | (value >> wp.uint32(32 - shift))
