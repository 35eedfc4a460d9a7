"""A disk that fails where it is told to, and one that loses power: under the same calls that a save makes.

`Calls` counts the system calls that change files under a folder, keeps them as a trace, and makes one of them fail. The
way "crash" ends the process there, so it is for a child: `in_child` runs something in one.
`after_power_cut` says what may be left on the disk when the power goes after some calls of a trace: what was not synced may
be there, half there or missing, and names that were not synced may be old or new, in the order in which they were made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CRASHED = 77  # what a process that ended by the way "crash" returns


def in_child(work: Callable[[], object]) -> int:
    """Run something in a forked process; what that returned: 0 if it ended well, 1 after an error, else `CRASHED`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass
class Call:
    """One system call: its name, the file it is about, and what it did."""

    name: str
    path: str
    other: str = ""
    data: bytes = b""


@dataclass
class Calls:
    """The calls of one run, of which number `fail_at` (from 0) fails in the way `how`."""

    folder: Path
    fail_at: int = -1
    how: str = ""
    trace: list[Call] = field(default_factory=list)
    failed: Call | None = None
    _paths: dict[int, str] = field(default_factory=dict)

    def _under(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(str(self.folder))

    def _next(self, call: Call) -> str:
        """Note a call; how it is to fail, if it is the one."""
        self.trace.append(call)
        if len(self.trace) - 1 != self.fail_at:
            return ""
        self.failed = call
        if self.how == "crash":
            os._exit(CRASHED)
        if self.how == "short" and call.name == "write":
            return "short"
        code = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR, "EACCES": errno.EACCES}.get(self.how)
        if code is not None:
            self.trace.pop()
            raise OSError(code, os.strerror(code), call.path)
        return ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[Calls]:
        """Be the disk of what runs in the block."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "write", "fsync", "replace", "unlink", "close", "mkdir", "fstat"):
                patch.setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
            patch.setattr(fcntl, "flock", self._flock(fcntl.flock))
            yield self

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if not self._under(path):
                return real(path, flags, *rest, **named)
            self._next(Call("create" if flags & os.O_CREAT and not os.path.exists(path) else "open", str(path)))
            descriptor = real(path, flags, *rest, **named)
            self._paths[descriptor] = str(path)
            return descriptor

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any) -> int:
            if descriptor not in self._paths:
                return real(descriptor, data)
            if self._next(Call("write", self._paths[descriptor], data=bytes(data))) == "short":
                data = memoryview(data)[: max(len(data) // 2, 1)]
                self.trace[-1].data = bytes(data)
            return real(descriptor, data)

        return call

    def _on_descriptor(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *rest: Any) -> Any:
            if descriptor in self._paths:
                self._next(Call(name, self._paths[descriptor]))
            return real(descriptor, *rest)

        return call

    def _fsync(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._on_descriptor("fsync", real)

    def _fstat(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._on_descriptor("fstat", real)

    def _flock(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._on_descriptor("flock", real)

    def _close(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int) -> None:
            path = self._paths.pop(descriptor, None)
            real(descriptor)  # Linux closes the file even when it reports an error
            if path is not None:
                self._next(Call("close", path))

        return call

    def _replace(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any) -> None:
            if self._under(source):
                self._next(Call("replace", str(source), str(target)))
            real(source, target)

        return call

    def _on_path(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **named: Any) -> None:
            if self._under(path):
                self._next(Call(name, str(path)))
            real(path, *rest, **named)

        return call

    def _unlink(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._on_path("unlink", real)

    def _mkdir(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._on_path("mkdir", real)


@dataclass
class _File:
    """A file's bytes on the disk, and those that are only in memory."""

    synced: bytes
    now: bytes


def after_power_cut(before: dict[str, bytes], trace: list[Call], folder: Path) -> Iterator[dict[str, bytes]]:
    """Every content of the folder that a power cut after these calls may leave, by name."""
    files = {name: _File(content, content) for name, content in before.items()}
    synced = dict(files)
    names = dict(files)  # as the running system sees them
    changes: list[Callable[[dict[str, _File]], None]] = []  # of names, since the folder was synced

    def change(apply: Callable[[dict[str, _File]], None]) -> None:
        apply(names)
        changes.append(apply)

    for call in trace:
        name = os.path.basename(call.path)
        if call.name == "create":
            new = _File(b"", b"")
            change(lambda found, name=name, new=new: found.__setitem__(name, new))  # type: ignore[misc]
        elif call.name == "write":
            names[name].now += call.data
        elif call.name == "fsync" and call.path == str(folder):
            for apply in changes:
                apply(synced)
            changes.clear()
        elif call.name == "fsync" and name in names:
            names[name].synced = names[name].now
        elif call.name == "replace":
            target = os.path.basename(call.other)
            change(lambda found, name=name, target=target: found.__setitem__(target, found.pop(name)))  # type: ignore[misc]
        elif call.name == "unlink":
            change(lambda found, name=name: found.pop(name, None))  # type: ignore[misc]
    for kept in range(len(changes) + 1):
        left = dict(synced)
        for apply in changes[:kept]:
            apply(left)
        for share in (0.0, 0.5, 1.0):  # of what was written since the last sync
            yield {
                name: file.synced + file.now[len(file.synced) : len(file.synced) + int(share * len(file.now))]
                for name, file in left.items()
            }
