"""Average a tensor over ranks, in one order of summation wherever the ranks run: rank 0's values first, then rank 1's, ...

`SharedAverage`, for ranks on one machine, through shared memory:

    segment [2, ranks, n]     every rank copies its values into its own row; a barrier; every rank adds up all rows

gloo sends tensors through sockets, even to a rank on the same machine: for two ranks and the gradients of the preset `fast`
that takes three to five times as long. Here gloo carries the barrier only, so a lost rank raises the same errors. Two
halves of the segment take turns: a rank that writes one half has passed a barrier after which all ranks had read that half.

`ExchangedAverage`, for ranks on several machines, through gloo: each rank receives one part of the values of all ranks, adds
them up, and sends the sums to all. That is as many bytes as gloo's own all_reduce sends, whose order of summation depends on
the part.
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
        """Return an average for tensors like `values`; None if the ranks do not share a machine's memory, or it is full."""
        ranks, rank, size = dist.get_world_size(), dist.get_rank(), values.numel()
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
        add_rows(rows, values.view(-1))
        values.div_(len(rows))


class ExchangedAverage:
    """Averages tensors of `size` values over all ranks of the process group."""

    def __init__(self, size: int) -> None:
        ranks = dist.get_world_size()
        part = -(-size // ranks)
        self._parts, self._rows, self._sums = torch.zeros(ranks, part), torch.empty(ranks, part), torch.empty(part)

    def __call__(self, values: Tensor) -> None:
        """Average a tensor over all ranks, in place."""
        size, flat = values.numel(), self._parts.view(-1)
        flat[:size].copy_(values.view(-1))
        dist.all_to_all_single(self._rows, self._parts)
        add_rows(self._rows, self._sums)
        dist.all_gather_single(flat, self._sums)
        torch.div(flat[:size], len(self._rows), out=values.view(-1))


def connect_average(values: Tensor) -> SharedAverage | ExchangedAverage | None:
    """Return an average for tensors like `values`; None if they are on a GPU, not float32, or so small that gloo is as fast.

    All ranks must call this at the same point.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32 or values.nbytes < LEAST_BYTES:
        return None
    return SharedAverage.connect(values) or ExchangedAverage(values.numel())


def add_rows(rows: Tensor, out: Tensor) -> None:
    """Add up the rows of a tensor [ranks, n] into `out` [n], in their order; torch.sum does not promise any order."""
    torch.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        out.add_(row)
