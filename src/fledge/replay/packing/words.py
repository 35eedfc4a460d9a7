"""Warp functions on words: ordering, zig-zag codes, widths, bits in an array of words. Importing this starts Warp."""
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
ALL = wp.constant(wp.uint32(0xFFFFFFFF))


@wp.func
def to_ordered(word: wp.uint32, kind: wp.int32) -> wp.uint32:
    """Map a word so that the unsigned order is that of the numbers, and close values are close integers."""
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
    """Return the number of bits up to the highest set one; 0 if there is none."""
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
    return wp.int32(wp.bit_count(word))


@wp.func
def first_one(word: wp.uint32) -> wp.int32:
    """Return the number of the lowest set bit; `word & (word - ONE)` is the word without it."""
    return count_ones((word & (~word + ONE)) - ONE)


@wp.func
def read_bits(words: wp.array(dtype=wp.uint32), place: wp.int64, width: wp.int32) -> wp.uint32:
    i = wp.int32(place >> wp.int64(5))
    pair = wp.uint64(words[i]) | (wp.uint64(words[i + 1]) << wp.uint64(32))
    return wp.uint32((pair >> wp.uint64(place & wp.int64(31))) & ((wp.uint64(1) << wp.uint64(width)) - wp.uint64(1)))


@wp.func
def read_window(words: wp.array(dtype=wp.uint32), place: wp.int64) -> wp.uint64:
    """Read 64 bits."""
    i = wp.int32(place >> wp.int64(5))
    shift = wp.uint64(place & wp.int64(31))
    pair = wp.uint64(words[i]) | (wp.uint64(words[i + 1]) << wp.uint64(32))
    # in two steps, because shifting by 64 is not defined
    return (pair >> shift) | ((wp.uint64(words[i + 2]) << wp.uint64(32)) << (wp.uint64(32) - shift))


@wp.func
def write_bits(words: wp.array(dtype=wp.uint32), place: wp.int64, value: wp.uint32, width: wp.int32):
    i = wp.int32(place >> wp.int64(5))
    shift = wp.int32(place & wp.int64(31))
    words[i] = words[i] | (value << wp.uint32(shift))
    if shift + width > 32:
        words[i + 1] = words[i + 1] | (value >> wp.uint32(32 - shift))


# ---- whole numbers: a float32 that is a multiple of 2^-s as that multiple, to scale and add columns exactly ----


@wp.func
def grain_of(word: wp.uint32) -> wp.int32:
    """Return the smallest s for which the float times 2^s is whole; 1000 if it is zero, not finite, or too small."""
    exponent = wp.int32((word >> wp.uint32(23)) & wp.uint32(255))
    if exponent == 0 or exponent == 255:
        return 1000
    digits = (word & wp.uint32(0x7FFFFF)) | wp.uint32(0x800000)
    return 150 - exponent - first_one(digits)


@wp.func
def to_whole(word: wp.uint32, grain: wp.int32) -> wp.int64:
    """Return the float times 2^grain; exact if `grain` is at least `grain_of` and the result below 2^30."""
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
def from_whole(whole: wp.uint32, grain: wp.int32) -> wp.uint32:
    """Return the float whose `to_whole` is this number (modulo 2^32)."""
    sign = whole & TOP
    size = whole
    if sign != ZERO:
        size = ~whole + ONE
    return (wp.cast(wp.float32(size), wp.uint32) - (wp.uint32(grain) << wp.uint32(23))) | sign


@wp.func
def scaled(whole: wp.int64, slope: wp.uint32) -> wp.uint32:
    """Return whole * slope / 2^20, rounded down, modulo 2^32."""
    return wp.uint32((whole * wp.int64(slope)) >> wp.int64(20))
