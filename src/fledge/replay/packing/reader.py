"""Warp kernels that read the bit-packed chunks of `chunks.py`.

Inputs come first, then outputs; `first` is the first item of a shard. `unpack_rows` does not check bounds: run `check_chunks`
on untrusted chunks before.
"""
# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from fledge.replay.packing.words import ONE, TOP, ZERO, count_ones, first_one, ones, scaled, to_whole

wp.set_module_options({"enable_backward": False})


@wp.func
def from_ordered(word: wp.uint32, kind: wp.int32) -> wp.uint32:
    if kind == 0:
        return word
    if kind == 2 and (word & TOP) == ZERO:
        return ~word
    return word ^ TOP


@wp.func
def from_whole(whole: wp.uint32, grain: wp.int32) -> wp.uint32:
    """Return the bits of the float for which `to_whole` returns `whole` (modulo 2^32)."""
    sign = whole & TOP
    size = whole
    if sign != ZERO:
        size = ~whole + ONE
    return (wp.cast(wp.float32(size), wp.uint32) - (wp.uint32(grain) << wp.uint32(23))) | sign


@wp.func
def unfold(code: wp.uint32) -> wp.uint32:
    if (code & ONE) != ZERO:
        return ~(code >> ONE)
    return code >> ONE


@wp.func
def read_bits(words: wp.array(dtype=wp.uint32), place: wp.int64, width: wp.int32) -> wp.uint32:
    i = wp.int32(place >> wp.int64(5))
    pair = wp.uint64(words[i]) | (wp.uint64(words[i + 1]) << wp.uint64(32))
    return wp.uint32((pair >> wp.uint64(place & wp.int64(31))) & ((wp.uint64(1) << wp.uint64(width)) - wp.uint64(1)))


@wp.func
def read_window(words: wp.array(dtype=wp.uint32), place: wp.int64) -> wp.uint64:
    """Return 64 bits of the words, from bit number `place`."""
    i = wp.int32(place >> wp.int64(5))
    shift = wp.uint64(place & wp.int64(31))
    pair = wp.uint64(words[i]) | (wp.uint64(words[i + 1]) << wp.uint64(32))
    # in two steps, because shifting by 64 is not defined
    return (pair >> shift) | ((wp.uint64(words[i + 2]) << wp.uint64(32)) << (wp.uint64(32) - shift))


@wp.kernel
def unpack_rows(
    first: wp.int32,
    addresses: wp.array(dtype=wp.uint64),
    kinds: wp.array(dtype=wp.int32),
    spans: wp.array2d(dtype=wp.int32),
    table: wp.array2d(dtype=wp.uint32),
):
    """Decode rows of chunks, each at its address, into a zeroed table; `chunks.unpack` explains the spans."""
    item = first + wp.tid()
    columns = kinds.shape[0]
    words = wp.array(ptr=addresses[item], shape=(1 << 28,), dtype=wp.uint32)
    rows = spans[item, 0]
    low = spans[item, 1]
    high = low + spans[item, 2]
    target = spans[item, 3] - low
    place = wp.int64(columns)
    mask = wp.uint32(0)
    for group in range((columns + 31) / 32):
        # most columns are zero: iterate over the set bits
        active = read_bits(words, wp.int64(32 * group), wp.min(32, columns - 32 * group))
        while active != ZERO:
            column = 32 * group + first_one(active)
            active = active & (active - ONE)
            head = read_window(words, place)
            plan = wp.uint32(head & wp.uint64(511))
            value = wp.uint32(head >> wp.uint64(9))
            width = wp.int32(plan & wp.uint32(63))
            order = wp.int32((plan >> wp.uint32(6)) & wp.uint32(3))
            place = place + wp.int64(41)
            if (plan >> wp.uint32(8)) != ZERO:
                if rows <= 23:  # the mask is still in the window
                    mask = wp.uint32(head >> wp.uint64(41)) & ones(rows)
                else:
                    mask = read_bits(words, place, rows)
                place = place + wp.int64(rows)
            elif order != 3:  # order 3 has the mask of the column before
                mask = ones(rows)
            gap = wp.uint32(0)
            if order == 2:
                wide = wp.int32(read_bits(words, place, 6))
                gap = unfold(read_bits(words, place + wp.int64(6), wide))
                place = place + wp.int64(6 + wide)
            found = count_ones(mask)
            base = value
            kind = kinds[column]
            # requested rows that are not zero
            requested = (mask >> wp.uint32(low)) & ones(high - low)
            if order == 3:
                line_bits = read_bits(words, place, 27)
                slope = line_bits & wp.uint32(0x3FFFFF)
                grain = wp.int32(line_bits >> wp.uint32(22))
                place = place + wp.int64(27)
                code = place + wp.int64(count_ones(mask & ones(low)) * width)
                while requested != ZERO:
                    row = low + first_one(requested)
                    requested = requested & (requested - ONE)
                    line = base + scaled(to_whole(table[target + row, column - 1], grain), slope)
                    table[target + row, column] = from_whole(line + unfold(read_bits(words, code, width)), grain)
                    code = code + wp.int64(width)
                order = 0
            elif requested != ZERO and order == 0:
                code = place + wp.int64(count_ones(mask & ones(low)) * width)
                while requested != ZERO:
                    row = low + first_one(requested)
                    requested = requested & (requested - ONE)
                    table[target + row, column] = from_ordered(base + read_bits(words, code, width), kind)
                    code = code + wp.int64(width)
            elif requested != ZERO:
                code = place
                rank = wp.int32(0)
                rest = mask & ones(high)
                while rest != ZERO:
                    row = first_one(rest)
                    rest = rest & (rest - ONE)
                    if rank >= order:
                        step = unfold(read_bits(words, code, width))
                        code = code + wp.int64(width)
                        if order == 2:
                            gap = gap + step
                        else:
                            gap = step
                    if rank > 0:
                        value = value + gap
                    rank = rank + 1
                    if row >= low:
                        table[target + row, column] = from_ordered(value, kind)
            place = place + wp.int64(wp.max(found - order, 0) * width)


@wp.kernel
def check_chunks(
    first: wp.int32,
    words: wp.array(dtype=wp.uint32),
    offsets: wp.array(dtype=wp.int64),
    counts: wp.array(dtype=wp.int32),
    columns: wp.int32,
    good: wp.array(dtype=wp.int32),
):
    """Set `good`, initially 0, to 1 for each chunk that parses to exactly the words between its offset and the next."""
    chunk = first + wp.tid()
    rows = counts[chunk]
    begin = offsets[chunk] * wp.int64(32)
    end = offsets[chunk + 1] * wp.int64(32)
    place = begin + wp.int64(columns)
    if place > end:
        return
    mask = wp.uint32(0)  # of the column before; 0 if that is zero, or there is none
    for column in range(columns):
        before = mask
        mask = wp.uint32(0)
        if read_bits(words, begin + wp.int64(column), 1) != ZERO:
            if place + wp.int64(41) > end:
                return
            plan = read_bits(words, place, 9)
            width = wp.int32(plan & wp.uint32(63))
            order = wp.int32((plan >> wp.uint32(6)) & wp.uint32(3))
            place = place + wp.int64(41)
            mask = ones(rows)
            if order == 3:
                mask = before
            if (plan >> wp.uint32(8)) != ZERO:
                if place + wp.int64(rows) > end:
                    return
                mask = read_bits(words, place, rows)
                place = place + wp.int64(rows)
            if order == 2:
                if place + wp.int64(6) > end:
                    return
                wide = wp.int32(read_bits(words, place, 6))
                place = place + wp.int64(6 + wide)
                if wide > 32:
                    return
            if order == 3:
                if mask == ZERO or (mask & ~before) != ZERO:
                    return
                place = place + wp.int64(27)
                order = 0
            place = place + wp.int64(wp.max(count_ones(mask) - order, 0) * width)
            if width > 32 or place > end:
                return
    if end - place < wp.int64(32):
        good[chunk] = 1
