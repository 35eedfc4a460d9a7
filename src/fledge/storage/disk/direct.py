"""Write a file without the system's page cache (O_DIRECT), if the system and the file system support it.

Full blocks are written directly from one reused, aligned block of memory; the rest is written normally at `flush`. After
`flush`, `os.fsync` makes the content durable.
The block is memory shared with forked children (the kernel allows no direct write from private memory during a fork), so a
child forgets it, and never writes to a file that it has inherited.

A checkpoint is not read again soon, so caching it only costs: for 206 MB beside a busy training loop, the writer took 0.35 to
0.56 s of CPU time with the cache and 0.04 s without.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BLOCK = 2**20  # bytes; a multiple of any disk's block
ALIGN = 4096
_DIRECT = getattr(os, "O_DIRECT", 0)
_spare: list[np.ndarray] = []  # blocks to reuse: allocating one costs as much as writing it
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spare.clear)


class DirectFile(io.RawIOBase):
    """A write-only stream that owns the descriptor of an empty file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._pid = descriptor, os.getpid()
        self._block = _spare.pop() if _spare else np.frombuffer(mmap.mmap(-1, BLOCK), np.uint8)
        self._used = 0
        self._direct: bool | None = None  # not tried yet

    def write(self, data: Any) -> int:
        """Write bytes; return their number, always all."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), BLOCK):
            self._take(np.frombuffer(view[start : start + BLOCK], np.uint8))
        return len(view)

    def _take(self, part: np.ndarray) -> None:
        """Copy at most one block's worth into the block, and write the block when it is full."""
        first = part[: BLOCK - self._used]
        np.copyto(self._block[self._used : self._used + len(first)], first)  # without the GIL
        self._used += len(first)
        if self._used == BLOCK:
            if self._direct is None:
                self._direct = self._set_direct(True)
            self._empty()
            rest = part[len(first) :]
            np.copyto(self._block[: len(rest)], rest)
            self._used = len(rest)

    def _empty(self) -> None:
        view, self._used = self._block.data[: self._used], 0
        while view:
            try:
                done = os.write(self._descriptor, view)
                if not done:
                    raise OSError(errno.EIO, "the disk accepts no more bytes")
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                done = 0  # the file system accepts the flag but not the write
                self._direct = self._set_direct(False)
            if done % ALIGN:
                self._direct = self._set_direct(False)
            view = view[done:]

    def _set_direct(self, direct: bool) -> bool:
        """Switch direct writes on or off; return the resulting mode."""
        if fcntl is None or not _DIRECT:
            return False
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _DIRECT if direct else flags & ~_DIRECT)
        except OSError:
            return False
        return direct

    def flush(self) -> None:
        """Write the rest of the block; later writes go through the cache."""
        if not self.closed and self._used and os.getpid() == self._pid:
            if self._direct is not False:
                self._direct = self._set_direct(False)
            self._empty()

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Flush and close; the descriptor is closed even if flushing fails."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            os.close(self._descriptor)
            if os.getpid() == self._pid:
                _spare.append(self._block)
