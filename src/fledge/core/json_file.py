"""Read small JSON files that are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 1_000_000
MAX_DEPTH = 32  # nested objects and lists


def read_json(path: Path) -> Any:
    """Return the value in a small JSON file; None if there is no such file or its content cannot be used.

    Only regular files of at most `MAX_BYTES` bytes are read: a pipe could block, and a device may have no end. Values that are
    nested deeper than `MAX_DEPTH` or hold text that is not Unicode count as damaged, because they cannot be printed.
    """
    try:
        if not path.is_file():
            return None
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        value = json.loads(content) if len(content) <= MAX_BYTES else None
        json.dumps(value, ensure_ascii=False).encode()  # raises if a text has lone surrogates
    except (OSError, ValueError, RecursionError):  # ValueError: also integers of more than 4,300 digits
        return None
    return None if _is_deeper(value, MAX_DEPTH) else value


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)
