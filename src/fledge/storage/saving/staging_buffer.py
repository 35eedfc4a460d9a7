"""StagingBuffer: memory that a state is copied into, reused from save to save.

The system provides memory page by page at the first write, which takes up to a hundred times as long as the copy itself. So
a buffer can be prepared in the background: `prepare` has the system provide its pages before they are needed. On Linux a
large buffer is a memory map of its own, which grows and shrinks without a copy and uses large pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Callable

import numpy as np
import torch

ALIGN = 64
LARGE_PAGE = 2**21
MAPPED_FROM = 2 * LARGE_PAGE  # smaller buffers are ordinary arrays
CHUNK = 2 * LARGE_PAGE  # prepared at a time: the longest that a save has to wait for
MADV_POPULATE_WRITE = 23  # Linux 5.14


def padded(nbytes: int) -> int:
    """Return the number of bytes that a leaf of `nbytes` takes in a buffer: `nbytes` rounded up to a multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN


class StagingBuffer:
    """Memory for the staged leaves of one save at a time; each leaf gets the next aligned part."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._map: mmap.mmap | None = None
        self._pinned: torch.Tensor | None = None
        self._used = self._address = 0
        self._prepared = 0  # bytes from the start that `prepare` has written to, until the first `reserve`

    @property
    def nbytes(self) -> int:
        """Size of the buffer, in bytes."""
        return self._buffer.nbytes

    def reserve(self, nbytes: int, pinned: bool = False) -> None:
        """Discard the content and make room for `nbytes`; shrink only a buffer that `prepare` made too large.

        With `pinned`, use page-locked memory, to which a GPU can copy directly.
        """
        estimated, self._prepared, self._used = bool(self._prepared), 0, 0
        if pinned and (self._pinned is None or self._pinned.nbytes < nbytes):
            self._map, self._pinned = None, torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            self._buffer = self._pinned.numpy()
        elif nbytes > self.nbytes or estimated:
            self._resize(nbytes)
        self._address = self._buffer.ctypes.data

    def prepare(self, nbytes: int, go_on: Callable[[], bool]) -> None:
        """Grow to `nbytes` and have the system provide all pages, without the GIL; stop early if `go_on()` is False."""
        if nbytes > self.nbytes:
            self._resize(nbytes)
        while self._prepared < self.nbytes and go_on():
            size = min(CHUNK, self.nbytes - self._prepared)
            _write_pages(self._buffer.ctypes.data + self._prepared, size)
            self._prepared += size

    def _resize(self, nbytes: int) -> None:
        """Change the size; a memory map keeps the pages that it has."""
        self._pinned, self._buffer = None, np.empty(0, np.uint8)
        if nbytes < MAPPED_FROM or sys.platform != "linux":
            self._map, self._buffer = None, np.empty(nbytes, np.uint8)
            return
        size = -(-nbytes // LARGE_PAGE) * LARGE_PAGE
        try:
            if self._map is None:
                raise BufferError
            self._map.resize(size)
        except (BufferError, SystemError):  # none yet, or a part of it is still in use
            self._map, self._prepared = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
            with contextlib.suppress(OSError):  # a system without large pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._buffer = np.frombuffer(self._map, np.uint8)

    def take(self, nbytes: int) -> tuple[np.ndarray, int]:
        """Return the next `nbytes` of the buffer that are not in use, shape [nbytes] uint8, and their address."""
        start = self._used
        self._used += padded(nbytes)
        return self._buffer[start : start + nbytes], self._address + start

    def content(self, nbytes: int) -> np.ndarray:
        """Return the first `nbytes` of the buffer."""
        return self._buffer[:nbytes]


def _write_pages(address: int, nbytes: int) -> None:
    """Have the system provide the memory pages of an address range, whose content may be overwritten."""
    if sys.platform == "linux" and not ctypes.CDLL(None).madvise(
        ctypes.c_void_p(address), ctypes.c_size_t(nbytes), MADV_POPULATE_WRITE
    ):
        return
    ctypes.memset(address, 0, nbytes)
