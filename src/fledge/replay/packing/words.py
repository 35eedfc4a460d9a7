"""Warp functions that both reader.py and writer.py use on words. Importing this module starts Warp."""
# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from fledge.core.warp_start import start_warp

wp.set_module_options({"enable_backward": False})
start_warp()

UNSIGNED, SIGNED, FLOAT = 0, 1, 2  # kinds of a column: how its words are ordered
TOP = wp.constant(wp.uint32(0x80000000))
ONE = wp.constant(wp.uint32(1))
ZERO = wp.constant(wp.uint32(0))


@wp.func
def width_of(word: wp.uint32) -> wp.int32:
    """Return the number of bits that the word needs: the position of its highest set bit, counted from 1; 0 for 0."""
    width = wp.int32(0)
    rest = word
    while rest != ZERO:
        rest = rest >> ONE
        width = width + 1
    return width


@wp.func
def ones(width: wp.int32) -> wp.uint32:
    if width >= 32:
        return ~ZERO
    return (ONE << wp.uint32(width)) - ONE


@wp.func
def count_ones(word: wp.uint32) -> wp.int32:
    return wp.int32(wp.bit_count(word))


@wp.func
def first_one(word: wp.uint32) -> wp.int32:
    """Return the position of the lowest set bit, counted from 0; `word & (word - ONE)` clears that bit."""
    return count_ones((word & (~word + ONE)) - ONE)


# ---- whole numbers: a float32 that is a multiple of 2^-s as that multiple, to scale and add columns exactly ----


@wp.func
def to_whole(word: wp.uint32, grain: wp.int32) -> wp.int64:
    """Return the float in `word` times 2^grain; exact if `grain` is at least `grain_of(word)` and the result below 2^30."""
    shift = wp.int32((word >> wp.uint32(23)) & wp.uint32(255)) - 150 + grain
    whole = wp.int64((word & wp.uint32(0x7FFFFF)) | wp.uint32(0x800000))
    if shift >= 0:
        whole = whole << wp.int64(wp.min(shift, 32))
    else:
        whole = whole >> wp.int64(wp.min(-shift, 32))
    if (word & TOP) != ZERO:
        return -whole
    return whole


@wp.func
def scaled(whole: wp.int64, slope: wp.uint32) -> wp.uint32:
    """Return whole * slope / 2^20, rounded down, modulo 2^32."""
    return wp.uint32((whole * wp.int64(slope)) >> wp.int64(20))
