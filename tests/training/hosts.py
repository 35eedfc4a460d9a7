"""Hosts on this machine: network namespaces with their own interface, host name, /dev/shm and, if asked for, folder.

    host 0 --\
    host 1 ---- bridge          in namespaces too: nothing reaches the machine's own network
    host 2 --/

Needs root, `ip` and Linux; `needs_hosts` skips tests without them. `Hosts` is a context manager that ends all processes and
removes all namespaces, also after a failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tests.training.slow_switch import start_switch

PORT = 29511
NEW_NETWORK, NEW_MOUNTS, NEW_NAME, PRIVATE, BIND = 0x40000000, 0x20000, 0x4000000, 0x44000, 0x1000  # flags of Linux
_numbers = itertools.count()


def sh(*words: object, check: bool = True) -> str:
    """Run a command and return its output; raise RuntimeError with its error text if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def why_not() -> str:
    """Return why this machine cannot have hosts; "" if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if missing := [name for name in ("ip", "unshare", "mount") if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed"
    name = f"fledge{os.getpid()}try"
    try:
        sh("ip", "netns", "add", name)
        sh("ip", "netns", "del", name)
    except RuntimeError as error:
        return f"network namespaces are not allowed here ({error})"
    return ""


needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


class Host:
    """One host: its namespace, address and, if it does not share the folder, its own content for it."""

    def __init__(self, number: int, space: str, folder: Path, private: Path | None) -> None:
        self.number, self.space, self.folder, self.private = number, space, folder, private
        self.address, self.name = f"10.77.0.{number + 1}", f"host{number}"

    def path(self, name: str | Path) -> Path:
        """Return where this machine finds a path below the hosts' folder."""
        return (self.private or self.folder) / Path(name).relative_to(self.folder)

    def start(
        self, command: Sequence[object], env: Mapping[str, object] | None = None, log: str = "log"
    ) -> subprocess.Popen[bytes]:
        """Start a command on this host, whose output goes to the file `log` in its folder."""
        bind = f"mount --bind {self.private} {self.folder}; " if self.private else ""
        inside = f'mount -t tmpfs shm /dev/shm; hostname {self.name}; {bind}cd {self.folder}; exec "$@"'
        words = ["ip", "netns", "exec", self.space, "unshare", "-m", "-u", "--propagation", "private"]
        words += ["sh", "-c", inside, "sh", *map(str, command)]
        with (self.private or self.folder).joinpath(f"{log}{self.number}.txt").open("ab") as out:
            own = {"OMP_NUM_THREADS": "1", **{name: str(value) for name, value in (env or {}).items()}}
            return subprocess.Popen(words, env=os.environ | own, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def enter(self) -> None:
        """Move this process, which must be a fork of its own, to the host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/var/run/netns/{self.space}") as space:
            failed = libc.setns(space.fileno(), NEW_NETWORK) or libc.unshare(NEW_MOUNTS | NEW_NAME)
        name = self.name.encode()
        failed = failed or libc.mount(None, b"/", None, PRIVATE, None) or libc.sethostname(name, len(name))
        failed = failed or libc.mount(b"shm", b"/dev/shm", b"tmpfs", 0, None)
        if self.private is not None:
            failed = failed or libc.mount(str(self.private).encode(), str(self.folder).encode(), None, BIND, None)
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot enter {self.space}")

    def log(self, name: str = "log") -> str:
        return (self.private or self.folder).joinpath(f"{name}{self.number}.txt").read_text()

    def processes(self) -> list[int]:
        return [int(word) for word in sh("ip", "netns", "pids", self.space, check=False).split()]

    def kill(self) -> None:
        """End all processes of this host by SIGKILL."""
        for _ in range(20):
            found = self.processes()
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.05)

    def link(self, up: bool) -> None:
        """Connect this host to the bridge, or cut it off; the other hosts get no message."""
        sh("ip", "-n", self.space, "link", "set", "eth0", "up" if up else "down")

    def vanish(self) -> None:
        """Cut the host off, then end its processes: no connection of theirs is closed as far as the others can see."""
        self.link(False)
        self.kill()


class Hosts:
    """Several hosts on one switch.

    Args:
        folder: The same folder on all of them, or with shared=False each host's own.
        slow: Delay in ms of each packet and share of packets that are lost in percent; by default the switch is fast.
    """

    def __init__(self, count: int, folder: Path, shared: bool = True, slow: tuple[float, float] | None = None) -> None:
        number = next(_numbers)
        self.spaces = [f"fledge{os.getpid()}n{number}h{host}" for host in range(count)]
        self.switch = f"fledge{os.getpid()}n{number}sw"
        self.hosts: list[Host] = []
        self.slow, self.forwarder = slow, 0
        folder.mkdir(parents=True, exist_ok=True)
        for host, space in enumerate(self.spaces):
            private = None if shared else folder.with_name(f"{folder.name}_of_host{host}")
            if private:
                private.mkdir(exist_ok=True)
            self.hosts.append(Host(host, space, folder, private))

    def __enter__(self) -> list[Host]:
        try:
            for space in (self.switch, *self.spaces):
                sh("ip", "netns", "add", space)
            if self.slow is not None:
                self.forwarder = start_switch(self.spaces, *self.slow)
            else:
                self._add_bridge()
            for host in self.hosts:
                sh("ip", "-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
                sh("ip", "-n", host.space, "link", "set", "eth0", "up")
                sh("ip", "-n", host.space, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self.hosts

    def _add_bridge(self) -> None:
        sh("ip", "-n", self.switch, "link", "add", "name", "sw0", "type", "bridge")
        sh("ip", "-n", self.switch, "link", "set", "sw0", "up")
        for host in self.hosts:
            port = f"p{host.number}"
            sh("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "eth0", "netns", host.space)
            sh("ip", "-n", self.switch, "link", "set", port, "master", "sw0", "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.forwarder:
            os.kill(self.forwarder, signal.SIGKILL)
            os.waitpid(self.forwarder, 0)
            self.forwarder = 0
        for host in self.hosts:
            host.kill()
            sh("ip", "netns", "del", host.space, check=False)
        sh("ip", "netns", "del", self.switch, check=False)


def ranks_env(host: Host, rank: int, size: int, first: Host, port: int = PORT) -> dict[str, object]:
    """Return the environment variables of one rank that no launcher started."""
    place = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": first.address, "MASTER_PORT": port}
    return {**place, "LOCAL_RANK": 0}


def train_words(*words: object) -> list[object]:
    """Return the command line of `fledge train`."""
    return [sys.executable, "-m", "fledge.cli", "train", *words]


def torchrun_words(host: Host, hosts: int, first: Host, ranks: int, *words: object, restarts: int = 0) -> list[object]:
    """Return the command line of torchrun with `fledge train`, for one host."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", hosts, "--node-rank", host.number]
    command += ["--nproc-per-node", ranks, "--master-addr", first.address, "--master-port", PORT]
    return [*command, "--max-restarts", restarts, "-m", "fledge.cli", "train", *words]


def wait_until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until `true()` is; raise TimeoutError after some seconds."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.05)
