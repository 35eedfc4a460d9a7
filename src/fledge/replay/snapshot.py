"""A buffer's whole state, as something `storage.save_checkpoint` can write, and back.

Contract
    `save(buffer)` copies the small things and shares the large ones: chunks stay compressed, in the segments they
    live in, whose bytes never change. `load(buffer, state)` checks everything against the buffer's keys before it touches
    the buffer; a damaged state raises FormatError, one of another buffer InputError, and the buffer is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.core.errors import FormatError, InputError
from fledge.replay.index.prefix_sum import PrefixSum
from fledge.replay.index.priorities import Priorities
from fledge.replay.ingest.open_episodes import OpenEpisodes
from fledge.replay.saved import damaged, reading
from fledge.replay.schema import KeySpec, Schema
from fledge.replay.stores.base import Store
from fledge.replay.stores.plan import build_stores, describe_stores

if TYPE_CHECKING:
    from fledge.replay.buffer import DictReplayBuffer

VERSION = 1


def settings(buffer: DictReplayBuffer) -> dict[str, Any]:
    """What to make a buffer with that is to take over this one's state; the draws come with the state."""
    schema, priorities = buffer.schema, buffer.priorities
    same = ("max_size", "device", "img_compressed", "layout", "n_step", "gamma", "cache_bytes", "segment_frames")
    return {
        **{name: getattr(buffer, name) for name in (*same, "pin_memory")},
        "keys": None if schema.open else {name: schema.specs.get(name) for name in schema.names},
        "decode_threads": buffer.workers.threads,
        **({"prioritized": True, "alpha": priorities.alpha, "beta": priorities.beta} if priorities else {}),
    }


def save(buffer: DictReplayBuffer) -> dict[str, Any]:
    """The state; arrays of chunks are shared with the buffer."""
    index, priorities = buffer.index, buffer.priorities
    return {
        "version": VERSION,
        "keys": list(buffer.schema.names),
        "specs": {k: spec.to_state() for k, spec in buffer.schema.specs.items()},
        "layout": buffer.layout,
        "plan": describe_stores(buffer.stores),
        "stores": [store.state() for store in buffer.stores],
        "index": index.state_dict(),
        "measured": buffer.measured,
        "rng": buffer.rng.bit_generator.state,
        "priorities": priorities.state(index.evicted_total, index.total) if priorities else None,
        "open": None if buffer.open is None else {"num_envs": buffer.open.num_envs, **buffer.open.state()},
    }


def load(buffer: DictReplayBuffer, state: Mapping[str, Any]) -> None:
    """Bring a buffer into a saved state."""
    with reading():
        if state["version"] != VERSION:
            raise FormatError(
                f"the saved replay has version {state['version']}; this Fledge reads {VERSION}: update Fledge."
            )
        if not buffer.schema.open and list(state["keys"]) != buffer.schema.names:
            raise InputError(
                f"the saved replay has keys {state['keys']}, this buffer {buffer.schema.names}: make it with those keys."
            )
        saved = {str(k): KeySpec.from_state(v) for k, v in state["specs"].items()}
        names = [str(name) for name in state["keys"]]
        schema = Schema({name: saved.get(name) for name in names} if names else None, buffer.schema.reserved)
        for name, spec in buffer.schema.specs.items():
            if schema.specs.get(name, spec) != spec:
                raise InputError(
                    f"the saved replay has {schema.specs[name]} under {name!r}, this buffer {spec}: change the spec."
                )
        index = PrefixSum(buffer.max_size)
        index.load_state_dict(dict(state["index"]))
        if index.total > buffer.max_size:
            raise InputError(
                f"the saved replay has {index.total} transitions, this buffer room for {buffer.max_size}: raise max_size."
            )
        stores = _load_stores(buffer, state, schema, index)
        priorities = _load_priorities(buffer, state, index)
        opened = _load_open(buffer, state, schema)
        rng = np.random.default_rng()
        rng.bit_generator.state = state["rng"]
        measured = bool(state["measured"])
    schema.specs = {**buffer.schema.specs, **schema.specs}
    buffer.schema = schema
    buffer.index, buffer.stores, buffer.priorities, buffer.open = index, stores, priorities, opened
    buffer.measured, buffer.rng = measured, rng


def _load_stores(buffer: DictReplayBuffer, state: Mapping[str, Any], schema: Schema, index: PrefixSum) -> list[Store]:
    if not state["stores"]:
        if index.total:
            raise damaged("has an index but no data")
        return []
    specs = schema.internal()
    stores = build_stores(state["plan"], specs, buffer.cache_bytes)
    if len(stores) != len(state["stores"]):
        raise damaged("has a plan that does not fit its stores")
    for store, saved in zip(stores, state["stores"], strict=True):
        store.load(saved)
        final = not schema.with_final().isdisjoint(store.keys)
        if not np.array_equal(store.length.view(), index.values + final):
            raise damaged("has an index that does not agree with its data")
    return stores


def _load_priorities(buffer: DictReplayBuffer, state: Mapping[str, Any], index: PrefixSum) -> Priorities | None:
    if buffer.priorities is None:
        return None
    priorities = Priorities(buffer.max_size, buffer.priorities.alpha, buffer.priorities.beta)
    if state["priorities"] is None:
        raise InputError("the saved replay has no priorities: load it into a buffer with prioritized=False.")
    priorities.load(state["priorities"], index.evicted_total, index.total)
    return priorities


def _load_open(buffer: DictReplayBuffer, state: Mapping[str, Any], schema: Schema) -> OpenEpisodes | None:
    saved = state["open"]
    if saved is None:
        return None
    num_envs = int(np.asarray(saved["count"]).shape[0])
    opened = OpenEpisodes(num_envs, schema.internal(), schema.with_final(), buffer.segment_frames, buffer.max_size)
    opened.load(saved)
    return opened
