"""The planner as a C library: find it, build it, load it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = {"win32": "fledge_planner.dll", "darwin": "libfledge_planner.dylib"}.get(sys.platform, "libfledge_planner.so")
ABI = 2
# no fused products: they round differently from the simulator
FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-DFLEDGE_PLANNER_BUILD")


def sources(folder: Path = FOLDER) -> list[Path]:
    return sorted(folder.glob("*.c"))


def digest(folder: Path = FOLDER) -> str:
    """Return a digest of the sources and headers; a library tells from which it was built."""
    found = hashlib.sha256()
    for path in sorted([*sources(folder), *folder.glob("*.h")]):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def build(target: Path, compiler: str = "", flags: tuple[str, ...] = ()) -> Path:
    """Compile the library to `target` with `compiler` (default: the environment variable CC, or cc) and return it.

    Raises:
        OSError: if there is no such compiler.
        subprocess.CalledProcessError: if it fails.
    """
    named = f'-DFLEDGE_PLANNER_SOURCE="{digest()}"'
    program = (compiler or os.environ.get("CC", "") or "cc").split()
    files = [str(path) for path in sources()]
    subprocess.run([*program, *FLAGS, named, *flags, "-o", str(target), *files, "-lm"], check=True, capture_output=True)
    return target


def load(path: Path = FOLDER / LIBRARY) -> ctypes.CDLL | None:
    """Return the library; None if there is none, or it does not fit this machine or these sources."""
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.fledge_planner_source.restype = ctypes.c_char_p
        fits = library.fledge_planner_abi() == ABI and library.fledge_planner_source().decode() == digest()
    except (OSError, AttributeError):
        return None
    return library if fits else None
