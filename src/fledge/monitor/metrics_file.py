"""Read metrics.jsonl, the log of a run: one JSON object with a number `step` on each line."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

logger = logging.getLogger("fledge.monitor")
_warned: set[Path] = set()  # files whose unreadable lines were reported


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl; empty if there is no such file.

    Lines that are not metrics are skipped, with one warning for each file. The last line may be incomplete without a
    warning: it is just being written, or its process was killed.
    """
    *lines, last = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    found = [parse_row(line) for line in lines if line.strip()]
    rows = [row for row in [*found, parse_row(last)] if row is not None]
    if (skipped := found.count(None)) and path.absolute() not in _warned:
        _warned.add(path.absolute())
        logger.warning("%s: skipped %d line%s without metrics.", path, skipped, "s" if skipped > 1 else "")
    return rows


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the numbers by name in a line of metrics.jsonl; None if it is not a JSON object with a finite `step`."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):  # also text that is not UTF-8, and integers of thousands of digits
        return None
    if not isinstance(row, dict) or not is_number(row.get("step")):
        return None
    return {
        name: value for name, value in row.items() if (isinstance(value, float) or is_number(value)) and is_text(name)
    }


def is_text(name: str) -> bool:
    """Return whether a name can be written as UTF-8: JSON allows lone surrogates, which cannot."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number within the range of floats."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False
