"""The planner as a C library: find it, build it, load it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
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

    Its SHA-256 is written beside it, since loading a library that was cut off ends the process.

    Raises:
        OSError: if there is no such compiler, or it fails or writes no library.
    """
    named = f'-DFLEDGE_PLANNER_SOURCE="{digest()}"'
    program = (compiler or os.environ.get("CC", "") or "cc").split()
    files = [str(path) for path in sources()]
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as place:
        made = Path(place) / target.name
        done = subprocess.run(
            [*program, *FLAGS, named, *flags, "-o", str(made), *files, "-lm"], capture_output=True, check=False
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise OSError(f"{' '.join(program)}: {said[-1] if said else f'exit code {done.returncode}'}")
        if not made.is_file():
            raise OSError(f"{' '.join(program)} wrote no library")
        checksum_of(made).write_text(checksum(made) + "\n", encoding="utf-8")
        os.replace(made, target)
        os.replace(checksum_of(made), checksum_of(target))
    return target


def checksum_of(path: Path) -> Path:
    """Return the file with the SHA-256 of a library."""
    return path.with_name(path.name + ".sha256")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(path: Path = FOLDER / LIBRARY) -> ctypes.CDLL | None:
    """Return the library; None if there is none, or it does not fit this machine or these sources, or is damaged."""
    if not path.exists():
        return None
    try:
        whole = checksum_of(path).read_text(encoding="utf-8").strip() == checksum(path)
    except (OSError, ValueError):
        whole = False
    if not whole:
        text = f"{path} is cut off or not the library that was built here: run `fledge-runtime build`; until then NumPy plans."
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.fledge_planner_source.restype = ctypes.c_char_p
        fits = library.fledge_planner_abi() == ABI and library.fledge_planner_source().decode() == digest()
    except (OSError, AttributeError):
        return None
    return library if fits else None
