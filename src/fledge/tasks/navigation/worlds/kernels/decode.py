"""Decoders of untrusted bytes, one thread each: every index is checked before it is used."""

import warp as wp

DEPTH = 16  # levels of an OctoMap below its root


@wp.kernel
def decode_lzf(packed: wp.array(dtype=wp.uint8), out: wp.array(dtype=wp.uint8), written: wp.array(dtype=wp.int64)):
    """Unpack LZF (Marc Lehmann's liblzf) and write how many bytes came out; -1 if the bytes are damaged."""
    size = packed.shape[0]
    room = out.shape[0]
    at = int(0)
    done = int(0)
    written[0] = wp.int64(-1)
    while at < size:
        control = int(packed[at])
        at += 1
        if control < 32:  # a literal run
            count = control + 1
            if at + count > size or done + count > room:
                return
            for _n in range(count):
                out[done] = packed[at]
                at += 1
                done += 1
        else:  # a copy of earlier bytes
            count = control >> 5
            if count == 7:
                if at >= size:
                    return
                count += int(packed[at])
                at += 1
            if at >= size:
                return
            back = ((control & 31) << 8) + int(packed[at]) + 1
            at += 1
            count += 2
            if back > done or done + count > room:
                return
            for _n in range(count):
                out[done] = out[done - back]
                done += 1
    written[0] = wp.int64(done)


@wp.kernel
def decode_octree(
    data: wp.array(dtype=wp.uint8),
    stack: wp.array2d(dtype=wp.int32),
    leaves: wp.array2d(dtype=wp.int32),
    found: wp.array(dtype=wp.int64),
):
    """Walk the tree of an OctoMap .bt file, and list its occupied leaves if there is room for them.

    A node is two bytes, two bits for each child: 1 a free leaf, 2 an occupied leaf, 3 a node, which follows in order.

    Args:
        data: The bytes of the tree.
        stack: [DEPTH, 5] room for each level: corner x, y, z in finest voxels, children as 16 bits, next child.
        leaves: [L, 4] written: corner and side of each occupied leaf, in finest voxels.
        found: [2] written: occupied leaves, and bytes read; -1 if the tree is damaged.
    """
    found[0] = wp.int64(0)
    found[1] = wp.int64(-1)
    if data.shape[0] < 2:
        return
    count = int(0)
    at = int(2)
    level = int(0)
    for k in range(3):
        stack[0, k] = 0
    stack[0, 3] = int(data[0]) + 256 * int(data[1])
    stack[0, 4] = 0
    while level >= 0:
        child = stack[level, 4]
        if child == 8:
            level -= 1
        else:
            stack[level, 4] = child + 1
            kind = (stack[level, 3] >> (2 * child)) & 3
            side = 1 << (DEPTH - 1 - level)
            x = stack[level, 0] + (child & 1) * side
            y = stack[level, 1] + ((child >> 1) & 1) * side
            z = stack[level, 2] + ((child >> 2) & 1) * side
            if kind == 2:
                if count < leaves.shape[0]:
                    leaves[count, 0] = x
                    leaves[count, 1] = y
                    leaves[count, 2] = z
                    leaves[count, 3] = side
                count += 1
            elif kind == 3:
                level += 1
                if level == DEPTH or at + 2 > data.shape[0]:
                    return
                stack[level, 0] = x
                stack[level, 1] = y
                stack[level, 2] = z
                stack[level, 3] = int(data[at]) + 256 * int(data[at + 1])
                stack[level, 4] = 0
                at += 2
    found[0] = wp.int64(count)
    found[1] = wp.int64(at)
