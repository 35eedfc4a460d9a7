"""Append records to a recording's file, up to `max_bytes`. Use from one thread at a time.

The file appears at its path with a complete header, replacing an existing one (open readers keep the old content). A record
is written completely or, after a disk error, removed, so the file is valid after every call. When a record would exceed
`max_bytes`, the file is full: from then on, only the ends of running episodes and of the file are written, for which space is
reserved.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fledge.core.errors import ConfigError, StorageError
from fledge.storage.disk.durable import target_file
from fledge.storage.recordings import layout
from fledge.storage.recordings.layout import ARRAY, BEGIN, CLOSE, END, FRAMES, HEADER, Field, record, to_json
from fledge.storage.recordings.values import pack_array, to_node

ROOM = 640  # bytes reserved for each END record, and for the CLOSE record


class AppendedFile:
    """A recording to which episodes are appended until it is full.

    The caller chooses the episode numbers that methods take; in the file, episodes are numbered from 0. If there was no
    space for the beginning of an episode, `add` and `end` write nothing for it.
    """

    def __init__(self, path: Path, header: dict[str, Any], fields: Sequence[Field], max_bytes: int) -> None:
        path = target_file(path)
        self.path, self.fields, self.max_bytes = path, fields, max_bytes
        self.size = self.frames = self.raw_bytes = self.episodes = 0
        self.full = False
        self._open: dict[int, int] = {}  # episode number in the file, by the caller's number
        self._arrays: dict[bytes, int] = {}
        beginning = layout.LINE + record(HEADER, to_json(header))
        if len(beginning) + 2 * ROOM > max_bytes:
            needed = len(beginning) + 2 * ROOM
            raise ConfigError(f"max_bytes is {max_bytes}, but the header alone takes {needed} bytes: raise max_bytes.")
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            self._write(beginning)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError, AttributeError):
                os.close(self._fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise StorageError(f"{path} cannot be written ({error.strerror or error}): choose another path.") from error

    def begin(self, episode: int, scene: Any, facts: Any) -> None:
        """Write the beginning of an episode, and the arrays of its scene that are not in the file yet.

        Write nothing if they do not fit into `max_bytes`.
        """
        arrays: list[tuple[bytes, bytes]] = []  # key and record of each new array

        def store(array: np.ndarray) -> int:
            key = xxhash.xxh3_128_digest(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
            if key not in self._arrays:
                self._arrays[key] = len(self._arrays)
                arrays.append((key, record(ARRAY, pack_array(array), self._arrays[key])))
            return self._arrays[key]

        payload = to_json({"scene": to_node(scene, store), "facts": to_node(facts, store)})
        data = b"".join([packed for _, packed in arrays]) + record(BEGIN, payload, self.episodes)
        if self._append(data):
            self._open[episode] = self.episodes
            self.episodes += 1
        else:
            for key, _ in arrays:
                del self._arrays[key]

    def add(self, episode: int, first: int, frames: Mapping[str, np.ndarray]) -> bool:
        """Write frames [T, ...] of an episode, the first of which has number `first`.

        Return False if the file is full, or does not have the beginning of the episode.
        """
        if episode not in self._open:
            return False
        count = len(next(iter(frames.values())))
        # time innermost: consecutive values are similar
        payload = b"".join(layout.pack(np.moveaxis(frames[field.name], 0, -1)) for field in self.fields)
        if not self._append(record(FRAMES, payload, self._open[episode], first, count)):
            return False
        self.frames += count
        self.raw_bytes += count * sum(field.nbytes for field in self.fields)
        return True

    def end(self, episode: int, fields: dict[str, Any]) -> None:
        """Write the end of an episode, described by `fields`."""
        if episode in self._open:
            self._write(record(END, to_json(fields), self._open.pop(episode)))

    def close(self, fields: dict[str, Any]) -> None:
        """Mark the file as complete, and make it durable; `release` closes it."""
        self._write(record(CLOSE, to_json(fields)))
        os.fsync(self._fd)

    def release(self) -> None:
        """Close the file without writing anything more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, data: bytes) -> bool:
        room = ROOM * (len(self._open) + 2)
        if self.full or self.size + len(data) + room > self.max_bytes:
            self.full = True
            return False
        self._write(data)
        return True

    def _write(self, data: bytes) -> None:
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += os.write(self._fd, view[done:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)
                os.lseek(self._fd, self.size, os.SEEK_SET)
            raise
        self.size += len(data)
