"""Recording: read the episodes of a file, whole or in part, also while it is being written.

    recording = Recording("fights.frec")
    for episode in recording: episode.outcome, episode.length, episode.scene
    episode.frames(["pos"], start=100, stop=200)         read only the blocks in this range, decompress only this field
    recording.refresh()                                  read what has been written since

Opening reads the heads of all records, not the frames. A truncated file plays up to its end. A file that is damaged in
the middle plays up to the damage, which `damage` describes; reading damaged frames raises a FormatError. One call
decompresses at most `MAX_READ` bytes, and at most 256 times the size of the file. Threads may share a recording.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fledge.core.closing import Closing
from fledge.core.errors import FormatError, InputError, StorageError
from fledge.core.paths import not_a_file
from fledge.storage.format.codecs import MAX_EXPANSION
from fledge.storage.recordings import layout
from fledge.storage.recordings.episode import Block, Episode
from fledge.storage.recordings.layout import ARRAY, BEGIN, CLOSE, END, FRAMES, HEADER, MAX_READ, Field, Head
from fledge.storage.recordings.values import from_node, unpack_array

KEPT_ARRAYS = 8  # decompressed arrays of scenes that are cached


class Recording(Closing):
    """An open recording.

    Raises:
        StorageError: There is no such file.
        FormatError: The file is not a recording, or has a version that this Fledge cannot read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.closed = False
        """True if the writer has finished the file."""
        self.damage: str | None = None
        """Damage in the middle of the file, after which nothing can be read."""
        self._episodes: list[Episode] = []
        self._arrays: list[Block] = []
        self._kept: dict[int, np.ndarray] = {}
        self._lock = threading.RLock()
        if kind := not_a_file(self.path):  # opening a named pipe would wait for ever
            raise StorageError(f"{path} cannot be read because it is {kind}: give the path of a recording.")
        try:
            self._stream = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed by close
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}): give the path of a recording.") from error
        try:
            self._begin = self._place = self._read_header()
            self.refresh()
        except BaseException:
            self._stream.close()
            raise

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, number: int) -> Episode:
        """Return an episode by number; negative numbers count from the end."""
        if not hasattr(number, "__index__"):
            raise InputError(f"the episode is {number!r}, but must be a number: for several, use list(recording)[a:b].")
        if not -len(self) <= number < len(self):
            raise InputError(f"{self.path} has no episode {number}; it has {len(self)} episodes, counted from 0.")
        return self._episodes[number]

    def __iter__(self) -> Iterator[Episode]:
        return iter(list(self._episodes))

    def outcomes(self) -> dict[str, int]:
        """Return the number of episodes by outcome; episodes without an end count as "running"."""
        return dict(Counter(episode.outcome or "running" for episode in self._episodes))

    def track(self, number: int) -> dict[str, Any]:
        """Return a dict of the arguments of `Trajectory` for an episode; `facts` also has its return and frame numbers."""
        episode = self[number]
        facts = {"return": episode.total_return, "seconds_per_frame": self.seconds_per_frame, "index": episode.index()}
        about = {"scene": episode.scene, "outcome": episode.outcome or "running", "facts": episode.facts | facts}
        return {"frames": episode.frames(), **about}

    def refresh(self) -> bool:
        """Read the records written since the last call; return True if there were any."""
        with self._lock:
            before, self.damage = self._place, None
            try:
                while not self.closed and (found := self._next()):
                    self._take(*found)
                    self._place = found[1] + found[0].length
            except FormatError as error:
                self.damage = f"after {self._place} bytes, {error}: what follows cannot be read."
            return self._place > before

    def close(self) -> None:
        self._stream.close()

    def forget(self) -> None:
        """Drop all episodes, to free their memory at once: without this, reference cycles would keep it for a while."""
        with self._lock:
            self._episodes, self._arrays, self._kept = [], [], {}
            self._place, self.closed, self.damage = self._begin, False, None

    def _read_header(self) -> int:
        line = self._read(0, len(layout.LINE))
        if not line.startswith(layout.NAME):
            raise FormatError(f"{self.path} is not a Fledge recording: give one that `fledge eval --record` wrote.")
        if line != layout.LINE:
            version = self._read(len(layout.NAME), 12).partition(b"\n")[0]
            if not version.isdigit():
                raise FormatError(f"{self.path} is damaged in its first line: use another file.")
            versions = f"of version {int(version)}, but this Fledge reads version {layout.VERSION}"
            raise FormatError(f"{self.path} is a recording {versions}: use the Fledge that wrote it, or a newer one.")
        self._place = len(line)
        try:
            found = self._next()
            if found is None or found[0].kind != HEADER:
                raise FormatError("its header is incomplete")
            header = layout.from_json(self._payload(*found))
            task, seconds, facts = header.get("task"), header.get("seconds_per_frame"), header.get("facts")
            if not isinstance(task, str) or not isinstance(facts, dict):
                raise FormatError("its header lacks the task or the facts")
            if not isinstance(seconds, float) or not 0 < seconds < 1e9:
                raise FormatError("its header does not give the seconds per frame")
            self.task, self.seconds_per_frame, self.facts = task, seconds, self._decode(facts)
            self.fields = {field.name: field for field in layout.read_fields(header.get("fields"))}
            self._frame_bytes = sum(field.nbytes for field in self.fields.values())
        except FormatError as error:
            raise FormatError(f"{self.path} is not a valid recording ({error}).") from error
        return found[1] + found[0].length

    def _next(self) -> Block | None:
        """Return the next record if it is complete, else None."""
        data = self._read(self._place, layout.HEAD_BYTES)
        if len(data) < layout.HEAD_BYTES:
            return None
        head, place = layout.read_head(data), self._place + layout.HEAD_BYTES
        return Block(head, place) if place + head.length <= os.fstat(self._stream.fileno()).st_size else None

    def _take(self, head: Head, place: int) -> None:
        """Add a record, whose payload is at byte `place` of the file, to the index of arrays and episodes."""
        number = head.episode
        if head.kind == ARRAY and number == len(self._arrays):
            self._arrays.append(Block(head, place))
        elif head.kind == BEGIN and number == len(self._episodes):
            begin = layout.from_json(self._payload(head, place))
            if not isinstance(begin.get("scene"), dict) or not isinstance(begin.get("facts"), dict):
                raise FormatError("an episode begins without scene and facts")
            self._episodes.append(Episode(self, number, Block(head, place)))
        elif head.kind in (FRAMES, END) and number < len(self._episodes) and self._episodes[number].outcome is None:
            self._take_more(self._episodes[number], head, place)
        elif head.kind == CLOSE:
            layout.from_json(self._payload(head, place))
            self.closed = True
        else:
            raise FormatError(f"a record of kind {head.kind} for episode {number} is out of order")

    def _take_more(self, episode: Episode, head: Head, place: int) -> None:
        """Add a record with frames or with the end of a running episode to this episode."""
        if head.kind == FRAMES:
            most = min(layout.MAX_BLOCK_BYTES, MAX_EXPANSION * head.length)
            if head.first < episode.length or not 0 < head.frames * self._frame_bytes <= most:
                block = f"{head.frames} frames from {head.first} on in {head.length} bytes"
                raise FormatError(
                    f"a record of frames is invalid: {block}; the episode has {episode.length} frames so far"
                )
            episode._blocks.append(head, place)
            episode.length = head.first + head.frames
            return
        end = layout.from_json(self._payload(head, place))
        outcome, frames, total = end.get("outcome"), end.get("frames"), from_node(end.get("return"), self._array)
        if not isinstance(outcome, str) or len(outcome) > layout.MAX_OUTCOME or not isinstance(total, float):
            raise FormatError("an episode's end lacks a valid outcome or return")
        if not isinstance(frames, int) or not episode.length <= frames <= layout.MAX_FRAME:
            raise FormatError("an episode's end lacks a valid number of frames")
        episode.outcome, episode.total_return, episode.length = outcome, total, int(frames)

    def _read(self, place: int, count: int) -> bytes:
        with self._lock:
            if self._stream.closed:
                raise StorageError(f"{self.path} has been closed: open it again.")
            self._stream.seek(place)
            parts, left = [], count
            while left and (part := self._stream.read(left)):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

    def _payload(self, head: Head, place: int) -> bytes:
        payload = self._read(place, head.length)
        if len(payload) != head.length or xxhash.xxh3_64_intdigest(payload) != head.check:
            raise FormatError("a record's content does not match its checksum")
        return payload

    def _select(self, names: Sequence[str] | None) -> dict[str, Field]:
        unknown = [name for name in names or () if name not in self.fields]
        if unknown:
            raise InputError(f"{self.path} has no field {unknown[0]!r}; it has {', '.join(self.fields)}.")
        return {name: self.fields[name] for name in (self.fields if names is None else names)}

    @contextlib.contextmanager
    def _reading(self, part: str, block: Block) -> Iterator[None]:
        """Add the file and the part of the episode to the text of every FormatError that the block raises."""
        try:
            yield
        except FormatError as error:
            what = f"{part} of episode {block.head.episode}"
            raise FormatError(f"{self.path}: {what} cannot be read ({error}).") from error

    def _unpack(self, block: Block, fields: dict[str, Field]) -> dict[str, np.ndarray]:
        """Return the given fields of a block's frames, as arrays [count, ...]."""
        first, count = block.head.first, block.head.frames
        with self._reading(f"frames {first} to {first + count - 1}", block):
            members = dict(zip(self.fields, layout.split(self._payload(*block), len(self.fields)), strict=True))
            unpacked = {k: layout.unpack(members[k], f.dtype, (*f.shape, count)) for k, f in fields.items()}
            return {name: np.moveaxis(value, -1, 0) for name, value in unpacked.items()}  # stored with time innermost

    def _described(self, begin: Block, part: str) -> dict[str, Any]:
        """Return the part "scene" or "facts" of an episode."""
        with self._reading(f"the {part}", begin):
            return self._decode(layout.from_json(self._payload(*begin))[part])

    def _decode(self, node: Any) -> dict[str, Any]:
        """Decode the JSON of a scene or of facts; decompress each array once, up to `MAX_READ` bytes in total."""
        found: dict[int, np.ndarray] = {}
        left = MAX_READ

        def load(number: int) -> np.ndarray:
            nonlocal left
            if number not in found:
                found[number] = self._array(number)
                left -= found[number].nbytes
                if left < 0:
                    raise FormatError(f"its arrays take more than {MAX_READ} bytes")
            return found[number]

        value = from_node(node, load)
        if not isinstance(value, dict):
            raise FormatError("its scene or facts are a number or an array, but must be a dict")
        return value

    def _array(self, number: int) -> np.ndarray:
        if number in self._kept:
            return self._kept[number]
        if not 0 <= number < len(self._arrays):
            raise FormatError(f"it refers to array {number}, but the file has {len(self._arrays)} arrays")
        array = unpack_array(self._payload(*self._arrays[number]))
        array.setflags(write=False)
        with self._lock:
            while len(self._kept) >= KEPT_ARRAYS:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = array
        return array


def is_recording(path: str | os.PathLike[str]) -> bool:
    """Return True if a file begins like a recording, of whatever version."""
    if not os.path.isfile(path):  # opening a named pipe would wait for ever
        return False
    try:
        with open(path, "rb") as stream:
            return stream.read(len(layout.NAME)) == layout.NAME
    except OSError:
        return False
