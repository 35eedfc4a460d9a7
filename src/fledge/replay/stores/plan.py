"""Choose a store for each key by measuring sizes on some chunks of its data.

Small frames are packed with other keys, images go to a store of tiles: whichever is smaller, because single frames decode fast
from both. A general codec is chosen if it is much smaller, and in layout "episode"; a key is stored raw if no codec saves 5 %.
Choices depend on sizes only, not on time, so the same data gives the same stores. docs/storage/replay.md has a table of the
layouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from fledge.core.errors import ConfigError
from fledge.replay.checks import damaged
from fledge.replay.packing import chunks as packing
from fledge.replay.packing.tile_writer import MAX_PLANES
from fledge.replay.schema import KeySpec, Words
from fledge.replay.stores import legacy
from fledge.replay.stores.base import Store, chunk_rows
from fledge.replay.stores.block import BITS, CODECS, BlockStore, encode_block
from fledge.replay.stores.packed import PackedStore
from fledge.replay.stores.tiles import TileStore, find_stack, tile_rows
from fledge.storage.format import codecs

Specs = Mapping[str, KeySpec]
Layout = Literal["frame", "chunk", "episode"]
PACKED_ROWS = 8  # 8 to 32 give the same size on navigation rollouts, and fewer decode faster (measured)
MAX_COLUMNS = 2048  # larger frames pay off with a general codec
BLOCK_BYTES, MAX_BLOCK_ROWS = 65_536, 64
LEAST_TILED = 1024  # bytes of a frame; below, the headers of tiles cost more than they save
WORTH = 3.0  # a general codec must be this much smaller: packed rows and tiles decode 20 to 30 times faster (measured)
ENOUGH = 8.0  # if packing or tiles save this much, they are chosen
MEASURED_CHUNKS = 8  # more of large frames, to measure as many frames as of packed ones
STACK_FRAMES = 32  # in which to look for stacked images
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
    others: list[Store] = []
    for key, spec in specs.items():
        frames = min(max(BLOCK_BYTES // max(spec.frame_bytes, 1), 1), MAX_BLOCK_ROWS)
        rows = {"frame": 1, "chunk": frames, "episode": None}[layout]
        raw = len(spec.shape) >= 2 and not img_compressed
        chosen = "raw" if raw else _choose(key, spec, words[key], layout, rows)
        if isinstance(chosen, TileStore):
            others.append(chosen)
        elif chosen == "packed":
            packed[key] = spec
        else:
            others.append(BlockStore(key, spec, rows, chosen, cache_bytes))
    return [*([PackedStore(packed, packed_rows(layout))] if packed else []), *others]


def packed_rows(layout: str) -> int:
    """Return the number of frames per packed chunk."""
    return 1 if layout == "frame" else PACKED_ROWS


def _choose(key: str, spec: KeySpec, words: np.ndarray, layout: Layout, rows: int | None) -> str | TileStore:
    """Return a codec, "packed" or an empty store of tiles."""
    parts = _sample(words, rows or MEASURED_CHUNKS * MAX_BLOCK_ROWS)
    raw, fast, size = float(spec.frame_bytes), float("inf"), float("inf")  # bytes per frame
    found: str | TileStore = "packed"
    if layout != "episode" and raw:
        if packing.Columns.count(spec) <= MAX_COLUMNS:
            fast = _packed_size(spec, np.concatenate(parts), packed_rows(layout))
        for store in _tile_stores(key, spec, words, layout):
            sample = _sample(words, store.step)
            tiled = sum(len(store.encode({key: part}).data) for part in sample) / sum(map(len, sample))
            if tiled < fast:
                fast, found = tiled, store
        if fast <= raw / ENOUGH:
            return found
    turned = [np.ascontiguousarray(part.reshape(len(part), -1).T).reshape(-1).view(np.uint8) for part in parts]
    codec = codecs.choose(turned[len(turned) // 2], spec.dtype.itemsize, False, _CANDIDATES)
    total = sum(part.nbytes for part in parts)
    if spec.dtype.itemsize == 1 and total >= codecs.SMALL and max(part.max(initial=0) for part in parts) <= 1:
        codec = BITS
    if codec != "raw":
        size = sum(len(encode_block(codec, part, spec.dtype.itemsize)) for part in turned) / sum(map(len, parts))
    if fast <= min(size * WORTH, (1 - codecs.MIN_SAVING) * raw):
        return found
    return codec if size <= (1 - codecs.MIN_SAVING) * raw else "raw"


def _sample(words: np.ndarray, step: int) -> list[np.ndarray]:
    """Return some whole chunks of `step` frames, evenly spread."""
    step = min(step, len(words))
    count = max(MEASURED_CHUNKS, MEASURED_CHUNKS * PACKED_ROWS // step)
    starts = np.unique(np.linspace(0, len(words) // step - 1, count).astype(int)) * step
    return [words[a : a + step] for a in starts.tolist()]


def _tile_stores(key: str, spec: KeySpec, words: np.ndarray, layout: Layout) -> list[TileStore]:
    """Return empty stores of tiles that can hold the frames: plain, and if they look so, as stacks."""
    middle = max(len(words) - STACK_FRAMES, 0) // 2
    ways = [(1, 1, math.prod(spec.shape)), find_stack(spec, words[middle : middle + STACK_FRAMES])]
    fitting = [way for way in ways if way and spec.frame_bytes >= LEAST_TILED and TileStore.fits(spec, way)]
    return [TileStore(key, spec, tile_rows(spec, layout, way), way) for way in fitting]


def _packed_size(spec: KeySpec, sample: np.ndarray, step: int) -> float:
    """Return the bytes per frame if the sample is packed."""
    columns = packing.Columns({"": spec})
    packed = packing.pack(columns.table({"": sample}), columns.kinds, chunk_rows(len(sample), step))
    return float(packed.column_bits.sum() + len(columns.kinds) * (len(packed.offsets) - 1)) / 8 / len(sample)


def build_stores(plan: Any, specs: Specs, layout: Layout, cache_bytes: int) -> list[Store]:
    """Return empty stores as the plan in a saved state describes them; raise FormatError if the plan is invalid."""
    stores: list[Store] = []
    seen: list[str] = []
    for row in plan:
        keys, rows, codec = list(row["keys"]), row["rows"], row["codec"]
        seen += keys
        if not keys or not set(keys) <= set(specs) or not (rows is None or (type(rows) is int and rows >= 1)):
            raise damaged("describes a store with unknown keys or an invalid chunk length")
        spec = specs[keys[0]]
        if codec in (BITS, legacy.CODEC) and spec.dtype.itemsize != 1:
            raise damaged(f"has {keys[0]!r} packed to bits, but its dtype is larger than one byte")
        if codec == "packed":
            large = any(packing.Columns.count(specs[k]) > MAX_COLUMNS for k in keys)
            if rows is None or rows > packing.MAX_ROWS or large:
                raise damaged("has packed chunks of an invalid size")
            stores.append(PackedStore({k: specs[k] for k in keys}, rows))
        elif len(keys) > 1 or codec not in (*CODECS, legacy.CODEC, TileStore.codec):
            raise damaged("describes a store with an unknown codec")
        elif codec in CODECS:
            stores.append(BlockStore(keys[0], spec, rows, codec, cache_bytes))
        elif codec == legacy.CODEC and not TileStore.fits(spec):  # larger maps than tiles hold
            stores.append(BlockStore(keys[0], spec, 1, BITS, cache_bytes))
        else:
            stores.append(_tile_store(keys[0], spec, layout, row, codec == legacy.CODEC))
    if sorted(seen) != sorted(specs):
        raise damaged("does not hold every key exactly once")
    return stores


def _tile_store(key: str, spec: KeySpec, layout: Layout, row: Mapping[str, Any], old: bool) -> TileStore:
    """Return an empty store of tiles; `old` is a state in which occupancy maps were not stored as tiles."""
    saved: Any = [1, 1, math.prod(spec.shape)] if old else row.get("stack")
    if not isinstance(saved, list) or len(saved) != 3 or not all(type(n) is int for n in saved):
        raise damaged(f"has images of {key!r} without the size of their stacks")
    stack = (saved[0], saved[1], saved[2])
    if not TileStore.fits(spec, stack):
        raise damaged(f"has images of {key!r} of an invalid size")
    rows = tile_rows(spec, layout, stack) if old else row["rows"]
    if rows is None or rows * stack[1] > MAX_PLANES:
        raise damaged(f"has chunks of {key!r} of an invalid number of frames")
    return TileStore(key, spec, rows, stack)
