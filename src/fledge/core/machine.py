"""The machine: cores, devices, memory, versions, and how glibc treats freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "warp-lang", "numpy")  # packages on which measured speeds depend
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX = -3, -1, -8  # options of mallopt


def default_threads() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def pick_device(wanted: str, gpus: int, local_rank: int = 0) -> str:
    """Return the device of one rank: "cpu", or "cuda:N" with a different GPU for each rank.

    Args:
        wanted: "auto" (a GPU if there is one), "cpu", "cuda", or "cuda:N" (this GPU, which allows only one rank).
        gpus: Number of GPUs of this machine.
        local_rank: Number of this rank among the ranks on this machine.

    Raises:
        ConfigError: The GPU does not exist, or several ranks would use the same one.
    """
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return "cpu"
    if not gpus:
        raise ConfigError(f"device={wanted}, but PyTorch sees no CUDA device here: use device=cpu.")
    named = wanted.partition(":")[2]
    if named and local_rank:
        raise ConfigError(f"device={wanted} is one GPU, but there are several ranks: set device=cuda, or ranks=1.")
    number = int(named or local_rank)
    if number >= gpus:
        fix = "choose a lower number" if named else f"set ranks={gpus}"
        raise ConfigError(
            f"device={wanted} needs GPU {number} (counted from 0), but this machine has {gpus}: {fix}, or device=cpu."
        )
    return f"cuda:{number}"


def torch_threads(ranks: int = 1) -> int:
    """Return the threads of PyTorch in each of `ranks` processes: OMP_NUM_THREADS if set, else a share of the cores.

    Raises:
        ConfigError: OMP_NUM_THREADS is not a whole number from 0 to 1024; 0 counts as not set.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    wish = given.split(",")[0].strip() or "0"  # may hold one number per nesting level
    if not wish.isdecimal() or len(wish) > 4 or int(wish) > 1024:
        raise ConfigError(
            f"The environment variable OMP_NUM_THREADS is {given!r}, but must be a whole number from 1 to 1024: change or "
            "unset it."
        )
    return int(wish) or max(1, default_threads() // ranks)


def meminfo(key: str) -> int | None:
    """Return the value of a line of /proc/meminfo in bytes; None if the file or the line does not exist."""
    line = _first_line("/proc/meminfo", key)
    return None if line is None else int(line.split()[0]) * 1024


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes; on a CPU, a very large number if it is not known."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return min(meminfo("MemAvailable") or 2**62, _left_in_cgroup())


def _left_in_cgroup(folder: str = "/sys/fs/cgroup") -> int:
    """Return the bytes that are left below a container's memory limit (cgroup v2); without a limit, a very large number."""
    try:
        limit, used = (int(Path(folder, name).read_text()) for name in ("memory.max", "memory.current"))
        lines = Path(folder, "memory.stat").read_text().splitlines()
        reclaimable = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    except (OSError, ValueError):  # no such cgroup, or the limit is "max"
        return 2**62
    return max(limit - used + reclaimable, 0)


def total_bytes(device: torch.device) -> int:
    """Return the whole memory of a device in bytes; 0 if the system does not report it."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    return meminfo("MemTotal") or 0


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for reuse, which saves page faults (15 % of a CPU update); return whether it succeeded."""
    return _mallopt(M_MMAP_THRESHOLD, 1 << 30) and _mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def limit_malloc_arenas(count: int = 2) -> None:
    """Make all threads share `count` glibc arenas, since an arena per thread, the default, keeps more freed memory."""
    _mallopt(M_ARENA_MAX, count)


def release_freed_memory() -> None:
    """Return freed memory to the system (glibc only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _mallopt(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL("libc.so.6").mallopt(option, value))
    except (OSError, AttributeError):  # another C library
        return False


def machine_info() -> dict[str, Any]:
    """Return JSON-able facts that affect measured speeds: hardware, load of the last minute, and package versions."""
    return {
        "cpu": _first_line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": default_threads(),
        "memory_gib": round((meminfo("MemTotal") or 0) / 2**30, 1),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name.removesuffix("-lang"): package_version(name) for name in PACKAGES},
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _first_line(path: str, key: str) -> str | None:
    """Return the text after `key:` in the first such line of a file of /proc; None if there is no such file or line."""
    try:
        with open(path) as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith(key))
    except (OSError, StopIteration):
        return None


def package_version(package: str) -> str:
    """Return the version of an installed package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
