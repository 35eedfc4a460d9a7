"""SharedAverage: average a tensor over the ranks of one machine through shared memory.

    segment [2, ranks, n]     every rank copies its values into its own row; a barrier; every rank adds up all rows

gloo sends tensors through sockets, even to a rank on the same machine: for two ranks and the gradients of the preset `fast`
that takes three to five times as long. Here gloo carries the barrier only, so a lost rank raises the same errors. Two
halves of the segment take turns: a rank that writes one half has passed a barrier after which all ranks had read that half.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

FOLDER = Path("/dev/shm")
LEAST_BYTES = 1 << 16  # below, gloo is as fast


class SharedAverage:
    """Averages tensors of one size over all ranks; made by all ranks at the same point (`connect`)."""

    def __init__(self, file: int, rank: int, ranks: int, size: int) -> None:
        memory = mmap.mmap(file, 8 * ranks * size)
        self._halves = torch.frombuffer(memory, dtype=torch.float32).view(2, ranks, size)
        self._rank, self._turn, self._token = rank, 0, torch.zeros(1)

    @classmethod
    def connect(cls, values: Tensor) -> SharedAverage | None:
        """Return an average for tensors like `values`; None if the ranks do not share a machine's memory, or it is small."""
        size = values.numel()
        if values.device.type != "cpu" or values.dtype != torch.float32 or 4 * size < LEAST_BYTES:
            return None
        ranks, rank = dist.get_world_size(), dist.get_rank()
        file, path = -1, [""]
        if rank == 0:
            try:
                file, path[0] = tempfile.mkstemp(prefix="fledge_", dir=FOLDER)
                os.posix_fallocate(file, 0, 8 * ranks * size)  # raises if the memory is full; writing to it would crash
            except (OSError, AttributeError):
                path[0] = ""
        dist.broadcast_object_list(path)
        if rank > 0 and path[0]:
            try:
                file = os.open(path[0], os.O_RDWR)
            except OSError:  # another machine
                file = -1
        opened = torch.tensor([float(file >= 0 and path[0] != "")])
        dist.all_reduce(opened)
        if rank == 0 and path[0]:
            os.unlink(path[0])
        try:
            return cls(file, rank, ranks, size) if opened.item() == ranks else None
        finally:
            if file >= 0:
                os.close(file)

    def __call__(self, values: Tensor) -> None:
        """Average a tensor over all ranks, in place."""
        rows = self._halves[self._turn]
        self._turn = 1 - self._turn
        rows[self._rank].copy_(values.view(-1))
        dist.all_reduce(self._token)
        torch.sum(rows, 0, out=values.view(-1))
        values.div_(len(rows))
