"""Makes native files that lie, with their checksums and closing line made to fit."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fledge.storage.format.reader import VERSION
from fledge.storage.format.zip_archive import ArchiveWriter


def unpack(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Members and manifest of a file."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "manifest.json"}
        return members, json.loads(archive.read("manifest.json"))


def pack(members: list[tuple[str, bytes]], manifest: Any, deflate: bool = False, version: int = VERSION) -> bytes:
    """A file that is consistent in itself, whatever it says."""
    stream = io.BytesIO()
    writer = ArchiveWriter(stream)
    for name, content in members:
        writer.add(name, [content])
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    writer.add("manifest.json", [text], deflate=(lambda _: True) if deflate else None)
    writer.finish(f"fledge-checkpoint {version} {hashlib.sha256(text).hexdigest()[:32]}".encode())
    return stream.getvalue()


def forge(path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> None:
    """Rewrite a file after changing its members or manifest."""
    members, manifest = unpack(path)
    change(members, manifest)
    path.write_bytes(pack(list(members.items()), manifest))
