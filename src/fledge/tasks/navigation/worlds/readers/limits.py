"""Limits on sizes that a file declares, checked before memory is taken."""

from __future__ import annotations

from pathlib import Path

from fledge.core.errors import FormatError

MAX_POINTS = 100_000_000
MAX_FACES = 20_000_000
MAX_TEXT = 64 * 2**20  # bytes of a file that is parsed as a whole


def check_count(path: Path, count: int, what: str, most: int = MAX_POINTS) -> int:
    """Return a number of things that a file declares; raise FormatError if it is negative or too large."""
    if not 0 <= count <= most:
        raise FormatError(
            f"{path} declares {count:,} {what}, but 0 to {most:,} are allowed: thin it out, or check the file."
        )
    return count


def check_fits(path: Path, needed: int, available: int) -> None:
    """Raise FormatError if a file is shorter than its header says."""
    if needed > available:
        raise FormatError(
            f"{path} declares {needed:,} bytes of data, but has {available:,}: it is truncated or damaged."
        )


def read_text(path: Path) -> bytes:
    """Return the bytes of a small file that is parsed as a whole."""
    if (size := path.stat().st_size) > MAX_TEXT:
        raise FormatError(f"{path} has {size:,} bytes, but at most {MAX_TEXT:,} are read of this kind of file.")
    return path.read_bytes()
