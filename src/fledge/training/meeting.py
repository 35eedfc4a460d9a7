"""Meeting: how the ranks of a run find each other, agree on its settings, and end with one error.

The process that calls `fledge.train` is rank 0 and starts the others on its machine; under a launcher, such as torchrun or
srun, every process reads its rank from the environment. The ranks meet in a key-value store (TCPStore):

    rank 0                                  the other ranks
    reads and checks the settings           wait
    tell()     start = settings       ->    hear(); check that they can train here
                                      <-    ready/RANK = "", or an error
    go = ""                           ->    connect (process group)

So only rank 0 needs the run's folder. If rank 0 fails before, it writes `failed` instead, and the others end quietly.
Afterwards torch's threads, the process group and the environment are as before.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fledge.core.errors import ConfigError, FledgeError
from fledge.core.machine import pick_device, torch_threads
from fledge.core.parent_process import when_parent_ends
from fledge.training.connections import end_silent_connections
from fledge.training.launchers import master_address, place_from_environment, read_local_size
from fledge.training.ranks import PARENT, TOLD, Children, Ranks
from fledge.training.store import POLL_S, TIMEOUT, agree_on_prefix, connect_store, uses_torchrun_store

SPEAK_S = 2.0  # how long ranks other than 0 leave it to rank 0, or to a rank with its own error, to report


class Meeting:
    """The meeting of one process with the other ranks; see `meeting`.

    Args:
        note: What this rank tells all launched ranks of itself, as JSON can write it.

    Attributes:
        ranks: This process's rank; before `join`, a process that starts the others is the only rank.
        notes: Each launched rank's host and note, in the order of ranks; empty if no launcher started the ranks.
        launched: Whether a launcher started the ranks.
        advice: Returns a sentence on what to do when the connection to a rank is lost.
    """

    def __init__(self, note: Any = None) -> None:
        place = place_from_environment()
        self.children, self.joined, self.launched = Children(), False, place is not None
        self.advice: Callable[[], str] = str
        self.notes: list[tuple[str, Any]] = []
        self.store: dist.Store | None = None
        self.ranks = Ranks() if place is None else Ranks(place.rank, place.size, place.local or 0)
        if place is None or place.size == 1:
            return
        if TOLD in os.environ:  # rank 0 on this machine started this one
            self.ranks = replace(self.ranks, local=place.rank, here=place.size)
            self.store = local_store(self.ranks)
            return
        if dist.is_initialized():
            group = dist.PrefixStore("fledge", dist.distributed_c10d._get_default_store())
            self.store = dist.PrefixStore(agree_on_prefix(group, place.rank, place.size), group)
        else:
            self.store = connect_store(place.rank, place.size)
        self._introduce(place.local, note)

    def _introduce(self, local: int | None, note: Any) -> None:
        """Exchange hosts and notes with the other launched ranks."""
        assert self.store is not None
        rank, size = self.ranks.rank, self.ranks.size
        self.store.set(f"note/{rank}", json.dumps([socket.gethostname(), note]))
        self.notes = [tuple(json.loads(self._wait(f"note/{other}"))) for other in range(size)]
        hosts = [host for host, _ in self.notes]
        here = read_local_size(size) or hosts.count(hosts[rank])
        self.ranks = Ranks(rank, size, hosts[:rank].count(hosts[rank]) if local is None else local, here)

    def _wait(self, key: str, alive: Callable[[], None] | None = None, limit_s: float = math.inf) -> str:
        """Return the value of a key once another rank has written it; call `alive` meanwhile."""
        assert self.store is not None
        end = time.monotonic() + limit_s
        while not self.store.check([key]):
            if time.monotonic() > end:
                raise FledgeError(
                    f"Rank {self.ranks.rank} waited {limit_s / 60:.0f} minutes for other ranks to start: look for their "
                    "errors, and start all of them again."
                )
            if alive is not None:
                alive()
            time.sleep(POLL_S)
        return str(self.store.get(key).decode())

    def hear(self) -> dict[str, Any]:
        """Return what rank 0 told; called on every rank but 0. Exit if rank 0 failed before."""
        found: dict[str, Any] = json.loads(self._wait("start"))
        if "failed" in found:
            raise SystemExit(1)
        return found

    def tell(self, size: int, child_args: Sequence[str], start: dict[str, Any]) -> None:
        """Tell the other ranks how the run starts; first start them if no launcher did. Called on rank 0."""
        if not self.launched and size > 1:
            if dist.is_initialized():
                raise ConfigError(
                    "This process already belongs to a torch.distributed process group: call "
                    "torch.distributed.destroy_process_group() first, or train with ranks=1."
                )
            self.children.start(size, child_args)
            self.ranks = Ranks(0, size, 0, size)
            self.store = local_store(self.ranks)
        if self.store is not None:
            self.store.set("start", json.dumps(start))

    def join(self, device: str, threads: int, check: Callable[[], None]) -> Ranks:
        """Connect all ranks once each of them has passed its `check`, and return this process's rank.

        Args:
            threads: PyTorch threads in each rank; 0: OMP_NUM_THREADS if it is set, else the cores divided by the ranks.
            check: Raises a FledgeError if the run cannot train on this host.
        """
        own = self._ready(device, check)
        torch.set_num_threads(threads or torch_threads(self.ranks.here))
        if own != "cpu":
            torch.cuda.set_device(own)
        if self.store is not None and not dist.is_initialized():
            backend, hook_before = "gloo" if own == "cpu" else "cpu:gloo,cuda:nccl", sys.excepthook
            place: Any = {"rank": self.ranks.rank, "world_size": self.ranks.size, "timeout": TIMEOUT}
            dist.init_process_group(backend, store=self.store, **place)
            self.joined = True
            sys.excepthook = hook_before  # torch's would begin every later error of the program with [rank0]
            end_silent_connections()
        return self.ranks

    def _ready(self, device: str, check: Callable[[], None]) -> str:
        """Return this rank's device when every rank can train; rank 0 raises the first error of another rank."""
        error: FledgeError | None = None
        own = "cpu"
        try:
            check()
            own = pick_device(device, torch.cuda.device_count(), self.ranks.local)
        except FledgeError as found:
            error = found
        if error is not None and (self.store is None or self.ranks.is_first):
            raise error
        if self.store is None:
            return own
        if self.ranks.is_first:
            for rank in range(1, self.ranks.size):
                alive = functools.partial(self.children.check, rank)
                text = self._wait(f"ready/{rank}", alive, TIMEOUT.total_seconds())
                if text:
                    raise FledgeError(f"Rank {rank} did not start: {text}")
            self.store.set("go", "")
            return own
        self.store.set(f"ready/{self.ranks.rank}", str(error or ""))
        if error is not None or self._wait("go", limit_s=2 * TIMEOUT.total_seconds()):
            raise SystemExit(1)
        return own

    def speaks(self, lost: bool) -> bool:
        """Return whether this rank raises its error, so that of all launched ranks only one does.

        The first rank with an error of its own does. If connections were `lost`, rank 0 does, or else the first that notices.
        If the store is lost too, one rank on each host does.
        """
        if self.store is None or not self.launched:
            return True
        try:
            if lost and not self.ranks.is_first:
                time.sleep(SPEAK_S)
                socket.create_connection(
                    master_address(self.ranks.rank), SPEAK_S
                ).close()  # a lost store prints a stack
            if lost and self.store.check(["error"]):
                return False
            return self.store.add("lost" if lost else "error", 1) == 1
        except (RuntimeError, OSError, ConfigError):
            return self.ranks.local == 0

    def fail(self, error: Exception) -> None:
        """Raise the error with which this rank ends, or exit quietly if another rank reports it."""
        lost = self.store is not None and is_lost_connection(error)
        if self.ranks.is_first and self.store is not None and not self.joined:
            with contextlib.suppress(RuntimeError):
                self.store.set("start", json.dumps({"failed": True}))  # whichever of these the others wait for
                self.store.set("go", "failed")
        if TOLD in os.environ:
            if not lost:  # one of our errors as its message, any other with its traceback
                text = str(error) if isinstance(error, FledgeError) else "".join(traceback.format_exception(error))
                Path(os.environ[TOLD]).write_text(text)
            raise SystemExit(1) from error
        if not self.speaks(lost):
            raise SystemExit(1) from error
        if not lost:
            raise error
        if told := self.children.told():
            raise FledgeError(told) from error
        lost_text = f"Rank {self.ranks.rank} lost the connection to another rank, so the run stops."
        raise FledgeError(f"{lost_text} {self.advice()}".rstrip()) from error

    def leave(self, failed: bool) -> None:
        """Close the process group and wait for the started ranks."""
        if self.joined and dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        if failed and self.launched and self.store is not None and self.ranks.is_first and not uses_torchrun_store():
            time.sleep(2 * SPEAK_S)  # the store ends with this process, and the others ask it whether to report
        self.children.wait()


@contextlib.contextmanager
def meeting(note: Any = None) -> Iterator[Meeting]:
    """Yield a `Meeting` with the other ranks; when the block ends, leave them.

    Ranks that were started here print no errors: rank 0 raises its own error, or else the first error of another rank. Of
    ranks that a launcher started, one raises an error and the others exit without a message.
    """
    threads_before, failed = torch.get_num_threads(), True
    if (
        TOLD in os.environ and "FLEDGE_PARENT" in os.environ
    ):  # rank 0 may be killed while this one is not waiting for it
        when_parent_ends(int(os.environ[PARENT]), lambda: os._exit(1))
    met = Meeting(note)
    try:
        yield met
        failed = False
    except KeyboardInterrupt:
        met.children.kill()
        raise
    except Exception as error:
        met.fail(error)
    finally:
        met.leave(failed)
        torch.set_num_threads(threads_before)


def local_store(ranks: Ranks) -> dist.Store:
    """Return the key-value store (TCPStore) of ranks that rank 0 started on its machine."""
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks.size, ranks.is_first)
    return dist.TCPStore(*place, timeout=timedelta(minutes=10), wait_for_workers=False)


def is_lost_connection(error: Exception) -> bool:
    if isinstance(error, FledgeError) or not isinstance(error, RuntimeError):
        return False
    return any(word in str(error).lower() for word in ("connection", "gloo", "nccl", "timed out", "socket"))
