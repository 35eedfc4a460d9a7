"""What an evaluation keeps of its episodes: the first ones, for pictures, and the most interesting ones, for a recording.

Which episodes are interesting shows only at their end, so all are followed while they fly, as far as `MAX_OPEN_BYTES` go: then
half of those under way are let go. Of those that ended, no more are held than may be chosen of each outcome.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fledge.envs.base import TensorEnv
from fledge.tasks.base import Task, Track

DRAWN = 64  # the most numbers of an observation that a recording keeps
MAX_OPEN_BYTES = 256 * 2**20
OVERHEAD = 200  # bytes that Python takes for an entry of a frame


class Highlights:
    """The most interesting of the episodes offered: of every outcome some, failures first, the longest of each.

    In turns, from each outcome the longest that is left; outcomes that are not the headline come first, the rarest first.
    """

    def __init__(self, count: int, headline: str) -> None:
        self.count, self.headline = count, headline
        self._met: Counter[str] = Counter()
        self._longest: dict[str, list[tuple[int, int, Track]]] = {}  # heaps of (frames, -number, track)

    def offer(self, track: Track, number: int) -> None:
        """Take note of an episode by its number in the evaluation; which ones are kept does not depend on the order."""
        self._met[track.outcome] += 1
        heap = self._longest.setdefault(track.outcome, [])
        heapq.heappush(heap, (len(next(iter(track.frames.values()), ())), -number, track))
        if len(heap) > self.count:
            heapq.heappop(heap)

    def chosen(self) -> list[Track]:
        """The episodes to keep, the most interesting first."""
        order = sorted(self._longest, key=lambda name: (name == self.headline, self._met[name], name))
        queues = [sorted(self._longest[name], reverse=True, key=lambda item: item[:2]) for name in order]
        turns = [queue[k] for k in range(self.count) for queue in queues if k < len(queue)]
        return [track for _, _, track in turns[: self.count]]


class Recorder:
    """Collects what moves in the episodes of one wave.

    Args:
        first: Number of the first env's episode.
        record: Of how many envs, from the first on, the episodes go to `tracks`.
        tracks: Where these go, in the order in which they end.
        highlights: Gets all others as well; None: only these few are followed.
    """

    def __init__(
        self, task: Task, env: TensorEnv, first: int, record: int, tracks: list[Track], highlights: Highlights | None
    ) -> None:
        self.task, self.env, self.first, self.record = task, env, first, min(record, env.num_envs)
        self.tracks, self.highlights = tracks, highlights
        self.open = list(range(env.num_envs if highlights else self.record))
        self.frames: dict[int, list[dict[str, np.ndarray]]] = {number: [] for number in self.open}
        self.scenes: dict[int, dict[str, Any]] = {}
        self.frame_bytes = self.open_bytes = 0

    def before_step(self, obs: Mapping[str, Tensor]) -> None:
        """Note what is seen before a decision."""
        if not self.open:
            return
        if not self.scenes:
            self.scenes = dict(zip(self.open, self.task.scene(self.env, self.open), strict=True))
        now = self.task.snapshot(self.env, self.open) or self._observed(obs)
        for row, number in enumerate(self.open):
            self.frames[number].append({name: value[row].copy() for name, value in now.items()})
        self.frame_bytes = sum(value[0].nbytes + OVERHEAD for value in now.values())
        self.open_bytes += len(self.open) * self.frame_bytes
        if self.open_bytes > MAX_OPEN_BYTES and len(self.open) > max(self.record, 1):
            for number in self.open[max(self.record, len(self.open) // 2) :]:
                self._forget(number)

    def after_step(self, outcome: Tensor, returns: Tensor) -> None:
        """Note which episodes ended, and how."""
        if not self.open:
            return
        ended = outcome.cpu()
        for number in [k for k in self.open if int(ended[k])]:
            names = self.frames[number][0]
            facts = {"episode": self.first + number, "return": float(returns[number])}
            track = Track(
                {name: np.stack([frame[name] for frame in self.frames[number]]) for name in names},
                self.scenes[number],
                self.env.outcomes[int(ended[number])],
                facts,
            )
            self._forget(number)
            if number < self.record:
                self.tracks.append(track)
            if self.highlights:
                self.highlights.offer(track, self.first + number)

    def _forget(self, number: int) -> None:
        self.open.remove(number)
        self.open_bytes -= len(self.frames.pop(number)) * self.frame_bytes

    def _observed(self, obs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Of a task that shows nothing of its own: the observations that are few enough numbers to draw."""
        small = {name: value for name, value in obs.items() if value[0].numel() <= DRAWN}
        return {name: value[self.open].float().cpu().numpy() for name, value in small.items()}
