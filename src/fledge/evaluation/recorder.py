"""Trajectories that an evaluation keeps: the first episodes, for pictures, and the most interesting ones, for a recording.

Which episodes are interesting is known only at their end, so all are recorded while they fly. If the unfinished
episodes take more than `MAX_OPEN_BYTES`, half of them are dropped. A finished episode is dropped
as soon as enough longer ones with the same outcome are kept.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.trajectory import Trajectory

DRAWN = 64  # observations with more values than this are not recorded
MAX_OPEN_BYTES = 256 * 2**20


class Highlights:
    """Chooses the most interesting episodes: some of every outcome, failures first, the longest of each.

    The outcomes take turns, the rarest first, the outcome that is the primary metric last; each turn takes the longest
    episode that is left.
    """

    def __init__(self, count: int, primary_metric: str) -> None:
        self.count, self.primary_metric = count, primary_metric
        self._met: Counter[str] = Counter()
        self._longest: dict[str, list[tuple[int, int, Trajectory]]] = {}  # heaps of (frames, -number, trajectory)

    def offer(self, trajectory: Trajectory, number: int) -> None:
        """Add an episode, with its number in the evaluation, to the candidates; the order of calls does not matter."""
        self._met[trajectory.outcome] += 1
        heap = self._longest.setdefault(trajectory.outcome, [])
        heapq.heappush(heap, (len(next(iter(trajectory.frames.values()), ())), -number, trajectory))
        if len(heap) > self.count:
            heapq.heappop(heap)

    def chosen(self) -> list[Trajectory]:
        """Return the episodes to keep, the most interesting first."""
        order = sorted(self._longest, key=lambda name: (name == self.primary_metric, self._met[name], name))
        queues = [sorted(self._longest[name], reverse=True, key=lambda item: item[:2]) for name in order]
        turns = [queue[k] for k in range(self.count) for queue in queues if k < len(queue)]
        return [trajectory for _, _, trajectory in turns[: self.count]]


class Recorder:
    """Records the episodes of one batch of envs that run side by side.

    Args:
        first: Number, in the whole evaluation, of the episode that env 0 flies.
        record: Number of envs, from the first on, whose episodes are appended to `trajectories`.
        trajectories: List to append to, in the order in which episodes end.
        highlights: Collector that receives every finished episode. If None, only the first `record` envs are recorded.
        rows: Env rows to record for the highlights, by default all; in a match, the rows of one side.
    """

    def __init__(
        self,
        view: TaskView,
        env: TensorEnv,
        first: int,
        record: int,
        trajectories: list[Trajectory],
        highlights: Highlights | None,
        rows: np.ndarray | None = None,
    ) -> None:
        self.view, self.env, self.first, self.record = view, env, first, min(record, env.num_envs)
        self.trajectories, self.highlights = trajectories, highlights
        followed = np.arange(env.num_envs) if rows is None else rows
        self.open = followed if highlights else np.arange(self.record)  # envs that are being recorded, in order
        self.scenes: dict[int, dict[str, Any]] = {}
        # for each step: the recorded envs, and their snapshots, [len(envs), ...] each
        self.steps: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
        self.held = len(self.open)  # rows of the first step
        self.open_bytes = 0

    def before_step(self, obs: Mapping[str, Tensor]) -> None:
        """Record the state before a decision."""
        if not len(self.open):
            return
        ids = self.open.tolist()
        if not self.scenes:
            self.scenes = dict(zip(ids, self.view.scene(self.env, ids), strict=True))
        now = check_snapshot(self.view.snapshot(self.env, ids), len(ids)) or self._observed(obs)
        self.steps.append((self.open, {name: value.copy() for name, value in now.items()}))
        self.open_bytes += sum(value.nbytes for value in now.values())
        if self.open_bytes > MAX_OPEN_BYTES and self.held > len(self.open):
            self._compact()
        if self.open_bytes > MAX_OPEN_BYTES and len(self.open) > max(self.record, 1):
            self.open = self.open[: max(self.record, len(self.open) // 2, 1)]
            self._compact()

    def after_step(self, outcome: Tensor, returns: Tensor) -> None:
        """Finish the recordings of episodes that ended in this step, and keep or drop them."""
        if not len(self.open):
            return
        how = outcome.cpu().numpy()
        over = how[self.open] != 0
        if not over.any():
            return
        for number in self.open[over].tolist():
            facts = {"episode": self.first + number, "return": float(returns[number])}
            trajectory = Trajectory(
                self._frames(number), self.scenes[number], self.env.outcomes[int(how[number])], facts
            )
            if number < self.record:
                self.trajectories.append(trajectory)
            if self.highlights:
                self.highlights.offer(trajectory, self.first + number)
        self.open = self.open[~over]
        if 2 * len(self.open) <= self.held:
            self._compact()

    def _frames(self, number: int) -> dict[str, np.ndarray]:
        """Return the frames of env `number` by name, each of shape [steps, ...]."""
        rows = [int(np.searchsorted(envs, number)) for envs, _ in self.steps]
        names = self.steps[0][1]
        return {
            name: np.stack([seen[name][row] for row, (_, seen) in zip(rows, self.steps, strict=True)]) for name in names
        }

    def _compact(self) -> None:
        """Drop the frames of envs that are no longer recorded."""
        envs, self.held = self.open, len(self.open)
        kept = self.steps if len(envs) else []
        self.steps = [
            (envs, {name: value[np.searchsorted(ids, envs)] for name, value in seen.items()}) for ids, seen in kept
        ]
        self.open_bytes = sum(value.nbytes for _, seen in self.steps for value in seen.values())

    def _observed(self, obs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the observations with at most DRAWN values per env; they are the frames if the task has no snapshots."""
        small = {name: value for name, value in obs.items() if value[0].numel() <= DRAWN}
        return {name: value[self.open.tolist()].float().cpu().numpy() for name, value in small.items()}


def check_snapshot(frames: Any, count: int) -> dict[str, np.ndarray]:
    """Return a view's snapshot of `count` envs; raise ConfigError unless it holds arrays with a row for each env."""
    rows = frames.values() if isinstance(frames, dict) else [None]
    if not all(isinstance(each, np.ndarray) and each.ndim and len(each) == count for each in rows):
        got = (
            {name: getattr(each, "shape", type(each).__name__) for name, each in frames.items()}
            if isinstance(frames, dict)
            else type(frames).__name__
        )
        raise ConfigError(
            f"TaskView.snapshot must return a dict of NumPy arrays with a row for each of the {count} envs; got {got}."
        )
    return frames
