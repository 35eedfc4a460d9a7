"""Statistics of the fights in a cross-table: how agents fight, and against which opponents and from which starts they lose.

A start is a kind of starting position, such as head-on; its names come from the task (`MatchStats.starts`). Deterministic
agents repeat the same fight from the same start. So every group of fights has a number of `distinct` fights, in which
identical fights count once, and a weakness is reported only if it rests on at least FEWEST distinct fights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.evaluation.episodes import wilson
from fledge.tasks.base import Task
from fledge.tasks.match import MatchRules, Notes
from fledge.tasks.view.trajectory import Trajectory

if TYPE_CHECKING:
    from fledge.evaluation.matches import Match

FEWEST = 20  # least number of distinct fights for a reported weakness
DIGITS = 4


class CrossTableFigures:
    """Collects the matches of `count` agents and computes statistics of how each of them fought.

    Args:
        rules: The task's `match` part; its `summarize` computes the statistics.
        count: Number of agents.
    """

    def __init__(self, rules: MatchRules, count: int) -> None:
        self.rules, self.count = rules, count
        self.records: dict[tuple[int, int], SideRecord] = {}

    def note(self, i: int, j: int, match: Match) -> None:
        """Add the fights of agent i against agent j to the records of both agents."""
        if not match.notes:
            return
        self.records[i, j] = SideRecord.of(match)
        if i != j:
            self.records[j, i] = SideRecord.of(match.swapped())

    def pair(self, i: int, j: int) -> dict[str, Any]:
        """Return statistics of how agent i fought against agent j."""
        return self._tell(self.records[i, j])

    def agents(self) -> list[dict[str, Any]]:
        """Return for each agent statistics of its fights against all agents, itself included."""
        if not self.records:
            return []
        return [self._tell(joined([self.records[i, j] for j in range(self.count)])) for i in range(self.count)]

    def weak(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return each agent's weaknesses: the opponent against which, and the start from which, it scores lowest.

        Keys of a row: "agent", "opponent", "start" (one of the fixed starts) and "random_start". Each of the last
        three is an entry from `worst`, or None if there are fewer than FEWEST distinct fights.
        """
        found: list[dict[str, Any]] = []
        if not self.records or self.count < 2:
            return found
        for i in range(self.count):
            others = [j for j in range(self.count) if j != i]
            scores = [(names[j], self.records[i, j].score()) for j in others]  # names may be the same
            row: dict[str, Any] = {"agent": names[i], "opponent": worst(scores)}
            together = joined([self.records[i, j] for j in others])
            cells = [(name, together.began(name).score()) for name in together.starts]
            row["start"] = worst([(k, v) for k, v in cells if k not in together.random_starts])
            row["random_start"] = worst([(k, v) for k, v in cells if k in together.random_starts])
            found.append(row)
        return found

    def _tell(self, record: SideRecord) -> dict[str, Any]:
        figures = self.rules.summarize(record.notes)
        told: dict[str, Any] = {k: None if v is None else round(v, DIGITS) for k, v in figures.items()}
        by_start = {name: record.began(name) for name in record.starts}
        return told | {"by_start": {name: part.score() for name, part in by_start.items() if len(part.won)}}


@dataclass
class SideRecord:
    """Results of one agent's fights, and the numbers that the task's MatchStats recorded of them."""

    won: np.ndarray  # [fights] 1 won, 0 lost, 0.5 undecided
    notes: Notes  # notes of the task's MatchStats about this agent, [fights] each
    starts: Sequence[str]
    random_starts: Sequence[str]

    @classmethod
    def of(cls, match: Match) -> SideRecord:
        value = {name: number for number, name in match.names.items()}
        won = np.where(match.outcomes == value["win"], 1.0, np.where(match.outcomes == value["loss"], 0.0, 0.5))
        return cls(won, {k: v[:, 0] for k, v in match.notes.items()}, match.starts, match.random_starts)

    def began(self, start: str) -> SideRecord:
        """Return a record of only those fights that began from `start`, a name in `starts`."""
        which = self.notes["start"] == self.starts.index(start)
        return replace(self, won=self.won[which], notes={k: v[which] for k, v in self.notes.items()})

    def distinct(self) -> int:
        """Return the number of different fights: fights with the same result and the same recorded numbers count once."""
        table = np.stack([self.won, *(np.nan_to_num(v.astype(float), nan=-1.0) for v in self.notes.values())], axis=1)
        return len(np.unique(table.astype(np.float32), axis=0))

    def score(self) -> dict[str, Any]:
        """Return the fractions of fights won, lost and survived, and the score with 95 % intervals.

        The score is the fraction won plus half the fraction undecided. In the intervals, identical fights count once.
        """
        fights = len(self.won)
        if not fights:
            return {"fights": 0, "distinct": 0}
        distinct = self.distinct()
        told: dict[str, Any] = {"fights": fights, "distinct": distinct}
        told |= {name: float((self.won == value).mean()) for name, value in (("win", 1), ("loss", 0))}
        for name, values in (("score", self.won), ("survived", self.notes["survived"])):
            told[name] = float(values.mean())
            told[f"{name}_ci95"] = [round(x, DIGITS) for x in wilson(told[name] * distinct, distinct)]
        return {k: round(v, DIGITS) if isinstance(v, float) else v for k, v in told.items()}


def joined(records: Sequence[SideRecord]) -> SideRecord:
    """Join one agent's records against several opponents into one record; all records must have the same `starts`."""
    notes = {name: np.concatenate([record.notes[name] for record in records]) for name in records[0].notes}
    # fights against different opponents count as distinct, even if all figures are equal
    notes["against"] = np.repeat(np.arange(len(records)), [len(record.won) for record in records])
    return SideRecord(np.concatenate([s.won for s in records]), notes, records[0].starts, records[0].random_starts)


def worst(scores: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any] | None:
    """Return the entry with the lowest score, from (name, entry) pairs.

    Added to it are "name", and "of": the number of entries compared.

    Entries with fewer than FEWEST distinct fights are left out; None if no entry remains.
    """
    known = [(name, row) for name, row in scores if row["distinct"] >= FEWEST]
    if not known:
        return None
    name, row = min(known, key=lambda pair: float(pair[1]["score"]))
    return {"name": name, **row, "of": len(known)}


def explain_losses(task: Task, trajectories: Sequence[Trajectory], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the reason for every loss of either agent in the recorded fights, and add it to each fight's `facts`."""
    rows: list[dict[str, Any]] = []
    for number, episode in enumerate(trajectories):
        for side in (0, 1):
            if (reason := task.view.explain(episode, side)) is not None:
                episode.facts.setdefault("lost", {})[names[side]] = reason.why
                facts = {"agent": names[side], "against": names[1 - side], "number": number, "kind": reason.kind}
                rows.append({**facts, "why": reason.why})
    return rows
