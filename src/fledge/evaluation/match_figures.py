"""Judging agents by all of their fights: how they fight, which starts they survive, whom and what they do worst against.

Where agents leave nothing to chance, two fights from the same start are one and the same fight, however often it is flown.
So every group of fights says how many of them are `distinct`, and a weakness is only named where FEWEST are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.evaluation.episodes import wilson
from fledge.tasks.base import Task
from fledge.tasks.match import MatchRules, Notes
from fledge.tasks.view.trajectory import Trajectory

if TYPE_CHECKING:
    from fledge.evaluation.matches import Match

FEWEST = 20  # distinct fights that a rate is taken of
DIGITS = 4


class CrossTableFigures:
    """Collects the matches of `count` agents and computes figures of how each of them fought.

    Args:
        rules: The task's `match` part.
    """

    def __init__(self, rules: MatchRules, count: int) -> None:
        self.rules, self.count = rules, count
        self.records: dict[tuple[int, int], SideRecord] = {}

    def note(self, i: int, j: int, match: Match) -> None:
        """Take in the fights of agent i against agent j, for both."""
        if not match.notes:
            return
        self.records[i, j] = SideRecord.of(match)
        if i != j:
            self.records[j, i] = SideRecord.of(match.swapped())

    def pair(self, i: int, j: int) -> dict[str, Any]:
        """How agent i fought against agent j."""
        return self._tell(self.records[i, j])

    def agents(self) -> list[dict[str, Any]]:
        """How each agent fought against everybody, itself included: so all had the same opponents."""
        if not self.records:
            return []
        return [self._tell(joined([self.records[i, j] for j in range(self.count)])) for i in range(self.count)]

    def weak(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Of each agent, its worst opponent and its worst starts against others; None where too few fights tell."""
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


class SideRecord:
    """Fights of one agent: who won [fights] (1, 0, or one half where it is undecided), and the umpire's notes of its side."""

    def __init__(self, won: np.ndarray, notes: Notes, starts: Sequence[str], random_starts: Sequence[str]) -> None:
        self.won, self.notes, self.starts, self.random_starts = won, notes, starts, random_starts

    @classmethod
    def of(cls, match: Match) -> SideRecord:
        value = {name: number for number, name in match.names.items()}
        won = np.where(match.outcomes == value["win"], 1.0, np.where(match.outcomes == value["loss"], 0.0, 0.5))
        return cls(won, {k: v[:, 0] for k, v in match.notes.items()}, match.starts, match.random_starts)

    def chosen(self, which: np.ndarray) -> SideRecord:
        return SideRecord(
            self.won[which], {k: v[which] for k, v in self.notes.items()}, self.starts, self.random_starts
        )

    def began(self, start: str) -> SideRecord:
        """Fights of one kind of start."""
        return self.chosen(self.notes["start"] == self.starts.index(start))

    def distinct(self) -> int:
        """Fights that are not the same as another one in all that was noted, of how it began and of how it went."""
        table = np.stack([self.won, *(np.nan_to_num(v.astype(float), nan=-1.0) for v in self.notes.values())], axis=1)
        return len(np.unique(table.astype(np.float32), axis=0))

    def score(self) -> dict[str, Any]:
        """Wins, losses and survival as shares with 95 % intervals, which are of as many fights as are distinct."""
        fights = len(self.won)
        if not fights:
            return {"fights": 0, "distinct": 0}
        distinct = self.distinct()
        told: dict[str, Any] = {
            "fights": fights,
            "distinct": distinct,
            "win": float((self.won == 1).mean()),
            "loss": float((self.won == 0).mean()),
        }
        shares = {"score": self.won, "survived": self.notes["survived"]}
        for name, values in shares.items():
            told[name] = float(values.mean())
            told[f"{name}_ci95"] = [round(x, DIGITS) for x in wilson(told[name] * distinct, distinct)]
        return {k: round(v, DIGITS) if isinstance(v, float) else v for k, v in told.items()}


def joined(records: Sequence[SideRecord]) -> SideRecord:
    """All fights of some records with the same kinds of starts."""
    notes = {name: np.concatenate([record.notes[name] for record in records]) for name in records[0].notes}
    # fights against different opponents are different ones, however alike they look
    notes["against"] = np.repeat(np.arange(len(records)), [len(record.won) for record in records])
    return SideRecord(np.concatenate([s.won for s in records]), notes, records[0].starts, records[0].random_starts)


def worst(scores: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any] | None:
    """The one with the lowest score, where enough distinct fights tell; of how many it is the lowest."""
    known = [(name, row) for name, row in scores if row["distinct"] >= FEWEST]
    if not known:
        return None
    name, row = min(known, key=lambda pair: float(pair[1]["score"]))
    return {"name": name, **row, "of": len(known)}


def explain_losses(task: Task, tracks: Sequence[Trajectory], who: Sequence[str]) -> list[dict[str, Any]]:
    """Why recorded matches of two agents were lost, for either of them; noted in the tracks' facts as well."""
    rows: list[dict[str, Any]] = []
    for number, track in enumerate(tracks):
        found = {side: task.view.explain(track, side) for side in (0, 1)}
        lost = {side: defeat for side, defeat in found.items() if defeat is not None}
        if lost:
            track.facts["lost"] = {who[side]: defeat.why for side, defeat in lost.items()}
        for side, defeat in lost.items():
            facts = {"agent": who[side], "against": who[1 - side], "number": number, "kind": defeat.kind}
            rows.append({**facts, "why": defeat.why})
    return rows
