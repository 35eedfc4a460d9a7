"""Index entries of published checkpoints: what no upload can have written is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fledge.storage.remote.index_entry import Published, checksum, digest_of, entry_text, read_entry

WHOLE = {"sha256": "0" * 64, "bytes": 1}
GOOD = {"config.yaml": WHOLE, "checkpoints/checkpoint_000000009.fledge": WHOLE}


def as_text(body: dict[str, Any]) -> bytes:
    return json.dumps({"body": body, "sha256": digest_of(body)}).encode()


@pytest.mark.parametrize(
    "body",
    [
        {"step": float("inf"), "sequence": 9, "files": GOOD},
        {"step": 9, "sequence": 10**400, "files": GOOD},
        {"step": 9, "sequence": 9, "files": GOOD | {"run.json": {"sha256": "0" * 64, "bytes": float("inf")}}},
        {"step": 9, "sequence": 9, "files": {}},
        {"step": 9, "sequence": 9, "files": {"config.yaml": WHOLE}},
        {"step": 9, "sequence": 9, "files": {"checkpoints/checkpoint_000000009.fledge": WHOLE}},
        {"step": 9, "sequence": 9, "files": GOOD | {"checkpoints": WHOLE}},
        {"step": 9, "sequence": 9, "files": GOOD, "config": "other"},
        {"step": 9, "sequence": 9, "files": GOOD, "config": 1},
    ],
)
def test_an_impossible_index_entry_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        read_entry("9.json", as_text(body))


def test_an_entry_comes_back_with_and_without_the_config() -> None:
    body = {"step": 9, "sequence": 8, "files": GOOD}
    found = read_entry("9.json", as_text(body))
    assert (found.step, found.sequence, found.config) == (9, 8, None)
    config = b"task: x\n"
    files = {**found.files, "config.yaml": checksum(iter([config]))}
    entry = Published("9.json", 8, 9, files, config.decode())
    assert read_entry("9.json", entry_text(entry)) == entry
