"""What a benchmark ran on: processor, cores, versions, load, memory in use."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fledge.core.machine import default_threads, meminfo

PACKAGES = ("torch", "warp-lang", "numpy")


def machine_info() -> dict[str, Any]:
    """Return the machine and the versions that decide a benchmark's figures, JSON-able.

    `load_average` is that of the last minute: above zero at the start, others share the cores, and figures suffer.
    """
    return {
        "cpu": cpu_model(),
        "cores": default_threads(),
        "memory_gib": round((meminfo("MemTotal") or 0) / 2**30, 1),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name.removesuffix("-lang"): _version(name) for name in PACKAGES},
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def release_memory() -> None:
    """Give memory that is no longer used back to the system, so that a following RSS difference means something.

    glibc keeps freed blocks for later; without this, an env made after a larger one seems to need nothing.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Return the memory this process holds now (RSS), or 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
