"""Save and load the complete state of a buffer, in a form that `storage.save_checkpoint` can write.

Contract
    `save(buffer)` copies small arrays and shares large ones: chunks stay compressed in their segments, whose bytes never
    change. `load(buffer, state)` validates everything against the buffer's keys before it changes the buffer: a damaged
    state raises FormatError, the state of a different buffer InputError.
"""

from __future__ import annotations

import multiprocessing
import os
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.core.errors import FormatError, InputError
from fledge.replay.checks import damaged, reading
from fledge.replay.index.prefix_sum import PrefixSum
from fledge.replay.index.priorities import Priorities
from fledge.replay.ingest.open_episodes import OpenEpisodes
from fledge.replay.saved_form import REPLAY, check_form
from fledge.replay.schema import KeySpec, Schema
from fledge.replay.stores import legacy
from fledge.replay.stores.base import Store
from fledge.replay.stores.plan import build_stores

if TYPE_CHECKING:
    from fledge.replay.buffer import DictReplayBuffer

VERSION = 2
READABLE = (1, 2)  # 1 has occupancy maps in the form that `stores.legacy` reads, and no "stack" in its plan


def settings(buffer: DictReplayBuffer) -> dict[str, Any]:
    """Return the constructor arguments of a new buffer that can load the state of this buffer."""
    schema, priorities = buffer.schema, buffer.priorities
    same = ("max_size", "device", "img_compressed", "layout", "n_step", "gamma", "cache_bytes", "segment_frames")
    return {
        **{name: getattr(buffer, name) for name in (*same, "pin_memory")},
        "keys": None if schema.open else {name: schema.specs.get(name) for name in schema.names},
        "decode_threads": buffer.workers.threads,
        **({"prioritized": True, "alpha": priorities.alpha, "beta": priorities.beta} if priorities else {}),
    }


def save(buffer: DictReplayBuffer) -> dict[str, Any]:
    """Return the state of a buffer; it shares the arrays of compressed chunks with the buffer."""
    index, priorities = buffer.index, buffer.priorities
    return {
        "version": VERSION,
        "keys": list(buffer.schema.names),
        "specs": {k: spec.to_state() for k, spec in buffer.schema.specs.items()},
        "layout": buffer.layout,
        "plan": [store.plan() for store in buffer.stores],
        "stores": [store.state() for store in buffer.stores],
        "index": index.state_dict(),
        "measured": buffer.measured,
        "rng": buffer.rng.bit_generator.state,
        "priorities": priorities.state(index.evicted_total, index.total) if priorities else None,
        "open": None if buffer.open is None else {"num_envs": buffer.open.num_envs, **buffer.open.state()},
    }


def load(buffer: DictReplayBuffer, state: Mapping[str, Any]) -> None:
    """Load a saved state into a buffer."""
    with reading():
        version = state["version"]
        if type(version) is int and version not in READABLE:
            raise FormatError(
                f"The saved replay has version {str(version)[:20]}, but this fledge reads up to {VERSION}: load it with the "
                "fledge that saved it."
            )
        state = check_form(state, REPLAY)
        if not buffer.schema.open and state["keys"] != buffer.schema.names:
            saved_keys = str(state["keys"])[:200]
            raise InputError(
                f"The saved replay has keys={saved_keys}, but this buffer has {buffer.schema.names}: use the same keys."
            )
        saved = {name: KeySpec.from_state(spec) for name, spec in state["specs"].items()}
        names = {name: saved.get(name) for name in state["keys"]}
        schema = Schema(names or None, buffer.schema.reserved)
        for name, spec in buffer.schema.specs.items():
            if schema.specs.get(name, spec) != spec:
                raise InputError(
                    f"The saved replay has {schema.specs[name]} for {name!r}, but this buffer has {spec}: load it "
                    "into a new buffer with the same spec."
                )
        index = PrefixSum(buffer.max_size)
        index.load_state_dict(state["index"])
        if index.total > buffer.max_size:
            raise InputError(
                f"The saved replay has {index.total} transitions, but max_size is {buffer.max_size}: raise max_size."
            )
        stores = _load_stores(buffer, state, schema, index)
        priorities = _load_priorities(buffer, state, index)
        opened = _load_open(buffer, state, schema)
        rng = np.random.default_rng()
        rng.bit_generator.state = state["rng"]
        measured = state["measured"]
    schema.specs = {**buffer.schema.specs, **schema.specs}
    buffer.schema = schema
    buffer.index, buffer.stores, buffer.priorities, buffer.open = index, stores, priorities, opened
    buffer.measured, buffer.rng = measured, rng


def _load_stores(buffer: DictReplayBuffer, state: Mapping[str, Any], schema: Schema, index: PrefixSum) -> list[Store]:
    if not state["stores"]:
        if index.total:
            raise damaged("has an index of episodes but no data")
        return []
    specs = schema.internal()
    stores = build_stores(state["plan"], specs, buffer.layout, buffer.cache_bytes)
    if len(stores) != len(state["stores"]):
        raise damaged("describes a different number of stores than it holds")
    for store, plan, saved in zip(stores, state["plan"], state["stores"], strict=True):
        if plan["codec"] == legacy.CODEC:
            for frames in legacy.read_frames(saved, store.keys[0], specs):
                store.append(store.encode({store.keys[0]: frames}))
        else:
            store.load(saved)
        final = not schema.with_final().isdisjoint(store.keys)
        if not np.array_equal(store.length.view(), index.values + final):
            raise damaged("has an index whose episode lengths differ from its data")
    return stores


def _load_priorities(buffer: DictReplayBuffer, state: Mapping[str, Any], index: PrefixSum) -> Priorities | None:
    if buffer.priorities is None:
        return None
    priorities = Priorities(buffer.max_size, buffer.priorities.alpha, buffer.priorities.beta)
    if state["priorities"] is None:
        raise InputError("The saved replay has no priorities: load it into a buffer with prioritized=False.")
    priorities.load(state["priorities"], index.evicted_total, index.total)
    return priorities


def _load_open(buffer: DictReplayBuffer, state: Mapping[str, Any], schema: Schema) -> OpenEpisodes | None:
    saved = state["open"]
    if saved is None:
        return None
    opened = OpenEpisodes(
        len(saved["count"]), schema.internal(), schema.with_final(), buffer.segment_frames, buffer.max_size
    )
    opened.load(saved)
    return opened


def rebuild(kind: type[DictReplayBuffer], arguments: dict[str, Any], state: dict[str, Any], pid: int) -> Any:
    """Make the copy of a buffer from what its `__reduce__` returned.

    In a worker process other than `pid`, the process of the original, the copy samples differently.
    """
    from fledge.replay.buffer import DictReplayBuffer

    buffer = kind.__new__(kind)
    DictReplayBuffer.__init__(buffer, **arguments)
    load(buffer, state)
    name = multiprocessing.current_process().name
    if pid != os.getpid() and name != "MainProcess":
        buffer.forked(zlib.crc32(name.encode()))
    return buffer
