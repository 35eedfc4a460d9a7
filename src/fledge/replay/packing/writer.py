"""Warp kernels that write the bit-packed chunks of `chunks.py`.

Inputs come first, then outputs; `first` is the first item of a shard.
"""
# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from fledge.replay.packing.words import ONE, TOP, ZERO, first_one, ones, scaled, to_whole, width_of

wp.set_module_options({"enable_backward": False})

MAX_SLOPE = wp.constant(wp.int64((1 << 22) - 1))  # 22 bits, of which 20 behind the point


@wp.func
def to_ordered(word: wp.uint32, kind: wp.int32) -> wp.uint32:
    """Map a word to an integer: the integers sort as the numbers do, and numbers that are close give close integers."""
    if kind == 0:
        return word
    if kind == 2 and (word & TOP) != ZERO:
        return ~word
    return word ^ TOP


@wp.func
def fold(gap: wp.uint32) -> wp.uint32:
    """Return the zig-zag code of a difference: small differences of either sign become small numbers (modulo 2^32)."""
    if (gap & TOP) != ZERO:
        return ~(gap << ONE)
    return gap << ONE


@wp.func
def write_bits(words: wp.array(dtype=wp.uint32), place: wp.int64, value: wp.uint32, width: wp.int32):
    i = wp.int32(place >> wp.int64(5))
    shift = wp.int32(place & wp.int64(31))
    words[i] = words[i] | (value << wp.uint32(shift))
    if shift + width > 32:
        words[i + 1] = words[i + 1] | (value >> wp.uint32(32 - shift))


@wp.func
def grain_of(word: wp.uint32) -> wp.int32:
    """Return the smallest s for which the float times 2^s is whole; 1000 for zero, subnormal, infinite or NaN floats."""
    exponent = wp.int32((word >> wp.uint32(23)) & wp.uint32(255))
    if exponent == 0 or exponent == 255:
        return 1000
    digits = (word & wp.uint32(0x7FFFFF)) | wp.uint32(0x800000)
    return 150 - exponent - first_one(digits)


@wp.func
def mask_of(table: wp.array2d(dtype=wp.uint32), start: wp.int32, rows: wp.int32, column: wp.int32) -> wp.uint32:
    """Return which rows of a column are not zero: bit i stands for row `start + i`."""
    mask = wp.uint32(0)
    for i in range(rows):
        if table[start + i, column] != ZERO:
            mask = mask | (ONE << wp.uint32(i))
    return mask


@wp.func
def plan_follow(table: wp.array2d(dtype=wp.uint32), start: wp.int32, column: wp.int32, mask: wp.uint32) -> wp.vec4ui:
    """Return (width, base, slope, grain) to code a float column as a linear function of the column before it.

    The slope is measured between the rows where the column before is smallest and largest. Width is 99 if the values
    cannot be coded this way.
    """
    grain = wp.int32(0)
    top = wp.int32(0)
    rest = mask
    while rest != ZERO:
        row = start + first_one(rest)
        rest = rest & (rest - ONE)
        for k in range(2):
            word = table[row, column - k]
            grain = wp.max(grain, grain_of(word))
            top = wp.max(top, wp.int32((word >> wp.uint32(23)) & wp.uint32(255)))
    if grain > 31 or top - 127 + grain > 28:
        return wp.vec4ui(wp.uint32(99), ZERO, ZERO, ZERO)
    first = start + first_one(mask)
    low = to_whole(table[first, column - 1], grain)
    high = low
    low_at = to_whole(table[first, column], grain)
    high_at = low_at
    rest = mask
    while rest != ZERO:
        row = start + first_one(rest)
        rest = rest & (rest - ONE)
        before = to_whole(table[row, column - 1], grain)
        value = to_whole(table[row, column], grain)
        if before < low:
            low = before
            low_at = value
        if before > high:
            high = before
            high_at = value
    slope = wp.uint32(0)
    if high > low and high_at > low_at:
        slope = wp.uint32(wp.min(((high_at - low_at) << wp.int64(20)) / (high - low), MAX_SLOPE))
    base = wp.uint32(to_whole(table[first, column], grain)) - scaled(to_whole(table[first, column - 1], grain), slope)
    codes = wp.uint32(0)
    rest = mask
    while rest != ZERO:
        row = start + first_one(rest)
        rest = rest & (rest - ONE)
        line = base + scaled(to_whole(table[row, column - 1], grain), slope)
        codes = codes | fold(wp.uint32(to_whole(table[row, column], grain)) - line)
    return wp.vec4ui(wp.uint32(width_of(codes)), base, slope, wp.uint32(grain))


@wp.kernel
def plan_columns(
    first: wp.int32,
    table: wp.array2d(dtype=wp.uint32),
    kinds: wp.array(dtype=wp.int32),
    starts: wp.array(dtype=wp.int32),
    counts: wp.array(dtype=wp.int32),
    plans: wp.array3d(dtype=wp.uint32),
    bits: wp.array2d(dtype=wp.int32),
):
    """Compute the size of a column of a chunk in bits, and its plan: (64 * order + width, mask, base, more).

    `more` is the first difference (order 2), or slope and grain (order 3).
    """
    item = first + wp.tid()
    columns = kinds.shape[0]
    chunk = item / columns
    column = item % columns
    kind = kinds[column]
    rows = counts[chunk]
    mask = wp.uint32(0)
    found = wp.int32(0)
    low = ~ZERO
    high = wp.uint32(0)
    head = wp.uint32(0)
    before = wp.uint32(0)
    gap = wp.uint32(0)
    first_gap = wp.uint32(0)
    once = wp.uint32(0)
    twice = wp.uint32(0)
    for i in range(rows):
        raw = table[starts[chunk] + i, column]
        if raw != ZERO:
            value = to_ordered(raw, kind)
            mask = mask | (ONE << wp.uint32(i))
            low = wp.min(low, value)
            high = wp.max(high, value)
            if found == 0:
                head = value
            else:
                step = value - before
                once = once | fold(step)
                if found == 1:
                    first_gap = fold(step)
                else:
                    twice = twice | fold(step - gap)
                gap = step
            before = value
            found = found + 1
    if found == 0:
        bits[chunk, column] = 0
        return
    plan = width_of(high - low)
    cost = found * plan
    base = low
    cost1 = (found - 1) * width_of(once)
    if cost1 < cost:
        plan = width_of(once) + 64
        cost = cost1
        base = head
    cost2 = 6 + width_of(first_gap) + (found - 2) * width_of(twice)
    if found > 2 and cost2 < cost:
        plan = width_of(twice) + 128
        cost = cost2
        base = head
        plans[chunk, column, 3] = first_gap
    size = 41 + cost
    if found < rows:
        size = size + rows
    plans[chunk, column, 0] = wp.uint32(plan)
    plans[chunk, column, 1] = mask
    plans[chunk, column, 2] = base
    bits[chunk, column] = size
    if column > 0 and found > 1 and kind == 2 and kinds[column - 1] == 2:
        before_mask = mask_of(table, starts[chunk], rows, column - 1)
        if (mask & ~before_mask) == ZERO:
            line = plan_follow(table, starts[chunk], column, mask)
            line_size = 68 + found * wp.int32(line[0])
            if mask != before_mask:
                line_size = line_size + rows
            if line_size < size:
                plans[chunk, column, 0] = line[0] | wp.uint32(3 << 6)
                plans[chunk, column, 2] = line[1]
                plans[chunk, column, 3] = line[2] | (line[3] << wp.uint32(22))
                bits[chunk, column] = line_size


@wp.kernel
def pack_chunks(
    first: wp.int32,
    table: wp.array2d(dtype=wp.uint32),
    kinds: wp.array(dtype=wp.int32),
    starts: wp.array(dtype=wp.int32),
    counts: wp.array(dtype=wp.int32),
    plans: wp.array3d(dtype=wp.uint32),
    bits: wp.array2d(dtype=wp.int32),
    offsets: wp.array(dtype=wp.int64),
    words: wp.array(dtype=wp.uint32),
):
    """Write each chunk into zeroed words, from word `offsets[chunk]` on, as the plans of its columns say."""
    chunk = first + wp.tid()
    columns = kinds.shape[0]
    rows = counts[chunk]
    begin = offsets[chunk] * wp.int64(32)
    place = begin + wp.int64(columns)
    for column in range(columns):
        if bits[chunk, column] != 0:
            write_bits(words, begin + wp.int64(column), ONE, 1)
            plan = plans[chunk, column, 0]
            mask = plans[chunk, column, 1]
            base = plans[chunk, column, 2]
            width = wp.int32(plan & wp.uint32(63))
            order = wp.int32(plan >> wp.uint32(6))
            full = mask == ones(rows)
            if order == 3:
                full = mask == plans[chunk, column - 1, 1]
            write_bits(words, place, plan, 8)
            write_bits(words, place + wp.int64(9), base, 32)
            place = place + wp.int64(41)
            if not full:
                write_bits(words, place - wp.int64(33), ONE, 1)
                write_bits(words, place, mask, rows)
                place = place + wp.int64(rows)
            if order == 2:
                first_gap = plans[chunk, column, 3]
                wide = width_of(first_gap)
                write_bits(words, place, wp.uint32(wide), 6)
                write_bits(words, place + wp.int64(6), first_gap, wide)
                place = place + wp.int64(6 + wide)
            slope = wp.uint32(0)
            grain = wp.int32(0)
            lead = order
            if order == 3:
                write_bits(words, place, plans[chunk, column, 3], 27)
                place = place + wp.int64(27)
                slope = plans[chunk, column, 3] & wp.uint32(0x3FFFFF)
                grain = wp.int32(plans[chunk, column, 3] >> wp.uint32(22))
                lead = 0
            before = wp.uint32(0)
            gap = wp.uint32(0)
            found = wp.int32(0)
            for i in range(rows):
                raw = table[starts[chunk] + i, column]
                if raw != ZERO:
                    value = to_ordered(raw, kinds[column])
                    step = value - before
                    code = value - base
                    if order == 1:
                        code = fold(step)
                    if order == 2:
                        code = fold(step - gap)
                    if order == 3:
                        line = base + scaled(to_whole(table[starts[chunk] + i, column - 1], grain), slope)
                        code = fold(wp.uint32(to_whole(raw, grain)) - line)
                    if found >= lead:
                        write_bits(words, place, code, width)
                        place = place + wp.int64(width)
                    gap = step
                    before = value
                    found = found + 1
