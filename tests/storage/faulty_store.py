"""An fsspec file system in memory that fails, or kills its process, at chosen calls: `faulty://`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyFileSystem(MemoryFileSystem):
    """Counts its calls in `calls`, and calls `fault(number, name)` before each of them."""

    protocol = "faulty"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    calls = 0
    fault: Callable[[int, str], None] = staticmethod(lambda number, name: None)

    @classmethod
    def reset(cls, fault: Callable[[int, str], None] | None = None) -> None:
        cls.calls, cls.fault = 0, staticmethod(fault or (lambda number, name: None))

    @classmethod
    def clear(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.reset()

    def _count(self, name: str) -> None:
        type(self).calls += 1
        type(self).fault(type(self).calls, name)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._count(f"open {mode}")
        file = super().open(path, mode, **options)
        if mode == "wb":
            write = file.write

            def counted(data: bytes) -> int:
                write(data[: len(data) // 2])  # a fault in the middle leaves half of it
                self._count("write")
                return int(write(data[len(data) // 2 :]))

            file.write = counted
        return file

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._count("ls")
        return super().ls(path, detail, **options)

    def rm_file(self, path: str) -> None:
        self._count("rm")
        super().rm_file(path)


def register() -> None:
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


def die(number: int) -> Callable[[int, str], None]:
    """Return a fault that kills the process at a call."""

    def fault(call: int, name: str) -> None:
        if call == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def fail(*numbers: int) -> Callable[[int, str], None]:
    """Return a fault that raises at some calls, as a store does that answers 503."""

    def fault(call: int, name: str) -> None:
        if call in numbers:
            raise OSError(f"503 Service Unavailable (call {call}: {name})")

    return fault
