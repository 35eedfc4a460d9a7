"""Choose a store for each key by measuring sizes on some chunks of its data.

A key is packed with others if that is smallest or nearly so, because packed rows decode fastest; it gets a general codec if
that is much smaller or its frames are large; and it is stored raw if no codec saves 5 %. Choices depend on sizes only, not on
time, so the same data gives the same stores. docs/storage/replay.md has a table of the layouts. Large frames of bytes that are
only 0 and 1 go to a store of bits (not in layout "episode").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from fledge.core.errors import ConfigError
from fledge.replay.checks import damaged
from fledge.replay.packing import chunks as packing
from fledge.replay.schema import KeySpec, Words
from fledge.replay.stores.base import Store, chunk_rows
from fledge.replay.stores.bits import ROWS as BIT_ROWS
from fledge.replay.stores.bits import BitStore
from fledge.replay.stores.block import BITS, CODECS, BlockStore, encode_block
from fledge.replay.stores.packed import PackedStore
from fledge.storage.format import codecs

Specs = Mapping[str, KeySpec]
Layout = Literal["frame", "chunk", "episode"]
PACKED_ROWS = 8  # 8 to 32 give the same size on navigation rollouts, and fewer decode faster (measured)
MAX_COLUMNS = 2048  # larger frames pay off with a general codec
BLOCK_BYTES, MAX_BLOCK_ROWS = 65_536, 64
WORTH = 3.0  # a general codec must be this much smaller: packed rows decode 20 to 30 times faster (measured)
ENOUGH = 8.0  # if packing saves this much, it is chosen
MEASURED_CHUNKS = 8  # more of large frames, to measure as many frames as of packed ones
_CANDIDATES = codecs.candidates(9, 0)


def choose_layout(layout: Layout | None, compress_epi: bool | None) -> Layout:
    """Return the layout that `layout` or `compress_epi` selects."""
    named: Layout | None = None if compress_epi is None else "episode" if compress_epi else "frame"
    if layout is not None and layout not in get_args(Layout):
        raise ConfigError(f"layout is {layout!r}, but must be one of {', '.join(get_args(Layout))}.")
    if None not in (layout, named) and layout != named:
        raise ConfigError(
            f"compress_epi={compress_epi} means layout {named!r}, but layout is {layout!r}: pass only one."
        )
    return layout or named or "chunk"


def plan_stores(specs: Specs, words: Words, layout: Layout, img_compressed: bool, cache_bytes: int) -> list[Store]:
    """Return empty stores for the keys, chosen by the sizes that the frames in `words` compress to."""
    packed: dict[str, KeySpec] = {}
    blocks: list[Store] = []
    for key, spec in specs.items():
        frames = min(max(BLOCK_BYTES // max(spec.frame_bytes, 1), 1), MAX_BLOCK_ROWS)
        rows = {"frame": 1, "chunk": frames, "episode": None}[layout]
        raw = len(spec.shape) >= 2 and not img_compressed
        codec = "raw" if raw else _choose(spec, words[key], layout, rows)
        if codec == "packed":
            packed[key] = spec
        elif codec == BITS and layout != "episode":
            blocks.append(BitStore(key, spec))
        else:
            blocks.append(BlockStore(key, spec, rows, codec, cache_bytes))
    return [*([PackedStore(packed, packed_rows(layout))] if packed else []), *blocks]


def packed_rows(layout: str) -> int:
    """Return the number of frames per packed chunk."""
    return 1 if layout == "frame" else PACKED_ROWS


def _choose(spec: KeySpec, words: np.ndarray, layout: str, rows: int | None) -> str:
    step = min(rows or MEASURED_CHUNKS * MAX_BLOCK_ROWS, len(words))
    count = max(MEASURED_CHUNKS, MEASURED_CHUNKS * PACKED_ROWS // step)
    last = len(words) // step - 1  # whole chunks, evenly spread
    starts = np.unique(np.linspace(0, last, count).astype(int)) * step
    parts = [words[a : a + step] for a in starts.tolist()]
    sample = np.concatenate(parts)
    raw = sample.nbytes
    turned = [np.ascontiguousarray(part.reshape(len(part), -1).T).reshape(-1).view(np.uint8) for part in parts]
    middle = turned[len(turned) // 2]
    codec = codecs.choose(middle, spec.dtype.itemsize, False, _CANDIDATES)
    if spec.dtype.itemsize == 1 and raw >= codecs.SMALL and sample.max(initial=0) <= 1:
        codec = BITS
    size = raw if codec == "raw" else sum(len(encode_block(codec, part, spec.dtype.itemsize)) for part in turned)
    if layout != "episode" and packing.Columns.count(spec) <= MAX_COLUMNS and spec.frame_bytes:
        packed = _packed_size(spec, sample, packed_rows(layout))
        if packed <= raw / ENOUGH or packed <= min(size * WORTH, (1 - codecs.MIN_SAVING) * raw):
            return "packed"
    return codec if size <= (1 - codecs.MIN_SAVING) * raw else "raw"


def _packed_size(spec: KeySpec, sample: np.ndarray, step: int) -> float:
    columns = packing.Columns({"": spec})
    packed = packing.pack(columns.table({"": sample}), columns.kinds, chunk_rows(len(sample), step))
    return float(packed.column_bits.sum() + len(columns.kinds) * (len(packed.offsets) - 1)) / 8


def build_stores(plan: Any, specs: Specs, cache_bytes: int) -> list[Store]:
    """Return empty stores as the plan in a saved state describes them; raise FormatError if the plan is invalid."""
    stores: list[Store] = []
    seen: list[str] = []
    for row in plan:
        keys, rows, codec = list(row["keys"]), row["rows"], row["codec"]
        seen += keys
        known = codec == "packed" or (codec in (*CODECS, BitStore.codec) and len(keys) == 1)
        if not known or not set(keys) <= set(specs) or not (rows is None or (type(rows) is int and rows >= 1)):
            raise damaged("describes a store with an unknown codec, unknown keys or an invalid chunk length")
        if codec == BitStore.codec and rows != BIT_ROWS:
            raise damaged("has bit-packed chunks of an invalid number of frames")
        if codec in (BITS, BitStore.codec) and specs[keys[0]].dtype.itemsize != 1:
            raise damaged(f"has {keys[0]!r} packed to bits, but its dtype is larger than one byte")
        if codec == "packed":
            if (
                rows is None
                or rows > packing.MAX_ROWS
                or any(packing.Columns.count(specs[k]) > MAX_COLUMNS for k in keys)
            ):
                raise damaged("has packed chunks of an invalid size")
            stores.append(PackedStore({k: specs[k] for k in keys}, rows))
        elif codec == BitStore.codec:
            stores.append(BitStore(keys[0], specs[keys[0]]))
        else:
            stores.append(BlockStore(keys[0], specs[keys[0]], rows, codec, cache_bytes))
    if sorted(seen) != sorted(specs):
        raise damaged("does not hold every key exactly once")
    return stores
