"""Memory that this process holds, for benchmarks that measure it, and a folder for their files."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


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


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder in the working folder, since /tmp may be in memory."""
    folder = Path(tempfile.mkdtemp(prefix=".fledge-bench-", dir="."))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
