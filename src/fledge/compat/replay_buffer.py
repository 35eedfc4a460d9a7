"""The module `replay_buffer` of NavRL's add-on: `DictReplayBuffer`, `PrefixSum` and `sample_batch`, compressed in memory.

    buffer = DictReplayBuffer(max_size=1000000, keys=["gridmap_inputs", "action", "reward", "done", "next_gridmap_inputs"])
    buffer.add(episode_data)                        # lists of frames, arrays or compressed frames by key
    batch = buffer.sample(batch_size=256)           # tensors [256, ...] by key

Unlike in `fledge.DictReplayBuffer`, the oldest frames are removed one by one, `.buffer[key]` is a sequence of frames,
`next_X` need not be the next frame of X, frames of a key may differ in size, and `done` may be set anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fledge.compat.devices import usable_device
from fledge.compat.lz4_images import (
    compress_image,
    compress_image_seq,
    decompress_image,
    decompress_image_seq,
    decompress_single_gridmap,
)
from fledge.compat.replay_columns import Column, read_columns
from fledge.core.errors import InputError
from fledge.replay import buffer as native
from fledge.replay.checks import named_values, whole
from fledge.replay.index import prefix_sum
from fledge.replay.schema import COUNT, MASK, NEXT, KeySpec, from_words

__all__ = ["DictReplayBuffer", "PrefixSum", "compress_image", "compress_image_seq", "decompress_image"]
__all__ += ["decompress_image_seq", "decompress_single_gridmap", "sample_batch"]


class PrefixSum(prefix_sum.PrefixSum):
    """Index of episodes: finds the episode of a frame, and the frame's place in it, in O(log n)."""

    @property
    def ar(self) -> list[int]:  # type: ignore[override]
        """Lengths of the episodes."""
        return self.values.tolist()

    @property
    def curr_max(self) -> int:
        """Number of frames."""
        return self.total


class DictReplayBuffer:
    """Replay buffer of dictionaries, compressed in memory.

    Args:
        max_size: Largest number of frames; the oldest frames are removed.
        keys: Keys of an episode; None takes the keys of the first episode. A mapping gives each key a `KeySpec` or None;
            LZ4 frames of other programs need a `KeySpec`.
        device: Device of the batches.
        img_compressed: Compress keys with two or more axes.
        compress_epi: True compresses whole episodes, False single frames, None chunks of time.
        seed: Seed of the samples.
    """

    def __init__(
        self,
        max_size: int,
        keys: Sequence[str] | Mapping[str, KeySpec | None] | None = None,
        device: str | torch.device = "cpu",
        img_compressed: bool = False,
        *,
        compress_epi: bool | None = None,
        seed: int | None = 0,
    ) -> None:
        self.max_size = whole("max_size", max_size, 1)
        self.keys = None if keys is None else list(keys)
        self.given = dict(keys) if isinstance(keys, Mapping) else {}
        self.device, self.img_compressed, self.compress_epi = usable_device(device), img_compressed, compress_epi
        self.rng = np.random.default_rng(seed)
        self.columns: dict[str, Column] = {}
        self._skip = 0  # frames of the oldest episode that have left
        self._index: PrefixSum | None = None
        self._engine = self._make_engine()

    def _make_engine(self) -> native.DictReplayBuffer:
        names = {column.name: column.spec for column in self.columns.values()} or None
        room = 3 * self.max_size  # kept frames, the rest of the oldest episode, and the new one: episodes leave whole
        return native.DictReplayBuffer(room, names, self.device, self.img_compressed, compress_epi=self.compress_epi)

    # ---- adding ------------------------------------------------------------------------------------------------

    def add(self, episode_data: Mapping[str, Any]) -> None:
        """Add one episode: per key an array or tensor [T, ...], a list of frames, or compressed frames."""
        entries = named_values("episode", episode_data)
        names = list(entries) if self.keys is None else self.keys
        if set(names) != set(entries):
            raise InputError(
                f"The episode has the keys {sorted(entries)}, but must have those of the buffer: {sorted(names)}."
            )
        columns, values = read_columns(entries, self.columns, self.given, self.max_size)
        if columns != self.columns:
            self._rebuild(columns)
        self.keys = names
        self._engine.add(values)
        self._index = None
        while (excess := len(self) - self.max_size) > 0:
            oldest = int(self._engine.index.values[0]) - self._skip
            if excess < oldest:
                self._skip += excess
                break
            self._engine._evict()
            self._skip = 0

    def _rebuild(self, columns: dict[str, Column]) -> None:
        """Store all frames again in new columns.

        Needed if frames of a key became larger or differ in size, or if a `next_X` does not repeat X one frame later.
        """
        kept = [{key: self._frames(number, key) for key in self.columns} for number in range(self._engine.num_episodes)]
        self._engine.close()
        self.columns, self._skip, self._index = columns, 0, None
        self._engine = self._make_engine()
        for episode in kept:
            self._engine.add(read_columns(episode, columns, self.given, self.max_size)[1])

    # ---- sampling ----------------------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> dict[str, torch.Tensor]:
        """Return uniformly sampled frames, [batch_size, ...] by key.

        A key X with frames of different sizes is padded with zeros, and has a mask under `X_mask`.
        """
        if not len(self):
            raise InputError("The buffer is empty: add an episode before sampling.")
        first = self._engine.index.evicted_total
        numbers = self.rng.integers(self._skip, self._engine.index.total, whole("batch_size", batch_size, 1))
        found = self._engine.get(numbers + first)
        batch = {}
        for key, column in self.columns.items():
            value, mask = found[column.name], found.get(column.name + MASK)
            if mask is not None:
                width = max(1, int(mask.sum(-1).max()))
                value, batch[key + MASK] = value[:, :width], mask[:, :width]
            batch[key] = value
        return batch

    def __len__(self) -> int:
        """Return the number of frames."""
        return self._engine.index.total - self._skip

    @property
    def episode_lens_prefix_sum(self) -> PrefixSum:
        """Index of the episodes; the length of the oldest episode is the number of its frames that are still stored."""
        if self._index is None:
            self._index = PrefixSum(max(self._engine.num_episodes, 1))
            for number, length in enumerate(self._engine.index.values.tolist()):
                self._index.add(length - (0 if number else self._skip))
        return self._index

    @property
    def buffer(self) -> dict[str, Sequence[Any]]:
        """Frames by key, decoded on access; keys that were added as compressed episodes have one object per episode."""
        return {key: FrameList(self, key) if key in self.columns else [] for key in self.keys or ()}

    def _frames(self, episode: int, key: str) -> Any:
        """Return the frames of an episode that are still stored: a tensor [T, ...], or a list if their sizes differ."""
        column, engine = self.columns[key], self._engine
        begin, length = self._skip if episode == 0 else 0, int(engine.index.values[episode])
        source, later = (column.name.removeprefix(NEXT), 1) if column.derived else (column.name, 0)
        rows = slice(begin + later, length + later)
        specs = engine.schema.internal()
        frames = from_words(engine.words_of(episode, source)[source][rows].copy(), specs[source])
        if not column.ragged:
            return frames
        counts = engine.words_of(episode, source + COUNT)[source + COUNT][rows].tolist()
        return [frame[:count] for frame, count in zip(frames, counts, strict=True)]


class FrameList(Sequence[Any]):
    """Sequence of the frames of one key, oldest first, decoded on access."""

    def __init__(self, owner: DictReplayBuffer, key: str) -> None:
        self._owner, self._key, self._form = owner, key, owner.columns[key].form
        self._episode: tuple[int, Any] = (-1, None)  # decoded last

    def __len__(self) -> int:
        return self._owner._engine.num_episodes if self._form == "episode" else len(self._owner)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        place = range(len(self))[number]
        if self._form == "episode":
            return compress_image_seq(self._owner._frames(place, self._key))
        episode, offset = self._owner.episode_lens_prefix_sum.get_range_relative_idx(place)
        if self._episode[0] != episode:
            self._episode = (episode, self._owner._frames(episode, self._key))
        frame = self._episode[1][offset]
        return compress_image(frame) if self._form == "frame" else frame


def sample_batch(
    replay_buffer: Mapping[str, Sequence[Any]],
    episode_lens_prefix_sum: PrefixSum,
    train_param: Mapping[str, Any],
    device: str | torch.device,
    compress_epi: bool | None = None,
) -> torch.Tensor:
    """Return grid maps of random frames, [batch_size, *image_shape], on `device`.

    Args:
        replay_buffer: `DictReplayBuffer.buffer`, or a dict of lists; "gridmap_inputs" has one compressed object per episode,
            or one entry per frame, compressed or not.
        episode_lens_prefix_sum: The index of the episodes.
        train_param: "batch_size"; optionally "sample_indices" (frames to take), "image_shape" and "dtype" (for LZ4
            frames that do not contain them; float32 by default) and "replay_buffer_size" (frames to draw from).
        compress_epi: Whether "gridmap_inputs" has one compressed object per episode; None detects it.
    """
    frames, index = replay_buffer["gridmap_inputs"], episode_lens_prefix_sum
    total = min(index.total, train_param.get("replay_buffer_size") or index.total)
    numbers = train_param.get("sample_indices")
    if numbers is None:
        count = whole("batch_size", train_param["batch_size"], 1)
        numbers = np.random.choice(total, count, replace=count > total)
    if compress_epi is None:
        compress_epi = len(frames) == len(index) != index.total or not isinstance(
            frames[0], bytes | torch.Tensor | np.ndarray
        )
    shape, dtype = train_param.get("image_shape"), train_param.get("dtype", np.float32)
    places = [index.get_range_relative_idx(int(number)) for number in numbers]
    if compress_epi:
        episodes = {}
        for episode in {episode for episode, _ in places}:
            told = (shape, index.ar[episode], dtype) if shape else ()
            episodes[episode] = decompress_image_seq(frames[episode], *told)
        found = [torch.as_tensor(episodes[episode][offset]) for episode, offset in places]
    else:
        found = [_frame(frames[int(number)], shape, dtype) for number in numbers]
    return torch.stack(found).to(usable_device(device))


def _frame(frame: Any, shape: Sequence[int] | None, dtype: Any) -> torch.Tensor:
    if not isinstance(frame, bytes):
        return torch.as_tensor(frame)
    return torch.from_numpy(decompress_image(frame, dtype=dtype if shape else None, shape=shape))
