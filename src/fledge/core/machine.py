"""The machine: what it is, how many cores and how much memory there are, and how freed memory is treated."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fledge.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "warp-lang", "numpy")  # whose versions decide how fast things are
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


def default_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def pick_device(wanted: str, gpus: int, local_rank: int = 0) -> str:
    """The device of one rank: "cpu", or the GPU that is its own.

    Args:
        wanted: "auto" (GPUs where there are any), "cpu", "cuda", or "cuda:N", one GPU for a single rank.
        gpus: How many this machine has.
        local_rank: Which of the ranks on this machine asks.

    Raises:
        ConfigError: when there is no such GPU.
    """
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return "cpu"
    if not gpus:
        raise ConfigError(f"device={wanted}, but PyTorch sees no CUDA device here: use device=cpu.")
    named = wanted.partition(":")[2]
    if named and local_rank:
        raise ConfigError(f"device={wanted} is one GPU, but there are several ranks: use device=cuda, or ranks=1.")
    number = int(named or local_rank)
    if number >= gpus:
        raise ConfigError(f"GPU {number} is wanted, but there are {gpus} here: set ranks={gpus}, or device=cpu.")
    return f"cuda:{number}"


def torch_threads(ranks: int = 1) -> int:
    """Threads of torch in each of `ranks` processes: what OMP_NUM_THREADS says, else the cores shared out."""
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # may name one number for each level
    if wish.isdigit() and int(wish):
        return int(wish)
    return max(1, default_threads() // ranks)


def meminfo(key: str) -> int | None:
    """A line of /proc/meminfo in bytes; None where there is none."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
    except (OSError, StopIteration):
        return None


def resident_bytes() -> int | None:
    """Memory that this process has in use; None where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def available_bytes(device: torch.device) -> int:
    """Memory that can still be used on a device."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    free = meminfo("MemAvailable")
    return 2**62 if free is None else free


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory instead of returning it; measured to speed up a CPU update by 15 %.

    Large tensors come and go every step, and giving their pages back costs page faults.
    Returns whether it was done (only on Linux with glibc).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)) and bool(libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))
    except (OSError, AttributeError):
        return False


def machine_info() -> dict[str, Any]:
    """Return the machine and the versions that decide measured speeds, JSON-able.

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


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
