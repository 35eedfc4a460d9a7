"""Ranks: the processes that share a run. One per core on a CPU (gloo), one per GPU on CUDA (NCCL).

The process that calls `fledge.train` is rank 0 and starts the others; under `torchrun` every process reads its rank from the
environment. Afterwards torch's threads, the process group and the environment are as before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fledge.core.errors import ConfigError, FledgeError
from fledge.core.machine import default_threads, pick_device, torch_threads
from fledge.core.parent_process import when_parent_ends
from fledge.training.torchrun_store import torchrun_store, uses_torchrun_store

T = TypeVar("T")
TOLD = "FLEDGE_CHILD"  # environment variable of a rank that we started: the file to which it writes its error,
PARENT = "FLEDGE_PARENT"  # and the id of the process that started it
POLL_S = 0.02  # between two checks whether a rank has connected


@dataclass(frozen=True)
class Ranks:
    """This process's rank, and the number of ranks of the run."""

    rank: int = 0
    size: int = 1
    local: int = 0  # number among the ranks on this machine

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
        dist.gather_object(item, items if self.is_first else None)
        return items if self.is_first else []

    def share(self, item: Any) -> Any:
        """Return rank 0's item on every rank."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box)
        return box[0]


def default_ranks(device: str, num_envs: int = 0) -> int:
    """Return how many ranks to start: at most one per GPU (on the CPU: per core), and a divisor of `num_envs`."""
    gpus = torch.cuda.device_count()
    most = default_threads() if pick_device(device, gpus) == "cpu" else 1 if device.startswith("cuda:") else gpus
    return next(size for size in range(most, 0, -1) if num_envs % size == 0)


def ranks_from_environment() -> Ranks | None:
    """Return this process's rank and the number of ranks, which torchrun or a cluster job sets (RANK, WORLD_SIZE).

    Without WORLD_SIZE, return None: this process is the only one, or starts the others itself.

    Raises:
        ConfigError: A variable is missing, or is not a whole number in its range.
    """
    if "WORLD_SIZE" not in os.environ:
        return None
    size = read_variable("WORLD_SIZE", 1)
    rank = read_variable("RANK", 0, size - 1) if size > 1 or "RANK" in os.environ else 0
    local = read_variable("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else rank
    if size > 1 and not dist.is_initialized():
        if not os.environ.get("MASTER_ADDR"):
            raise ConfigError(_variable_error("MASTER_ADDR", "but must name the host of rank 0"))
        read_variable("MASTER_PORT", 1, 65535)
    return Ranks(rank, size, local)


def read_variable(name: str, least: int, most: int | None = None) -> int:
    """Return the whole number in an environment variable; raise ConfigError if it is missing or out of range."""
    text = os.environ.get(name, "").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if number < least or (most is not None and number > most):
        limits = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
        raise ConfigError(_variable_error(name, f"but must be {least if least == most else limits}"))
    return number


def _variable_error(name: str, needs: str) -> str:
    """Return the error message for a missing or invalid variable of torchrun; `needs` says what it must be."""
    got = f"is {os.environ[name]!r}" if name in os.environ else "is not set"
    return (
        f"The environment variable {name} {got}, {needs}. Start several ranks with torchrun, which sets RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT; to train with one process, unset all of them."
    )


@contextlib.contextmanager
def joined_ranks(
    size: int, device: str, child_args: Sequence[str], threads: int = 0, advice: Callable[[], str] = str
) -> Iterator[Ranks]:
    """Yield this process's `Ranks` once all `size` ranks are connected; start the others unless torchrun did.

    Ranks that were started here print no errors: rank 0 raises its own error, or else the first error of another rank.

    Args:
        child_args: Command line (after the interpreter) that starts another rank of the same run.
        threads: PyTorch threads in each rank; 0: OMP_NUM_THREADS if it is set, else the cores divided by the ranks.
        advice: Returns a sentence on what to do when the connection to a rank is lost.
    """
    children, threads_before, joined = Children(), torch.get_num_threads(), False
    hook_before = sys.excepthook
    if TOLD in os.environ and PARENT in os.environ:  # rank 0 may be killed while this one is not waiting for it
        when_parent_ends(int(os.environ[PARENT]), lambda: os._exit(1))
    given = ranks_from_environment()
    ranks = given or Ranks(0, size)
    if given is None:
        if size > 1 and dist.is_initialized():
            raise ConfigError(
                "This process already belongs to a torch.distributed process group: call "
                "torch.distributed.destroy_process_group() first, or train with ranks=1."
            )
        if size > 1:
            children.start(size, child_args)
    try:
        torch.set_num_threads(threads or torch_threads(ranks.size))
        own = pick_device(device, torch.cuda.device_count(), ranks.local)
        if own != "cpu":
            torch.cuda.set_device(own)
        if ranks.size > 1 and not dist.is_initialized():
            backend = "gloo" if own == "cpu" else "cpu:gloo,cuda:nccl"
            place: Any = {"rank": ranks.rank, "world_size": ranks.size, "timeout": timedelta(minutes=10)}
            if children.processes or TOLD in os.environ:
                place["store"] = meet(ranks, children)
            elif uses_torchrun_store():
                place["store"] = torchrun_store(ranks.rank, ranks.size)
            dist.init_process_group(backend, **place)
            joined = True
            sys.excepthook = hook_before  # torch's would begin every later error of the program with [rank0]
        yield ranks
    except KeyboardInterrupt:
        children.kill()
        raise
    except Exception as error:
        lost = ranks.size > 1 and _is_lost_connection(error)
        if TOLD in os.environ:
            if not lost:  # one of our errors as its message, any other with its traceback
                text = str(error) if isinstance(error, FledgeError) else "".join(traceback.format_exception(error))
                Path(os.environ[TOLD]).write_text(text)
            raise SystemExit(1) from error
        if not lost:
            raise
        if told := children.told():
            raise FledgeError(told) from error
        lost_text = f"Rank {ranks.rank} lost the connection to another rank, so the run stops."
        raise FledgeError(f"{lost_text} {advice()}".rstrip()) from error
    finally:
        if joined and dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        children.wait()
        torch.set_num_threads(threads_before)


def meet(ranks: Ranks, children: Children) -> dist.Store:
    """Connect to the ranks' common store and return it; rank 0 first waits until all ranks that it started are connected.

    Raises:
        FledgeError: A rank ended before it was connected.
    """
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks.size, ranks.is_first)
    store = dist.TCPStore(*place, timeout=timedelta(minutes=10), wait_for_workers=False)
    if not ranks.is_first:
        store.set(f"here_{ranks.rank}", "")
        return store
    for rank, process in children.processes.items():
        while not store.check([f"here_{rank}"]):
            if process.poll() is not None and not store.check([f"here_{rank}"]):
                why = children.told() or f"Rank {rank} did not start: its process ended with code {process.returncode}."
                children.kill()
                raise FledgeError(why)
            time.sleep(POLL_S)
    return store


def _is_lost_connection(error: Exception) -> bool:
    if isinstance(error, FledgeError) or not isinstance(error, RuntimeError):
        return False
    return any(word in str(error).lower() for word in ("connection", "gloo", "nccl", "timed out", "socket"))


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
