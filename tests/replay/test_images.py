"""Image helpers give back every bit, and refuse bytes that they did not write, without allocating for them."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fledge.core.errors import FormatError, InputError
from fledge.replay import compress_image, compress_image_seq, decompress_image, decompress_image_seq

DTYPES = st.sampled_from(["bool", "u1", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]).map(np.dtype)


@settings(max_examples=60, deadline=None)
@given(
    image=DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))),
    tile=st.integers(1, 40),
)
def test_any_array_comes_back(image: np.ndarray, tile: int) -> None:
    repeated = np.stack([image] * tile)  # compressible, so that the codecs are really used
    for array in (image, repeated):
        back = decompress_image(compress_image(array))
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    back = decompress_image_seq(compress_image_seq(repeated))
    assert (back.shape, back.tobytes()) == (repeated.shape, repeated.tobytes())


def test_a_grid_map_gets_much_smaller_and_noise_does_not_grow() -> None:
    grid = np.zeros((224, 224), np.uint8)
    grid[40:90, 100:130] = 1
    assert len(compress_image(grid)) < grid.nbytes / 50
    assert len(compress_image_seq(np.stack([grid] * 10))) < 10 * grid.nbytes / 100
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    assert len(compress_image(noise)) < noise.nbytes + 200


def test_tensors_are_taken_too() -> None:
    image = torch.arange(12.0).reshape(3, 4)
    assert np.array_equal(decompress_image(compress_image(image)), image.numpy())
    with pytest.raises(InputError, match="bfloat16"):
        compress_image(image.bfloat16())
    with pytest.raises(InputError, match="numbers"):
        compress_image(np.array(["text"]))
    with pytest.raises(InputError, match="first axis"):
        compress_image_seq(np.float32(3))


def test_one_kind_is_not_read_as_the_other() -> None:
    with pytest.raises(FormatError, match="decompress_image_seq"):
        decompress_image(compress_image_seq(np.zeros((3, 4))))
    with pytest.raises(FormatError, match="call decompress_image"):
        decompress_image_seq(compress_image(np.zeros((3, 4))))


def forged(**changes: object) -> bytes:
    header = {"dtype": "|u1", "shape": [4, 4], "codec": "raw", "sequence": False, "crc": 0, **changes}
    text = json.dumps(header).encode()
    return b"FLI1" + struct.pack("<I", len(text)) + text + bytes(16)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FLI1",
        b"FLI1" + struct.pack("<I", 2**31),
        b"FLI1" + struct.pack("<I", 2) + b"[]",
        forged(),  # wrong checksum
        forged(shape=[2**20, 2**20]),
        forged(shape=[-4, -4]),
        forged(shape=[2**39] * 8, codec="zstd-shuffle"),
        forged(shape="4"),
        forged(dtype="|O"),
        forged(dtype=["<f4"]),
        forged(codec="pickle"),
        forged(crc="x"),
        forged(codec="zstd-shuffle", shape=[16, 256]),
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decompress_image(data)


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, 400), value=st.integers(0, 255), cut=st.integers(0, 400))
def test_altered_bytes_never_give_a_wrong_image(place: int, value: int, cut: int) -> None:
    image = np.repeat(np.arange(64, dtype=np.float32), 8).reshape(16, 32)
    data = bytearray(compress_image(image))
    data[place % len(data)] = value
    for bad in (bytes(data), bytes(data[: cut % len(data)])):
        try:
            back = decompress_image(bad)
        except FormatError:
            continue
        assert back.tobytes() == image.tobytes()
