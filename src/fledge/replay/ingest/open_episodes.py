"""OpenEpisodes: steps of episodes in parallel envs that have not ended yet.

Contract
    `push(rows, done, final)` takes one step of all N envs (words per internal key, [N, *shape]) and yields the episodes that
    it completes, as (transitions, words). The final observation comes from `final` where the env ended, or from the env's
    next observation where the episode was cut at `segment` transitions: neither terminated nor truncated, so the learner
    bootstraps from it. `flush()` closes the open episodes; without `final` observations, the last row of each env becomes
    its final observation and that transition is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fledge.core.errors import InputError
from fledge.replay.checks import damaged
from fledge.replay.schema import KeySpec

Episode = tuple[int, dict[str, np.ndarray]]


class OpenEpisodes:
    """Pending rows of N envs, [N, room, *shape] per internal key; `room`, the allocated steps, doubles when full.

    `segment` cuts episodes after this many transitions, so that they can be sampled before they end (None: never).
    """

    def __init__(
        self, num_envs: int, specs: Mapping[str, KeySpec], with_final: set[str], segment: int | None, longest: int
    ) -> None:
        self.num_envs, self.specs, self.segment, self.longest = num_envs, dict(specs), segment, longest
        self.with_final = with_final
        self.count = np.zeros(num_envs, np.int64)  # transitions pending
        self._room = 0
        self._rows: dict[str, np.ndarray] = {k: np.empty((num_envs, 0, *s.shape), s.word) for k, s in specs.items()}

    def check_room(self, done: Sequence[np.ndarray]) -> None:
        """Raise InputError if an episode would exceed `max_size` after these steps; `done` has the end flags [N] of each."""
        if self.count.max(initial=0) + len(done) <= self.longest:
            return
        count = self.count.copy()
        for ended in done:
            if self.segment is not None:
                count[count >= self.segment] = 0
            if count.max(initial=0) >= self.longest:
                fix = "raise max_size, or set segment_frames to cut long episodes"
                raise InputError(f"An open episode has reached the buffer's max_size of {self.longest}: {fix}.")
            count += 1
            count[ended] = 0

    def push(
        self, rows: Mapping[str, np.ndarray], done: np.ndarray, final: Mapping[str, np.ndarray] | None
    ) -> Iterator[Episode]:
        """Add one step of all envs and yield the episodes that it completes."""
        if self.segment is not None:
            for env in np.flatnonzero(self.count >= self.segment).tolist():
                yield self._close(env, rows)
        assert self.count.max(initial=0) < self.longest, "see check_room"
        self._grow(int(self.count.max(initial=0)) + 1)
        every = np.arange(self.num_envs)
        for key, pending in self._rows.items():
            pending[every, self.count] = rows[key]
        self.count += 1
        for env in np.flatnonzero(done).tolist():
            yield self._close(env, final)

    def flush(self, final: Mapping[str, np.ndarray] | None = None) -> Iterator[Episode]:
        """Close all open episodes and yield them; `final` are the observations of all envs after the last rows."""
        for env in np.flatnonzero(self.count).tolist():
            if final is not None or not self.with_final:
                yield self._close(env, final)
                continue
            self.count[env] -= 1
            last = int(self.count[env])
            if last:
                yield self._close(env, {k: self._rows[k][:, last] for k in self.with_final})

    def _close(self, env: int, final: Mapping[str, np.ndarray] | None) -> Episode:
        """Return the open episode of an env and clear it; the env's row of `final` [N, ...] is the final observation."""
        length = int(self.count[env])
        words = {k: pending[env, :length] for k, pending in self._rows.items()}
        if final is not None:
            words |= {k: np.concatenate([words[k], final[k][env : env + 1]]) for k in self.with_final}
        self.count[env] = 0
        return length, words

    def _grow(self, room: int) -> None:
        if room <= self._room:
            return
        self._room = max(16, 2 * room)
        for key, old in self._rows.items():
            new = np.zeros((self.num_envs, self._room, *old.shape[2:]), old.dtype)
            new[:, : old.shape[1]] = old
            self._rows[key] = new

    def state(self) -> dict[str, Any]:
        used = int(self.count.max(initial=0))
        return {"count": self.count.copy(), "rows": {k: v[:, :used].copy() for k, v in self._rows.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        count = np.asarray(state["count"], np.int64)
        if count.shape != self.count.shape or (count < 0).any() or set(state["rows"]) != set(self._rows):
            raise damaged("has open episodes that do not match its keys and envs")
        used = int(count.max(initial=0))
        rows = {key: np.asarray(saved) for key, saved in state["rows"].items()}
        for key, pending in self._rows.items():  # before memory is allocated: the count is not trusted
            expected = (self.num_envs, used, *pending.shape[2:])
            if rows[key].dtype != pending.dtype or rows[key].shape != expected:
                raise damaged(f"has open episodes with a wrong shape or dtype of {key!r}")
        if used > self.longest:
            raise InputError(
                f"The saved replay has an open episode of {used} steps, but max_size is {self.longest}: raise max_size."
            )
        self._grow(used)
        for key, pending in self._rows.items():
            pending[:, :used] = rows[key]
        self.count = count.copy()
