"""RankParts: send every rank's part of a checkpoint to rank 0, in the background.

When a run saves, each rank copies its own part and continues at once. The other ranks send their copies from a thread; rank 0
receives them in the saver's writing thread, just before it writes the file. The transfers have a process group of their own,
so that they never mix with the training's collectives. Every part has the number of its iteration: if rank 0 could not save an
earlier checkpoint, it discards the parts of that checkpoint.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.tree import Node, shift_leaves
from fledge.storage.history.history import Complete
from fledge.storage.saving.staging import Stager
from fledge.storage.saving.staging_buffer import StagingBuffer, padded
from fledge.training.connections import end_silent_connections
from fledge.training.ranks import Ranks

CLOSE_S = 60.0  # how long `close` waits for parts that are being sent, after a failure
FINISH_S = 3600.0  # and at the end of a training: rank 0's disk may be slow, and if rank 0 ends, sending ends too


class RankParts:
    """Sends parts of checkpoints to rank 0; every rank must create this object at the same point of the program."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._stager = Stager()
        self._free: queue.SimpleQueue[StagingBuffer] = queue.SimpleQueue()
        self._to_send: queue.SimpleQueue[tuple[int, Node, list[Leaf], StagingBuffer] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if ranks.size > 1:
            self._group = dist.new_group(backend="gloo")
            end_silent_connections()
            if not ranks.is_first:
                self._thread = threading.Thread(target=self._send_all, name="fledge-parts", daemon=True)
                self._thread.start()

    def send(self, part: Any, iteration: int) -> None:
        """Copy this rank's part and send it to rank 0 in the background; called on every rank but 0."""
        node, leaves = flatten(part)
        events = self._stager.prepare(leaves)
        try:
            buffer = self._free.get_nowait()
        except queue.Empty:
            buffer = StagingBuffer()
        buffer.reserve(content_size(leaves), pinned=bool(events))
        self._stager.copy(leaves, buffer, events)
        self._to_send.put((iteration, node, leaves, buffer))

    def receiver(self, iteration: int) -> Complete | None:
        """Return the function that adds the other ranks' parts to rank 0's checkpoint; None if there are no other ranks."""

        def complete(node: Node, leaves: Sequence[Leaf]) -> tuple[Node, Sequence[Leaf]]:
            entries, leaves = [*node["dict"]["ranks"]], list(leaves)
            for rank in range(1, self.ranks.size):
                part, more = self._receive(rank, iteration)
                entries.append(shift_leaves(part, len(leaves)))
                leaves += more
            return {"dict": {**node["dict"], "ranks": entries}}, leaves

        return complete if self.ranks.size > 1 else None

    def _send_all(self) -> None:
        while (item := self._to_send.get()) is not None:
            iteration, node, leaves, buffer = item
            described = [(leaf.path, leaf.kind, leaf.dtype, tuple(leaf.shape), leaf.nbytes) for leaf in leaves]
            header = np.frombuffer(bytearray(pickle.dumps((node, described))), np.uint8)
            content = buffer.content(content_size(leaves))
            try:
                for array in (np.array([iteration, header.nbytes, content.nbytes]), header, content):
                    dist.send(torch.from_numpy(array), 0, group=self._group)
            except RuntimeError:  # rank 0 has ended: the next collective of this rank's training raises
                return
            self._free.put(buffer)

    def _receive(self, rank: int, iteration: int) -> tuple[Node, list[Leaf]]:
        sizes, found = torch.empty(3, dtype=torch.int64), -1
        while found < iteration:
            dist.recv(sizes, rank, group=self._group)
            found, *nbytes = sizes.tolist()
            header, content = (torch.empty(size, dtype=torch.uint8) for size in nbytes)
            dist.recv(header, rank, group=self._group)
            dist.recv(content, rank, group=self._group)
        node, described = pickle.loads(header.numpy().tobytes())  # from a process of this run, not from a file
        leaves, start = [], 0
        for path, kind, dtype, shape, size in described:
            data = content.numpy()[start : start + size]
            leaves.append(Leaf(("ranks", rank, *path), kind, dtype, shape, size, data=data))
            start += padded(size)
        return node, leaves

    def close(self, seconds: float = CLOSE_S) -> None:
        """Wait until all parts are sent, but at most some seconds."""
        if self._thread is not None:
            self._to_send.put(None)
            self._thread.join(seconds)


def content_size(leaves: Sequence[Leaf]) -> int:
    """Return the number of bytes that leaves (the tensors of a state) take in a staging buffer."""
    return sum(padded(leaf.nbytes) for leaf in leaves)
