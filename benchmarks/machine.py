"""Memory that this process holds, for benchmarks that measure it."""

from __future__ import annotations

import ctypes
import gc
import os
import platform


def release_memory() -> None:
    """Return unused memory to the system, so that a following difference in RSS is meaningful.

    glibc keeps freed blocks for later; without this, an env made after a larger one seems to need nothing.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Return the memory this process holds now (RSS), or 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
