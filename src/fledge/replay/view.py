"""Read-only view of a buffer's episodes, decoded on access, and its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fledge.replay.schema import from_words

if TYPE_CHECKING:
    from fledge.replay.buffer import DictReplayBuffer


class Episodes(Sequence[torch.Tensor]):
    """Frames of one key, [T, ...] per episode, oldest first; including the final one if `next_X` is derived."""

    def __init__(self, buffer: DictReplayBuffer, key: str) -> None:
        self._buffer, self._key = buffer, key

    def __len__(self) -> int:
        return self._buffer.num_episodes

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        buffer, key = self._buffer, self._key
        with buffer.lock:
            number = range(len(self))[number]
            rows = int(buffer.index.values[number]) + (key in buffer.schema.with_final())
            store = next(store for store in buffer.stores if key in store.keys)
            pick = store.take(np.full(rows, number), np.arange(rows), buffer.workers)
            return from_words(pick(key, slice(None)).copy(), buffer.schema.internal()[key])


def buffer_stats(buffer: DictReplayBuffer) -> dict[str, Any]:
    """Return bytes used, and codec, bytes per frame and compression ratio of each key."""
    rows, specs = {}, buffer.schema.internal() if buffer.stores else {}
    for store in buffer.stores:
        for key in store.keys:
            raw, per_frame = specs[key].frame_bytes, store.bytes_per_frame(key)
            ratio = raw / max(per_frame, 1e-9)
            rows[key] = {"codec": store.codec, "bytes_per_frame": per_frame, "raw": raw, "ratio": ratio}
    kept, held = (sum(getattr(s.blobs, name) for s in buffer.stores) for name in ("nbytes", "held_bytes"))
    counts = {"transitions": len(buffer), "episodes": buffer.num_episodes}
    return {**counts, "bytes": kept, "held_bytes": held, "keys": rows}
