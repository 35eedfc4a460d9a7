"""Episodes still being flown in parallel envs: rows wait here until their episode ends or is cut.

Contract
    `push(rows, done, final)` takes one step of all N envs (words per internal key, [N, *shape]) and yields the episodes
    that it completes, as (transitions, words) ready to store. A final observation comes from `final` where the
    env ended, or from the env's next observation where the episode was only cut at `segment` transitions: that one
    is exact, neither terminated nor truncated, and the learner bootstraps from it. `flush()` closes what is open;
    without observations to close with, the last row of each env serves as final observation and its transition is lost.
    The pending rows belong to this object: [N, room, *shape] per key, room grown by doubling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fledge.core.errors import InputError
from fledge.replay.saved import damaged
from fledge.replay.schema import KeySpec

Episode = tuple[int, dict[str, np.ndarray]]


class OpenEpisodes:
    """Pending rows of N envs.

    Args:
        num_envs: N.
        specs: Internal keys.
        with_final: Those with a final observation.
        segment: Cut an episode after this many transitions, so that it can be sampled before it ends; None never.
        longest: Refuse episodes longer than this: they would not fit the buffer.
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
        """InputError if some episode of these steps would not fit the buffer; nothing of them is taken then."""
        if self.count.max(initial=0) + len(done) <= self.longest:
            return
        count = self.count.copy()
        for ended in done:
            if self.segment is not None:
                count[count >= self.segment] = 0
            if count.max(initial=0) >= self.longest:
                raise InputError(
                    f"an open episode has {self.longest} transitions, all that the buffer holds: raise max_size, or give "
                    "segment_frames to cut long episodes."
                )
            count += 1
            count[ended] = 0

    def push(
        self, rows: Mapping[str, np.ndarray], done: np.ndarray, final: Mapping[str, np.ndarray] | None
    ) -> Iterator[Episode]:
        """Take one step of all envs; yields episodes completed by it."""
        if self.segment is not None:
            for env in np.flatnonzero(self.count >= self.segment).tolist():
                yield self._close(env, {k: rows[k][env] for k in self.with_final})
        assert self.count.max(initial=0) < self.longest, "see check_room"
        self._grow(int(self.count.max(initial=0)) + 1)
        every = np.arange(self.num_envs)
        for key, pending in self._rows.items():
            pending[every, self.count] = rows[key]
        self.count += 1
        for env in np.flatnonzero(done).tolist():
            yield self._close(env, {k: final[k][env] for k in self.with_final} if final is not None else {})

    def flush(self, final: Mapping[str, np.ndarray] | None = None) -> Iterator[Episode]:
        """Close all open episodes; `final` are observations of all envs that follow the last rows."""
        for env in np.flatnonzero(self.count).tolist():
            if final is not None or not self.with_final:
                yield self._close(env, {k: final[k][env] for k in self.with_final} if final is not None else {})
                continue
            last = self.count[env] - 1
            self.count[env] = last
            if last > 0:
                yield self._close(env, {k: self._rows[k][env, last] for k in self.with_final})

    def _close(self, env: int, final: Mapping[str, np.ndarray]) -> Episode:
        length = int(self.count[env])
        words = {k: pending[env, :length] for k, pending in self._rows.items()}
        words = {k: np.concatenate([v, final[k][None]]) if k in self.with_final else v for k, v in words.items()}
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
            raise damaged("has open episodes that do not fit its keys and envs")
        used = int(count.max(initial=0))
        rows = {key: np.asarray(saved) for key, saved in state["rows"].items()}
        for key, pending in self._rows.items():  # before there is room for them: the count may lie
            expected = (self.num_envs, used, *pending.shape[2:])
            if rows[key].dtype != pending.dtype or rows[key].shape != expected:
                raise damaged(f"has open episodes with a wrong {key!r}")
        if used > self.longest:
            raise InputError(
                f"the saved replay has an open episode of {used} transitions, this buffer room for {self.longest}: raise "
                "max_size."
            )
        self._grow(used)
        for key, pending in self._rows.items():
            pending[:, :used] = rows[key]
        self.count = count.copy()
