"""Every codec gives back every bit, never grows beyond its bounds, and refuses what it did not write."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fledge.core.errors import ConfigError, FormatError
from fledge.storage.format import codecs
from fledge.storage.format.leaves import WORDS


def round_trip(name: str, data: np.ndarray, word: int, floats: bool = True) -> np.ndarray:
    used, blocks = codecs.encode(name, data, word, floats)
    assert used in (name, "raw")
    out = np.empty_like(data)
    codecs.decode(used, memoryview(b"".join(blocks)), out, word)
    return out


@pytest.mark.parametrize("name", codecs.CODEC_NAMES)
@pytest.mark.parametrize("word", [2, 4, 8])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_bits_come_back(name: str, word: int, data: st.DataObject) -> None:
    words = data.draw(hnp.arrays(WORDS[word], st.integers(0, 300)))
    repeated = np.tile(words, 5).view(np.uint8)  # compressible, so that the codec is really used
    assert np.array_equal(round_trip(name, repeated, word, data.draw(st.booleans())), repeated)


@pytest.mark.parametrize("name", codecs.CODEC_NAMES)
def test_an_array_of_several_chunks_comes_back(name: str) -> None:
    rng = np.random.default_rng(0)
    data = (rng.normal(size=codecs.CHUNK_BYTES // 2) * 0.01).astype(np.float32).view(np.uint8)
    assert data.nbytes > codecs.CHUNK_BYTES
    assert np.array_equal(round_trip(name, data, 4), data)


def test_noise_is_stored_raw() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 50_000, dtype=np.uint8)
    assert codecs.choose(noise, 4, True, codecs.candidates(9, noise.nbytes)) == "raw"
    assert codecs.encode("zstd-shuffle", noise, 4, True) == ("raw", [noise.data])


def test_weights_get_a_codec_that_saves_something() -> None:
    weights = (np.random.default_rng(0).normal(size=100_000) * 0.02).astype(np.float32).view(np.uint8)
    name = codecs.choose(weights, 4, True, codecs.candidates(9, weights.nbytes))
    used, blocks = codecs.encode(name, weights, 4, True)
    assert used == name
    assert codecs.size_of(blocks) < 0.87 * weights.nbytes


@pytest.mark.parametrize("name", list(codecs.CODECS))
def test_a_member_never_expands_more_than_256_times(name: str) -> None:
    zeros = np.zeros(10 * 2**20, np.uint8)
    used, blocks = codecs.encode(name, zeros, 4, True)
    assert used == name
    assert zeros.nbytes <= codecs.MAX_EXPANSION * codecs.size_of(blocks)
    assert np.array_equal(round_trip(name, zeros, 4), zeros)


def test_a_level_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="compression_level is 12"):
        codecs.candidates(12, 0)


@pytest.mark.parametrize("place", [2, 16, 17, 22, 31])  # flags, filters, compressor, special values
def test_a_chunk_that_asks_blosc_for_a_plugin_is_refused(place: int) -> None:
    data = np.zeros(4096, np.uint8) + np.arange(4096, dtype=np.uint32).view(np.uint8)[:4096]
    member = bytearray(b"".join(codecs.encode("zstd-shuffle", data, 4, True)[1]))
    member[4 + place] = 0x25 if place != 2 else 0xC5  # grok, int_trunc, ...: numbers of plug-ins
    with pytest.raises(FormatError, match="header"):
        codecs.decode("zstd-shuffle", memoryview(bytes(member)), np.empty(4096, np.uint8), 4)


@pytest.mark.parametrize("name", list(codecs.CODECS))
def test_torn_and_padded_members_are_refused(name: str) -> None:
    data = np.repeat(np.arange(500, dtype=np.uint32), 9).view(np.uint8)
    member = b"".join(codecs.encode(name, data, 4, True)[1])
    for bad in (member[:3], member[:-1], member[: len(member) // 2], member + b"x", b""):
        with pytest.raises(FormatError):
            codecs.decode(name, memoryview(bad), np.empty_like(data), 4)
    lying = struct.pack("<I", 2**31) + member[4:]
    with pytest.raises(FormatError):
        codecs.decode(name, memoryview(lying), np.empty_like(data), 4)
