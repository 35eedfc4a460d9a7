"""A plain reader of chunks of tiles, cell by cell, written from the description in `fledge.replay.stores.tiles`."""

from __future__ import annotations

import numpy as np


class Reader:
    """Bytes with a place in them."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self.data, self.place = data, place

    def byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def number(self, size: int) -> int:
        self.place += size
        return int.from_bytes(self.data[self.place - size : self.place], "little")


def bits(byte: int) -> list[int]:
    return [k for k in range(8) if byte >> k & 1]


def read_chunk(data: bytes, rows: int, stack: tuple[int, int, int], word: int, above: int) -> list[np.ndarray]:
    """Return the frames of a chunk, each [outer, stack, unit]."""
    outer, count, unit = stack
    head = Reader(data)
    binary, reference = head.byte(), head.byte()
    adds = [head.byte() if count > 1 else 1 for _ in range(rows)]
    ends = [head.number(4) for _ in range(sum(adds) + reference)]
    begins = [head.place, *ends[:-1]]
    planes: list[list[int]] = []
    for begin, end in zip(begins, ends, strict=True):
        body = Reader(data, begin)
        planes.append(read_plane(body, outer * unit, word, above, bool(binary), planes[0] if planes else []))
        assert body.place == end
    assert ends[-1] == len(data)
    frames, last = [], reference - 1
    for added in adds:
        last += added
        some = np.array(planes[last - count + 1 : last + 1], np.uint64).reshape(count, outer, unit)
        frames.append(some.transpose(1, 0, 2).astype(f"u{word}"))
    return frames


def read_plane(body: Reader, cells: int, word: int, above: int, binary: bool, reference: list[int]) -> list[int]:
    tiles = -(-cells // 64)
    marks = -(-tiles // 8)
    from_reference = body.byte()
    plane = list(reference) if from_reference else [0] * (64 * tiles)
    plane += [0] * (64 * tiles - len(plane))
    tops = [body.byte() for _ in range(-(-marks // 8))]
    stored = [8 * i + k for i, top in enumerate(tops) for k in bits(top)]
    changed = [8 * byte + k for byte in stored for k in bits(body.byte())]
    for tile in changed:
        how = 128 if binary else body.byte()
        width = how % 128
        codes = [0] * 64
        if width and word == 1:
            for group in range(8):
                for bit in range(width):
                    for k in bits(body.byte()):
                        codes[8 * group + k] |= 1 << bit
        elif width:
            stream = body.number(8 * width)
            codes = [stream >> (k * width) & ((1 << width) - 1) for k in range(64)]
        for k, code in enumerate(codes):
            gap = -(code + 1) // 2 if code % 2 else code // 2
            plane[64 * tile + k] = (plane[64 * tile + k] + gap) % (1 << 8 * word)
        if how >= 128:
            masks = [(group, bits(body.byte())) for group in bits(body.byte())]
            for group, mask in masks:
                for k in mask:
                    place = 64 * tile + 8 * group + k
                    plane[place] = 1 - plane[place] if binary else body.number(word)
    for i in range(above, cells if not from_reference else 0):
        plane[i] = (plane[i] + plane[i - above]) % (2 if binary else 1 << 8 * word)
    return plane[:cells]
