"""Lossless codecs for the bytes of one array, and exact differences between two versions of it.

A codec works on words (unsigned integers of 1, 2, 4 or 8 bytes) in chunks of `CHUNK_BYTES`. `choose` compares the codecs
of a level on a sample of the data: by size, with a handicap for slower codecs. It uses no clock, so that equal states give
equal files.
docs/reference/checkpoint_format.md describes the layout of a member (the encoded bytes of one array). Members are padded where
needed, so that decoding expands them at most `MAX_EXPANSION` times.
Background work must not hold the GIL: pcodec releases it, blosc2 only after `set_releasegil(True)`, which is called below.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import blosc2
import numpy as np
from pcodec import ChunkConfig, DeltaSpec, ModeSpec
from pcodec import standalone as pco

from fledge.core.errors import ConfigError, FormatError
from fledge.storage.format.leaves import WORDS, damaged

blosc2.set_releasegil(True)

CHUNK_BYTES = 4 * 2**20
MAX_EXPANSION = 256  # LZ4's own limit; `encode` pads members so that valid files never exceed it
MIN_SAVING = 0.05  # members that save less are stored raw, which loads faster
SMALL = 128  # bytes; below this, headers cost more than compression saves
SAMPLE_BLOCKS, SAMPLE_BYTES = 4, 65_536
BIG_STATE = 32 * 2**20  # bytes; above it the default level prefers speed
LADDER = (9, 4, 2, 0)  # levels that None chooses from: from the smallest files to the fastest

_SHUFFLE, _BYTEDELTA = blosc2.Filter.SHUFFLE, blosc2.Filter.BYTEDELTA
Block = bytes | memoryview


@dataclass(frozen=True)
class _Blosc:
    """The codec Blosc2: it shuffles bytes, optionally takes their differences, then compresses with LZ4 or Zstd."""

    compressor: blosc2.Codec
    level: int
    filters: tuple[blosc2.Filter, ...]
    format_code: int  # number of the compressor in a chunk's header

    def encode(self, words: np.ndarray, floats: bool) -> bytes:
        options = {"codec": self.compressor, "clevel": self.level, "typesize": words.itemsize, "nthreads": 1}
        filters = {"filters": list(self.filters), "filters_meta": [0] * len(self.filters)}
        return blosc2.compress2(words, **options, **filters)

    def decode(self, chunk: memoryview, out: np.ndarray) -> None:
        # Blosc2 loads plug-ins by the codec and filter numbers in the header, and can leave memory uninitialised, so refuse a
        # header that differs from what `encode` writes (layout: c-blosc2's README_CHUNK_FORMAT).
        if len(chunk) < 32:
            raise damaged(f"a compressed chunk of {len(chunk)} bytes is shorter than its header")
        flags, (declared, _, stored) = chunk[2], struct.unpack_from("<iii", chunk, 4)
        allowed = {0, *(int(f.value) for f in self.filters)}
        special = (chunk[31] >> 4) & 7
        plain = chunk[0] == 5 and flags & 0b1101 == 0b101 and flags >> 5 == self.format_code
        plain = plain and chunk[31] & 0b10001111 == 0 and special in (0, 1)  # 0: data, 1: all zero
        if not plain or chunk[22] != self.compressor.value or not set(chunk[16:22]) <= allowed:
            raise damaged("a compressed chunk's header is not one that Fledge writes")
        if declared != out.nbytes or stored != len(chunk):
            actual = f"{out.nbytes} bytes compressed to {len(chunk)}"
            raise damaged(f"a chunk's header says {declared} bytes compressed to {stored}, but the chunk has {actual}")
        blosc2.decompress2(chunk, dst=out.view(np.uint8), nthreads=1)


@dataclass(frozen=True)
class _Pcodec:
    """The codec pcodec: it codes numbers by adaptive bins and entropy coding, and compresses trained weights best."""

    level: int

    def encode(self, words: np.ndarray, floats: bool) -> bytes:
        # Weights have no order to exploit: skipping the search for one doubles the speed at the same size (measured).
        options = {"mode_spec": ModeSpec.classic(), "delta_spec": DeltaSpec.no_op()} if floats else {}
        return pco.simple_compress(words, ChunkConfig(compression_level=self.level, **options))

    def decode(self, chunk: memoryview, out: np.ndarray) -> None:
        progress = pco.simple_decompress_into(bytes(chunk), out)
        if progress.n_processed != out.size or not progress.finished:
            raise damaged(f"a compressed chunk does not hold {out.size} numbers")


CODECS: dict[str, _Blosc | _Pcodec] = {
    "lz4-shuffle": _Blosc(blosc2.Codec.LZ4, 5, (_SHUFFLE,), 1),
    "zstd-shuffle": _Blosc(blosc2.Codec.ZSTD, 1, (_SHUFFLE,), 4),
    "zstd-bytedelta": _Blosc(blosc2.Codec.ZSTD, 1, (_SHUFFLE, _BYTEDELTA), 4),
    "pco": _Pcodec(8),
}
CODEC_NAMES = ("raw", *CODECS)

# How much smaller a slower codec must be to be chosen, relative to the fastest.
_HANDICAP = {"lz4-shuffle": 1.0, "zstd-shuffle": 1.005, "zstd-bytedelta": 1.005, "pco": 1.01}


def candidates(level: int | None, total_bytes: int, speed_bias: int = 0) -> tuple[str, ...]:
    """Return the codecs of a compression level: 0 none, 1-2 LZ4, 3-5 also Zstd, 6-9 also pcodec.

    If `level` is None, take 9, or 4 if `total_bytes` exceeds `BIG_STATE`; then go `speed_bias` steps on in `LADDER`, to
    faster levels.
    """
    if level is None:
        level = LADDER[min((total_bytes > BIG_STATE) + speed_bias, len(LADDER) - 1)]
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= 9:
        raise ConfigError(
            f"compression_level is {level!r}, but must be None, or 0 (no compression) to 9 (smallest file)."
        )
    return tuple(CODECS)[: 0 if level == 0 else 1 if level <= 2 else 3 if level <= 5 else 4]


def choose(data: np.ndarray, word: int, floats: bool, names: Sequence[str]) -> str:
    """Return the codec that makes a sample of `data` smallest, or "raw" if it saves less than 5 % (`MIN_SAVING`)."""
    names = [name for name in names if name != "pco" or word > 1]
    if data.nbytes < SMALL or not names:
        return "raw"
    sample = _sample(data, word)
    sizes = {name: len(CODECS[name].encode(sample, floats)) for name in names}
    best = min(sizes, key=lambda name: sizes[name] * _HANDICAP[name])
    return best if sizes[best] <= (1 - MIN_SAVING) * sample.nbytes else "raw"


def _sample(data: np.ndarray, word: int) -> np.ndarray:
    words = data.view(WORDS[word])
    block = SAMPLE_BYTES // word
    if words.size <= SAMPLE_BLOCKS * block:
        return words
    starts = np.linspace(0, words.size - block, SAMPLE_BLOCKS).astype(np.int64)
    return np.concatenate([words[start : start + block] for start in starts])


def encode(name: str, data: np.ndarray, word: int, floats: bool) -> tuple[str, list[Block]]:
    """Encode `data` with codec `name`, or as "raw" if `name` saves too little (`MIN_SAVING`); return codec and blocks."""
    raw: tuple[str, list[Block]] = ("raw", [data.data])
    if name == "raw":
        return raw
    words = data.view(WORDS[word])
    step = CHUNK_BYTES // word
    blocks: list[Block] = []
    for start in range(0, words.size, step):
        chunk = CODECS[name].encode(words[start : start + step], floats)
        blocks += [struct.pack("<I", len(chunk)), chunk]
    padding = -(-data.nbytes // MAX_EXPANSION) - size_of(blocks)
    if padding > 0:
        blocks.append(bytes(padding))
    return (name, blocks) if size_of(blocks) <= (1 - MIN_SAVING) * data.nbytes else raw


def size_of(blocks: Sequence[Block]) -> int:
    """Return the total size of the blocks, in bytes."""
    return sum(map(len, blocks))


def decode(name: str, member: memoryview, out: np.ndarray, word: int) -> None:
    """Decode a member into `out` (uint8); raise FormatError unless it decodes to exactly the size of `out`."""
    if name == "raw":
        if len(member) != out.nbytes:
            raise damaged(f"a raw member has {len(member)} bytes, expected {out.nbytes}")
        out[:] = np.frombuffer(member, np.uint8)
        return
    codec, words, step = CODECS[name], out.view(WORDS[word]), CHUNK_BYTES // word
    place = 0
    for start in range(0, words.size, step):
        if place + 4 > len(member):
            raise damaged("a compressed member ends before its last chunk")
        (length,) = struct.unpack_from("<I", member, place)
        chunk = member[place + 4 : place + 4 + length]
        if len(chunk) != length:
            raise damaged("a compressed member ends in the middle of a chunk")
        try:
            codec.decode(chunk, words[start : start + step])
        except FormatError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of Rust
                raise
            raise damaged(f"a compressed chunk cannot be decoded ({str(error)[:120]})") from None
        place += 4 + length
    if any(member[place:]):
        raise damaged("a compressed member has data after its last chunk")


def difference(new: np.ndarray, old: np.ndarray, word: int) -> np.ndarray:
    """Return the difference of two uint8 arrays of the same length, as a uint8 array of this length.

    Both are read as words of `word` bytes. These are subtracted modulo 2^n and zig-zag coded: small changes of either sign
    become small numbers, and `apply_difference` is an exact inverse for any bits.
    """
    gap = np.subtract(new.view(WORDS[word]), old.view(WORDS[word])).view(f"i{word}")
    folded = np.left_shift(gap, 1)
    np.right_shift(gap, 8 * word - 1, out=gap)  # all ones where the difference is negative
    return np.bitwise_xor(folded, gap, out=folded).view(np.uint8)


def apply_difference(delta: np.ndarray, old: np.ndarray, word: int) -> np.ndarray:
    """Return the bytes of the new version, given the old version and the difference `delta`; `delta` is overwritten."""
    unsigned = WORDS[word]
    folded = delta.view(unsigned)
    sign = np.negative(np.bitwise_and(folded, unsigned(1)))  # modulo 2^n: 0 or all ones
    np.right_shift(folded, unsigned(1), out=folded)
    np.bitwise_xor(folded, sign, out=folded)
    return np.add(folded, old.view(unsigned), out=folded).view(np.uint8)
