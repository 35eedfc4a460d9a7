"""Warp kernels of the sparse bit format of `bits.py`.

Inputs come first, then outputs; `first` is the first item of a shard. `unpack_frames` does not check bounds: run
`check_chunks` on untrusted chunks before.
"""
# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from fledge.replay.packing.words import ONE, ZERO, count_ones, first_one, width_of

wp.set_module_options({"enable_backward": False})


@wp.func
def read_size(data: wp.array(dtype=wp.uint8), place: wp.int64) -> wp.int64:
    """Return the little-endian number in the four bytes from `place`."""
    low = wp.uint32(data[place]) | (wp.uint32(data[place + wp.int64(1)]) << wp.uint32(8))
    high = wp.uint32(data[place + wp.int64(2)]) | (wp.uint32(data[place + wp.int64(3)]) << wp.uint32(8))
    return wp.int64(low | (high << wp.uint32(16)))


@wp.func
def count_range(data: wp.array(dtype=wp.uint8), begin: wp.int64, count: wp.int32) -> wp.int32:
    """Return the number of set bits in `count` bytes from `begin`."""
    total = wp.int32(0)
    for k in range(count):
        total = total + count_ones(wp.uint32(data[begin + wp.int64(k)]))
    return total


@wp.func
def spread(byte: wp.uint32) -> wp.uint64:
    """Return eight bits as eight bytes of 0 or 1, lowest first."""
    apart = (wp.uint64(byte) * wp.uint64(0x0101010101010101)) & wp.uint64(0x8040201008040201)
    return ((apart + wp.uint64(0x7F7F7F7F7F7F7F7F)) >> wp.uint64(7)) & wp.uint64(0x0101010101010101)


@wp.kernel
def unpack_frames(
    first: wp.int32,
    data: wp.array(dtype=wp.uint8),
    spans: wp.array2d(dtype=wp.int64),
    size: wp.int32,
    top: wp.int32,
    stride: wp.int32,
    bits: wp.array2d(dtype=wp.uint32),
    out: wp.array2d(dtype=wp.uint64),
):
    """Decode the frame of each span into its row of `out`, eight one-byte cells per uint64.

    A span is: offset of the chunk in bytes, its number of frames, the requested frame. A frame's bits take `size` words
    of 32 bits, its level 3 takes `top` bytes; `bits.py` explains `stride`. `out` and the scratch array `bits` must be
    zero.
    """
    item = first + wp.tid()
    frames = wp.int32(spans[item, 1])
    place = spans[item, 0] + wp.int64(4 * frames)
    for k in range(wp.int32(spans[item, 2])):
        place = place + read_size(data, spans[item, 0] + wp.int64(4 * k))
    if read_size(data, spans[item, 0] + wp.int64(4) * spans[item, 2]) == wp.int64(32 * size):  # stored raw
        for i in range(4 * size):
            half = read_size(data, place + wp.int64(8 * i))
            out[item, i] = wp.uint64(half) | (wp.uint64(read_size(data, place + wp.int64(8 * i + 4))) << wp.uint64(32))
        return
    # each of three levels tells which bytes of the level below are stored; the topmost is complete
    level2 = place + wp.int64(top)
    seconds = count_range(data, place, top)
    level1 = level2 + wp.int64(seconds)
    code = level1 + wp.int64(count_range(data, level2, seconds))
    for i in range(top):
        high = wp.uint32(data[place + wp.int64(i)])
        while high != ZERO:
            j = 8 * i + first_one(high)
            high = high & (high - ONE)
            middle = wp.uint32(data[level2])
            level2 = level2 + wp.int64(1)
            while middle != ZERO:
                k = 8 * j + first_one(middle)
                middle = middle & (middle - ONE)
                low = wp.uint32(data[level1])
                level1 = level1 + wp.int64(1)
                while low != ZERO:
                    byte = 8 * k + first_one(low)
                    low = low & (low - ONE)
                    word = wp.uint32(data[code]) << wp.uint32(8 * (byte % 4))
                    bits[item, byte / 4] = bits[item, byte / 4] | word
                    code = code + wp.int64(1)
    for i in range(size):
        word = bits[item, i]
        if stride > 0 and i >= stride:
            word = word ^ bits[item, i - stride]
            bits[item, i] = word
        if word != ZERO:
            for b in range(4):
                out[item, 4 * i + b] = spread((word >> wp.uint32(8 * b)) & wp.uint32(255))


@wp.func
def last_byte(data: wp.array(dtype=wp.uint8), place: wp.int64, top: wp.int32, seconds: wp.int32) -> wp.int32:
    """Return the position of the last coded byte of a frame that is not zero; -1 if all are zero.

    The frame begins at `place`; level 3 has `top` bytes, level 2 `seconds` stored bytes.
    """
    last = wp.int32(-1)
    for i in range(top):
        if data[place + wp.int64(i)] != wp.uint8(0):
            last = 8 * i + width_of(wp.uint32(data[place + wp.int64(i)])) - 1
    if last < 0:
        return last
    level2 = place + wp.int64(top)
    firsts = count_range(data, level2, seconds)
    last = 8 * last + width_of(wp.uint32(data[level2 + wp.int64(seconds - 1)])) - 1
    return 8 * last + width_of(wp.uint32(data[level2 + wp.int64(seconds + firsts - 1)])) - 1


@wp.kernel
def check_chunks(
    first: wp.int32,
    data: wp.array(dtype=wp.uint8),
    offsets: wp.array(dtype=wp.int64),
    frames: wp.array(dtype=wp.int64),
    size: wp.int32,
    top: wp.int32,
    good: wp.array(dtype=wp.int32),
):
    """Set `good`, initially 0, to 1 for each chunk whose frames fill its bytes exactly and have no bit outside the frame."""
    chunk = first + wp.tid()
    begin = offsets[chunk]
    end = offsets[chunk + 1]
    count = wp.int32(frames[chunk])
    place = begin + wp.int64(4 * count)
    if place > end:
        return
    for f in range(count):
        held = read_size(data, begin + wp.int64(4 * f))
        if place + held > end:
            return
        if held != wp.int64(32 * size):  # not raw
            if held < wp.int64(top):
                return
            seconds = count_range(data, place, top)
            total = wp.int64(top + seconds)
            if total > held:
                return
            firsts = count_range(data, place + wp.int64(top), seconds)
            if total + wp.int64(firsts) > held:
                return
            bytes = count_range(data, place + total, firsts)
            if total + wp.int64(firsts + bytes) != held or last_byte(data, place, top, seconds) >= 4 * size:
                return
        place = place + held
    if place == end:
        good[chunk] = 1
