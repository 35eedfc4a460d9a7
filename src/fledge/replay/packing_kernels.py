"""Warp kernels of the bit-packed chunk format (`packing.py` says what the format is and calls these).

Inputs first, then outputs; the caller owns every buffer. Nothing here checks bounds: `check_chunks` must have passed
over chunks from an untrusted source before `unpack_rows` sees them. `first` is the first item of a shard.
"""
# mypy: ignore-errors
# (annotations of kernels are no types)

from __future__ import annotations

import warp as wp

from fledge.replay.packing_words import (
    ONE,
    ZERO,
    count_ones,
    fold,
    from_ordered,
    ones,
    read_bits,
    to_ordered,
    unfold,
    width_of,
    write_bits,
)

wp.set_module_options({"enable_backward": False})


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
    """For a column of a chunk: bits it takes, and (order | width, mask, base, first difference) to write it with."""
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
    size = 41
    if found < rows:
        size = size + rows
    width0 = width_of(high - low)
    width1 = width_of(once)
    cost0 = found * width0
    cost1 = (found - 1) * width1
    cost2 = wp.int32(1 << 20)
    width2 = width_of(twice)
    if found > 2:
        cost2 = 6 + width_of(first_gap) + (found - 2) * width2
    if cost0 <= cost1 and cost0 <= cost2:
        plans[chunk, column, 0] = wp.uint32(width0)
        plans[chunk, column, 2] = low
        size = size + cost0
    elif cost1 <= cost2:
        plans[chunk, column, 0] = wp.uint32(width1) | wp.uint32(1 << 6)
        plans[chunk, column, 2] = head
        size = size + cost1
    else:
        plans[chunk, column, 0] = wp.uint32(width2) | wp.uint32(2 << 6)
        plans[chunk, column, 2] = head
        plans[chunk, column, 3] = first_gap
        size = size + cost2
    plans[chunk, column, 1] = mask
    bits[chunk, column] = size


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
    """Write a chunk into zeroed words from `offsets[chunk]` (in words), following its plans."""
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
            write_bits(words, place, plan, 8)
            write_bits(words, place + wp.int64(9), base, 32)
            if not full:
                write_bits(words, place + wp.int64(8), ONE, 1)
                write_bits(words, place + wp.int64(41), mask, rows)
            place = place + wp.int64(41)
            if not full:
                place = place + wp.int64(rows)
            if order == 2:
                first_gap = plans[chunk, column, 3]
                wide = width_of(first_gap)
                write_bits(words, place, wp.uint32(wide), 6)
                write_bits(words, place + wp.int64(6), first_gap, wide)
                place = place + wp.int64(6 + wide)
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
                    if found >= order:
                        write_bits(words, place, code, width)
                        place = place + wp.int64(width)
                    gap = step
                    before = value
                    found = found + 1


@wp.kernel
def unpack_rows(
    first: wp.int32,
    words: wp.array(dtype=wp.uint32),
    kinds: wp.array(dtype=wp.int32),
    spans: wp.array2d(dtype=wp.int32),
    table: wp.array2d(dtype=wp.uint32),
):
    """Decode rows of a chunk into a zeroed table.

    A span is: offset of the chunk in words, its rows, first row wanted, number of rows wanted, first row of table.
    """
    item = first + wp.tid()
    columns = kinds.shape[0]
    begin = wp.int64(spans[item, 0]) * wp.int64(32)
    rows = spans[item, 1]
    low = spans[item, 2]
    high = low + spans[item, 3]
    target = spans[item, 4] - low
    place = begin + wp.int64(columns)
    for group in range((columns + 31) / 32):
        # most columns are zero: go from one set bit to the next
        active = read_bits(words, begin + wp.int64(32 * group), wp.min(32, columns - 32 * group))
        while active != ZERO:
            lowest = active & (~active + ONE)
            active = active ^ lowest
            column = 32 * group + count_ones(lowest - ONE)
            plan = read_bits(words, place, 9)
            value = read_bits(words, place + wp.int64(9), 32)
            width = wp.int32(plan & wp.uint32(63))
            order = wp.int32((plan >> wp.uint32(6)) & wp.uint32(3))
            place = place + wp.int64(41)
            mask = ones(rows)
            if (plan >> wp.uint32(8)) != ZERO:
                mask = read_bits(words, place, rows)
                place = place + wp.int64(rows)
            gap = wp.uint32(0)
            if order == 2:
                wide = wp.int32(read_bits(words, place, 6))
                gap = unfold(read_bits(words, place + wp.int64(6), wide))
                place = place + wp.int64(6 + wide)
            found = count_ones(mask)
            base = value
            kind = kinds[column]
            # rows wanted that are not zero; the rest of a column's codes need not be looked at
            wanted = (mask >> wp.uint32(low)) & ones(high - low)
            if wanted != ZERO and order == 0:
                code = place + wp.int64(count_ones(mask & ones(low)) * width)
                while wanted != ZERO:
                    lowest = wanted & (~wanted + ONE)
                    wanted = wanted ^ lowest
                    row = low + count_ones(lowest - ONE)
                    table[target + row, column] = from_ordered(base + read_bits(words, code, width), kind)
                    code = code + wp.int64(width)
            elif wanted != ZERO:
                code = place
                rank = wp.int32(0)
                rest = mask & ones(high)
                while rest != ZERO:
                    lowest = rest & (~rest + ONE)
                    rest = rest ^ lowest
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
                    if lowest >= (ONE << wp.uint32(low)):
                        row = count_ones(lowest - ONE)
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
    """1 where a chunk parses to exactly the words between its offset and the next, 0 where it does not."""
    chunk = first + wp.tid()
    rows = counts[chunk]
    begin = offsets[chunk] * wp.int64(32)
    end = offsets[chunk + 1] * wp.int64(32)
    place = begin + wp.int64(columns)
    sound = place <= end
    for column in range(columns):
        if sound and read_bits(words, begin + wp.int64(column), 1) != ZERO:
            sound = place + wp.int64(41) <= end
            if sound:
                plan = read_bits(words, place, 9)
                width = wp.int32(plan & wp.uint32(63))
                order = wp.int32((plan >> wp.uint32(6)) & wp.uint32(3))
                place = place + wp.int64(41)
                mask = ones(rows)
                sound = width <= 32 and order <= 2
                if sound and (plan >> wp.uint32(8)) != ZERO:
                    sound = place + wp.int64(rows) <= end
                    if sound:
                        mask = read_bits(words, place, rows)
                        place = place + wp.int64(rows)
                if sound and order == 2:
                    sound = place + wp.int64(6) <= end
                    if sound:
                        wide = wp.int32(read_bits(words, place, 6))
                        place = place + wp.int64(6 + wide)
                        sound = wide <= 32
                if sound:
                    place = place + wp.int64(wp.max(count_ones(mask) - order, 0) * width)
                    sound = place <= end
    good[chunk] = 0
    if sound and end - place < wp.int64(32):
        good[chunk] = 1
