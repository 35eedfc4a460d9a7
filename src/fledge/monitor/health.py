"""Checks of the machine for `fledge doctor`: what Fledge needs, what was found, and how to mend what is wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Literal

from fledge.core.errors import ConfigError
from fledge.core.machine import available_bytes, default_threads, package_version, torch_threads

LEAST_DRIVER, LEAST_GPU = 580, (7, 5)  # of CUDA 13, which the wheels of torch and Warp contain
LEAST_MEMORY_GIB, LEAST_DISK_GIB = 2.0, 1.0
DRIVER_FILE = Path("/proc/driver/nvidia/version")
State = Literal["ok", "problem", "optional"]


@dataclasses.dataclass(frozen=True)
class Check:
    """Result of one check; `fix` is empty if the state is "ok". "optional" marks extras that are not installed."""

    name: str
    state: State
    found: str
    fix: str = ""


def examine_machine() -> list[Check]:
    """Return the results of all checks; a check that fails itself is a problem too."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        lambda: _package("torch"),
        lambda: _package("warp-lang"),
        _gpu,
        _threads,
        _memory,
        _cache,
        _fonts,
        _browser,
    )
    return [_safely(check) for check in checks]


def render(checks: list[Check]) -> Iterator[str]:
    """Yield the lines of a report for the terminal."""
    width = max(len(check.name) for check in checks)
    marks = {"ok": "OK      ", "problem": "PROBLEM ", "optional": "optional"}
    for check in checks:
        yield f"{marks[check.state]}  {check.name:{width}}  {check.found}"
        if check.fix:
            yield f"{'':{10 + width}}  fix: {check.fix}"


def _safely(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = getattr(check, "__name__", "check").strip("_").replace("<lambda>", "packages")
        return Check(name, "problem", f"{type(error).__name__}: {error}", "reinstall the package that the error names.")


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 11) or sys.platform != "linux":
        return Check("Python", "problem", found, "use Python 3.11 or later on Linux.")
    return Check("Python", "ok", found)


def _package(name: str) -> Check:
    """Check a package that Fledge needs: installed, in the range that Fledge's own metadata allows, and importable."""
    found = package_version(name)
    wanted = _wanted(name)
    if found == "not installed":
        return Check(name, "problem", found, f"pip install '{name}{wanted}'")
    if wanted:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(wanted).contains(found, prereleases=True):
            return Check(name, "problem", f"{found}, but Fledge needs {wanted}", f"pip install '{name}{wanted}'")
    __import__({"warp-lang": "warp"}.get(name, name))
    return Check(name, "ok", found)


def _wanted(name: str) -> str:
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("fledge") or ()]
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""
    return next((str(each.specifier) for each in needed if each.name == name and each.marker is None), "")


def driver_version(text: str) -> str:
    """Return the version in the text of /proc/driver/nvidia/version, or ""."""
    words = text.splitlines()[0].split() if text.strip() else []
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def _gpu() -> Check:
    import torch

    driver = driver_version(DRIVER_FILE.read_text()) if DRIVER_FILE.exists() else ""
    if not driver and not torch.cuda.is_available():
        return Check("GPU", "ok", "no NVIDIA driver: everything runs on the CPU")
    if driver and int(driver.split(".")[0]) < LEAST_DRIVER:
        fix = f"install driver {LEAST_DRIVER} or later, or set device=cpu (docs/start/install.md has the matrix)."
        return Check("GPU", "problem", f"driver {driver}, but CUDA 13 needs {LEAST_DRIVER} or later", fix)
    if torch.version.cuda is None:
        text = f"driver {driver}, but torch {torch.__version__} is a build for the CPU"
        return Check("GPU", "problem", text, "install a CUDA build of torch, or set device=cpu.")
    if not torch.cuda.is_available():
        text = f"driver {driver}, but torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU"
        return Check("GPU", "problem", text, "run nvidia-smi; in a container, pass the GPU to it (--gpus all).")
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    if old := [n for k, n in enumerate(names) if torch.cuda.get_device_capability(k) < LEAST_GPU]:
        text = f"{old[0]} is older than compute capability 7.5"
        return Check("GPU", "problem", text, "hide it with CUDA_VISIBLE_DEVICES, or set device=cpu.")
    from fledge.core.warp_start import start_warp

    start_warp()
    import warp as wp

    if not wp.is_cuda_available():
        text = f"torch sees {', '.join(names)}, but Warp {wp.config.version} does not"
        return Check("GPU", "problem", text, f"install driver {LEAST_DRIVER} or later.")
    return Check("GPU", "ok", f"{', '.join(names)}; driver {driver or 'unknown'}, CUDA {torch.version.cuda}")


def _threads() -> Check:
    cores = default_threads()
    try:
        threads = torch_threads()
    except ConfigError as error:
        return Check(
            "threads", "problem", str(error).partition(":")[0], "set OMP_NUM_THREADS to a whole number, or unset it."
        )
    found = f"{cores} cores, {threads} threads"
    quota = _cpu_quota()
    if quota and quota + 0.5 < threads:
        fix = f"set OMP_NUM_THREADS={max(1, int(quota))}, or give the container more CPUs."
        return Check("threads", "problem", f"{found}, but this container may use only {quota:g} CPUs", fix)
    return Check("threads", "ok", found)


def _cpu_quota(path: str = "/sys/fs/cgroup/cpu.max") -> float:
    """Return the CPUs that a container may use; 0 without a limit."""
    try:
        limit, period = Path(path).read_text().split()
        return 0.0 if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return 0.0


def _memory() -> Check:
    import torch

    free = available_bytes(torch.device("cpu")) / 2**30
    fix = "close other programs, or train with hardware=small and a lower env.num_envs."
    return _enough("memory", free, LEAST_MEMORY_GIB, "available", fix)


def _enough(name: str, found: float, least: float, what: str, fix: str) -> Check:
    text = f"{found:.1f} GiB {what}"
    return Check(name, "ok", text) if found >= least else Check(name, "problem", f"{text}, less than {least:g}", fix)


def _cache() -> Check:
    from fledge.core.warp_start import start_warp

    start_warp()
    import warp as wp

    folder, fix = Path(str(wp.config.kernel_cache_dir)), "set WARP_CACHE_PATH to a folder that can be written."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        return Check("kernel cache", "problem", f"{folder} cannot be written: {error.strerror}", fix)
    return _enough("kernel cache", free, LEAST_DISK_GIB, f"free in {folder}", "free some space, or " + fix)


def _fonts() -> Check:
    from matplotlib import font_manager

    name = "DejaVu Sans"  # which brings the signs of our pictures
    try:
        path = font_manager.findfont(name, fallback_to_default=False)
    except ValueError:
        return Check("fonts", "problem", f"matplotlib does not find {name}", "pip install --force-reinstall matplotlib")
    return Check("fonts", "ok", f"{name}, {os.path.basename(path)}")


def _browser() -> Check:
    if importlib.util.find_spec("nicegui") is None:
        text = "nicegui is not installed: fledge watch, play and replay do not run"
        return Check("browser app", "optional", text, "pip install 'fledge[ui]'")
    try:
        __import__("nicegui")
    except ImportError as error:
        return Check("browser app", "problem", f"nicegui cannot be imported: {error}", "pip install 'fledge[ui]'")
    return Check("browser app", "ok", f"nicegui {package_version('nicegui')}")
