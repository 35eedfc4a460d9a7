"""The C library's memory: a process of many threads that lives for days must give back what it has freed. glibc only."""

from __future__ import annotations

import contextlib
import ctypes

M_ARENA_MAX = -8  # of mallopt


def share_arenas(count: int = 2) -> None:
    """Let all threads share so many arenas: by default each gets its own, which keeps what is freed in it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").mallopt(M_ARENA_MAX, count)


def give_back() -> None:
    """Give freed memory back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
