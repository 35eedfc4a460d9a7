"""One episode of a recording, read from the file on demand."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fledge.core.errors import InputError
from fledge.storage.recordings.layout import FRAMES, MAX_READ, Head

if TYPE_CHECKING:
    from fledge.storage.recordings.reader import Recording


class Block(NamedTuple):
    """A record's head, and the offset of its payload in the file."""

    head: Head
    place: int


class Blocks:
    """The FRAMES records of an episode, kept as integers to save memory: a live recording has very many small records."""

    def __init__(self, episode: int) -> None:
        self.frames = 0
        self._episode, self._numbers = episode, array("Q")  # five numbers per record

    def append(self, head: Head, place: int) -> None:
        self.frames += head.frames
        self._numbers.extend((head.first, head.frames, head.length, head.check, place))

    def __iter__(self) -> Iterator[Block]:
        for k in range(0, len(self._numbers), 5):
            first, frames, length, check, place = self._numbers[k : k + 5]
            yield Block(Head(FRAMES, self._episode, first, frames, length, check), place)


class Episode:
    """One episode of a recording. Frames are numbered from the beginning of the episode."""

    def __init__(self, recording: Recording, number: int, begin: Block) -> None:
        self.number = number
        self.outcome: str | None = None
        """Outcome of the episode; None if its end is not in the file (yet)."""
        self.total_return: float | None = None
        self.length = 0
        """Number of frames so far, dropped ones included."""
        self._recording, self._begin = recording, begin
        self._blocks = Blocks(number)

    @property
    def scene(self) -> dict[str, Any]:
        """Parts of the scene that do not move. Large arrays are read-only, because other episodes may use the same array."""
        return self._recording._described(self._begin, "scene")

    @property
    def facts(self) -> dict[str, Any]:
        """Further information about the episode, given when it began."""
        return self._recording._described(self._begin, "facts")

    @property
    def recorded(self) -> int:
        """Number of the episode's frames in the file, without dropped ones."""
        return self._blocks.frames

    @property
    def complete(self) -> bool:
        """True if the episode has ended and all its frames are in the file."""
        return self.outcome is not None and self.recorded == self.length

    @property
    def seconds(self) -> float:
        return self.length * self._recording.seconds_per_frame

    def index(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the numbers of the recorded frames in a range, [T] int64; dropped frames are missing."""
        cuts = [(first, last) for _, first, last in self._cut(start, stop)]
        check_size(8 * sum(last - first for first, last in cuts))
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, last) for first, last in cuts)])

    def times(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the times of the recorded frames in a range, [T], in seconds since the beginning of the episode."""
        return self.index(start, stop) * self._recording.seconds_per_frame

    def frames(
        self, names: Sequence[str] | None = None, start: int = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return the recorded frames in a range, as one array [T, ...] for each field.

        Args:
            names: Fields to read; all by default.
            start: Number of the first frame to read; negative numbers count from the end, as in a slice.
            stop: Number after the last frame to read; None reads to the end.
        """
        fields = self._recording._select(names)
        cuts = list(self._cut(start, stop))
        check_size(sum(block.head.frames for block, _, _ in cuts) * sum(field.nbytes for field in fields.values()))
        parts: dict[str, list[np.ndarray]] = {name: [] for name in fields}
        for _, unpacked in self.pieces(names, start, stop):
            for name, value in unpacked.items():
                parts[name].append(value)
        empty = {name: np.zeros((0, *f.shape), f.dtype) for name, f in fields.items()}
        return {name: np.concatenate([empty[name], *values]) for name, values in parts.items()}

    def pieces(
        self, names: Sequence[str] | None = None, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield the recorded frames in a range block by block, so that only one block is in memory.

        Each piece is the numbers of its frames, [T] int64, and one array [T, ...] for each field. For the arguments see
        `frames`.
        """
        fields = self._recording._select(names)
        for block, first, last in self._cut(start, stop):
            part = slice(first - block.head.first, last - block.head.first)
            unpacked = self._recording._unpack(block, fields)
            yield np.arange(first, last), {name: value[part] for name, value in unpacked.items()}

    def _cut(self, start: int, stop: int | None) -> Iterator[tuple[Block, int, int]]:
        """Yield each block with frames in the range, the first of these frames, and the frame after the last."""
        try:
            start, stop, _ = slice(start, stop).indices(self.length)  # as Python slices: -5 is the fifth from the end
        except TypeError:
            raise InputError(f"start is {start!r} and stop is {stop!r}, but both must be whole numbers.") from None
        for block in self._blocks:
            first, last = max(start, block.head.first), min(stop, block.head.first + block.head.frames)
            if first < last:
                yield block, first, last


def check_size(size: int) -> None:
    if size > MAX_READ:
        raise InputError(f"these frames take {size} bytes, but one call reads at most {MAX_READ}: read fewer.")
