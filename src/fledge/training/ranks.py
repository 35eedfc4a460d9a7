"""Ranks: the processes that share a run. One per core on a CPU (gloo), one per GPU on CUDA (NCCL)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fledge.core.errors import ConfigError, FledgeError
from fledge.core.machine import default_threads, pick_device

T = TypeVar("T")
TOLD = "FLEDGE_CHILD"  # environment variable of a rank that we started: the file to which it writes its error,
PARENT = "FLEDGE_PARENT"  # and the id of the process that started it


@dataclass(frozen=True)
class Ranks:
    """This process's rank, and the number of ranks of the run."""

    rank: int = 0
    size: int = 1
    local: int = 0  # number among the ranks on this machine
    here: int = 1  # number of ranks on this machine

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def together(self, work: Callable[[], T]) -> T:
        """Call `work` on every rank and return its result; if it fails anywhere, rank 0 raises, and the others exit.

        Rank 0 raises its own error, or else the first error of another rank. The others exit without a message.
        """
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
        """Return every rank's item, in the order of ranks, on rank 0; return an empty list on other ranks."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.gather_object(in_host_memory(item), items if self.is_first else None)
        return items if self.is_first else []

    def share(self, item: Any) -> Any:
        """Return rank 0's item on every rank."""
        if self.size == 1:
            return item
        box = [in_host_memory(item)]
        dist.broadcast_object_list(box)
        return box[0]


def in_host_memory(item: Any) -> Any:
    """Return an item whose tensors are on the CPU: a pickled CUDA tensor opens a context on its GPU in every receiver."""
    return tree_map_only(Tensor, Tensor.cpu, item)


def default_ranks(device: str, num_envs: int = 0) -> int:
    """Return how many ranks to start: at most one per GPU (on the CPU: per core), and a divisor of `num_envs`."""
    gpus = torch.cuda.device_count()
    most = default_threads() if pick_device(device, gpus) == "cpu" else 1 if device.startswith("cuda:") else gpus
    return next(size for size in range(most, 0, -1) if num_envs % size == 0)


@dataclass
class Children:
    """The processes of the ranks that rank 0 started, and the files to which they write their errors."""

    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    folder: tempfile.TemporaryDirectory[str] | None = None
    environ: dict[str, str | None] = field(default_factory=dict)  # former values of the variables that were changed

    def start(self, size: int, child_args: Sequence[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if not child_args:
            raise ConfigError(
                f"{size} ranks cannot be started from here: use `fledge train`, fledge.train() or torchrun, or set ranks=1."
            )
        self.environ = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.folder = tempfile.TemporaryDirectory(prefix="fledge_ranks_")
        # A terminal's Ctrl-C goes to all ranks. Only rank 0 handles it and stops the others, which inherit the block.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            for rank in range(1, size):
                place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
                place |= {TOLD: self.note(rank), PARENT: str(os.getpid()), "PYTHONPATH": python_path()}
                command = [sys.executable, *child_args]
                self.processes[rank] = subprocess.Popen(command, env=os.environ | place, stdin=subprocess.DEVNULL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def note(self, rank: int) -> str:
        """Return the file that a rank writes its error to."""
        assert self.folder is not None
        return os.path.join(self.folder.name, f"rank_{rank}")

    def told(self) -> str:
        """Return the first error that a started rank wrote, or ""."""
        notes = {rank: Path(self.note(rank)) for rank in self.processes}
        return next(
            (f"Rank {rank}: {note.read_text(encoding='utf-8')}" for rank, note in notes.items() if note.exists()), ""
        )

    def check(self, rank: int) -> None:
        """Raise FledgeError if the process of a rank that was started here has ended."""
        process = self.processes.get(rank)
        if process is None or process.poll() is None:
            return
        ended = f"Rank {rank} did not start: its process ended with exit code {process.returncode}."
        self.kill()
        raise FledgeError(self.told() or ended)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()

    def wait(self) -> None:
        """Wait for the started ranks to end, and kill those still running after 60 s; then restore the environment."""
        for process in self.processes.values():
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
        if self.folder is not None:
            self.folder.cleanup()
        for name, value in self.environ.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


def python_path() -> str:
    """Return PYTHONPATH for a new process: this process's module search path without the interpreter's own folders."""
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return os.pathsep.join(path for path in sys.path if path and not path.startswith(own))
