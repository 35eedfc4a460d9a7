"""Ranks: the processes that share a run. One per core on a CPU (gloo), one per GPU on CUDA (NCCL).

`fledge train` is rank 0 and starts the others; under `torchrun` every process is told its rank by the environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fledge.core.errors import ConfigError, FledgeError
from fledge.core.machine import default_threads, pick_device, torch_threads

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among those of the run."""

    rank: int = 0
    size: int = 1
    local: int = 0  # place among the ranks on this machine

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def together(self, work: Callable[[], T]) -> T:
        """Do what may fail on any rank: if it does, rank 0 raises the first error, and the others leave without a word."""
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        if self.size > 1:
            errors: list[str | None] = [None] * self.size
            dist.all_gather_object(errors, None if error is None else str(error) or repr(error))
            failed = [rank for rank, text in enumerate(errors) if text is not None]
            if failed and not self.is_first:
                raise SystemExit(1)
            if failed and error is None:
                error = FledgeError(f"Rank {failed[0]} did not start: {errors[failed[0]]}")
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item, in order, on rank 0; an empty list elsewhere. In memory only, nothing is written."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.gather_object(item, items if self.is_first else None)
        return items if self.is_first else []

    def share(self, item: Any) -> Any:
        """Rank 0's item, on every rank."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box)
        return box[0]


def default_ranks(device: str, num_envs: int = 0) -> int:
    """One rank per GPU, or per core of a CPU; fewer where `num_envs` cannot be shared out evenly."""
    gpus = torch.cuda.device_count()
    if pick_device(device, gpus) == "cpu":
        most = default_threads()
    else:
        most = 1 if device.startswith("cuda:") else gpus
    return next(size for size in range(most, 0, -1) if num_envs % size == 0)


def under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "FLEDGE_CHILD" not in os.environ


@contextlib.contextmanager
def joined_ranks(size: int, device: str, child_args: Sequence[str], threads: int = 0) -> Iterator[Ranks]:
    """Yield this process's place among `size` ranks, starting the others if nobody has.

    Args:
        child_args: Command line (after the interpreter) that starts another rank of the same run.
        threads: Of torch in each rank; 0: what OMP_NUM_THREADS says, else the cores shared out.
    """
    children: list[subprocess.Popen[bytes]] = []
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        number = int(os.environ["RANK"])
        ranks = Ranks(number, int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", number)))
    else:
        ranks = Ranks(0, size)
        if size > 1:
            children = _start_children(size, child_args)
    torch.set_num_threads(threads or torch_threads(ranks.size))
    own = pick_device(device, torch.cuda.device_count(), ranks.local)
    if own != "cpu":
        torch.cuda.set_device(own)
    try:
        if ranks.size > 1:
            backend = "gloo" if own == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, rank=ranks.rank, world_size=ranks.size, timeout=timedelta(minutes=10))
        yield ranks
    except RuntimeError as error:
        if not isinstance(error, FledgeError) and ranks.size > 1 and _is_lost_connection(error):
            raise FledgeError(
                f"Rank {ranks.rank} lost another rank; the run stops. Resume it with --resume."
            ) from error
        raise
    finally:
        if ranks.size > 1 and dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        for child in children:
            try:
                child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()


def _is_lost_connection(error: RuntimeError) -> bool:
    words = ("connection", "gloo", "nccl", "timed out", "socket")
    return any(word in str(error).lower() for word in words)


def _start_children(size: int, child_args: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if not child_args:
        raise ConfigError("More than one rank needs the command line `fledge train` or torchrun.")
    children = []
    for rank in range(1, size):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "FLEDGE_CHILD": "1"}
        children.append(subprocess.Popen([sys.executable, *child_args], env=env, stdin=subprocess.DEVNULL))
    return children
