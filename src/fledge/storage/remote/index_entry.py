"""Index entries of a `RunStore`: which files a published checkpoint has, as JSON with a checksum."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CONFIG = "config.yaml"  # makes a folder a run
WEIGHTS = ".fledge"  # ending of the files that a run cannot go on without
FILES = re.compile(r"(?:checkpoints|selves)/[\w-][\w.-]*\.fledge|[\w-][\w.-]*\.(?:jsonl?|yaml)")  # in the run's folder
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PublishedFile:
    """One file of a published checkpoint."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Published:
    """One complete checkpoint in a store: its index entry's name, place in the order of publishing, step and files.

    `config` is the text of config.yaml, which all checkpoints share as an object: one damaged object would be the end of all.
    """

    name: str
    sequence: int
    step: int
    files: Mapping[str, PublishedFile]
    config: str | None = None


def entry_text(entry: Published) -> bytes:
    """Return what is written to the store for an entry."""
    files = {name: vars(file) for name, file in entry.files.items()}
    body = {"step": entry.step, "sequence": entry.sequence, "files": files, "config": entry.config}
    return json.dumps({"body": body, "sha256": digest_of(body)}).encode()


def read_entry(name: str, text: bytes) -> Published:
    """Return the entry of this name.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, RecursionError: It is damaged.
    """
    whole = json.loads(text)
    body, files = whole["body"], {}
    if whole["sha256"] != digest_of(body):
        raise ValueError("wrong checksum")
    for file, found in body["files"].items():
        if not FILES.fullmatch(file) or not _HASH.fullmatch(found["sha256"]) or ".." in file:
            raise ValueError(f"a file named {file!r}")
        files[file] = PublishedFile(found["sha256"], found["bytes"])
    numbers, config = [body["sequence"], body["step"], *(file.bytes for file in files.values())], body.get("config")
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError("a number out of range")
    if CONFIG not in files or not any(file.startswith("checkpoints/") for file in files):
        raise ValueError("no checkpoint of a run")
    if config is not None and checksum(iter([config.encode()])) != files[CONFIG]:
        raise ValueError(f"another {CONFIG}")
    return Published(name, body["sequence"], body["step"], files, config)


def order(entry: Published) -> tuple[int, int, str]:
    """Return what entries are sorted by: the order of publishing."""
    return entry.sequence, entry.step, entry.name


def checksum(parts: Iterator[bytes]) -> PublishedFile:
    """Return the SHA-256 and the size of bytes that come in parts."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        digest.update(part)
        size += len(part)
    return PublishedFile(digest.hexdigest(), size)


def digest_of(body: Any) -> str:
    """Return the SHA-256 of plain values, written as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
