"""Decide which checkpoints of a folder stay whole, which are reduced to weights, and which are removed.

`plan` never changes the base of a file that stays unchanged, never touches the newest, and keeps the best by metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fledge.core.errors import InputError

WEIGHTS_ONLY = "thin"  # the flag's name in a file's metadata


@dataclass(frozen=True)
class HistoryEntry:
    """One checkpoint in a history's folder; step, metric and metadata are those given to `save`."""

    path: Path
    step: int
    metric: float | None
    sequence: int  #: Order of saving, over all runs that used the folder.
    weights_only: bool  #: True if only the weights and plain values are left.
    bytes: int  #: Size of the file.
    base: str | None  #: Name of its base, if it is a delta.
    id: str  #: Hash of its content.
    metadata: dict[str, Any] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()  #: Set by `load_latest`: files that could not be used, and why.


@dataclass(frozen=True)
class Policy:
    """How many checkpoints a history keeps: whole, best by metric, and reduced to weights."""

    keep_whole: int = 3
    keep_best: int = 0
    keep_weights_only: int | None = None
    higher_is_better: bool = True


@dataclass(frozen=True)
class Plan:
    """Checkpoints to reduce or remove, newest first, so that a delta comes before its base."""

    reduce: tuple[HistoryEntry, ...]  # to weights only
    remove: tuple[HistoryEntry, ...]
    best: frozenset[str]  # file names


def plan(entries: Sequence[HistoryEntry], policy: Policy) -> Plan:
    """Decide which checkpoints to reduce to weights, and which to remove."""
    newest_first = sorted(entries, key=lambda entry: entry.sequence, reverse=True)
    whole = [entry for entry in newest_first if not entry.weights_only]
    stay_whole = {entry.path.name for entry in whole[: policy.keep_whole]}
    stay_whole |= bases_of(stay_whole, entries)
    best = best_names(entries, policy)
    older = [entry for entry in newest_first if entry.path.name not in stay_whole]
    limit = len(older) if policy.keep_weights_only is None else policy.keep_weights_only
    kept = {entry.path.name for entry in older[:limit]} | best | stay_whole
    # A reduced file that is a delta needs its (reduced) base; a whole one is rewritten without its base.
    kept |= bases_of({entry.path.name for entry in older if entry.weights_only and entry.path.name in kept}, entries)
    reduce = [entry for entry in older if entry.path.name in kept and not entry.weights_only]
    remove = [entry for entry in older if entry.path.name not in kept]
    return Plan(tuple(reduce), tuple(remove), frozenset(best))


def best_names(entries: Sequence[HistoryEntry], policy: Policy) -> set[str]:
    """Return the file names of the `keep_best` checkpoints with the best metric; of equals, the newer is better."""
    ranked = [entry for entry in entries if entry.metric is not None and entry.metric == entry.metric]
    sign = 1 if policy.higher_is_better else -1
    ranked.sort(key=lambda entry: (sign * (entry.metric or 0.0), entry.sequence), reverse=True)
    return {entry.path.name for entry in ranked[: policy.keep_best]}


def bases_of(names: set[str], entries: Sequence[HistoryEntry]) -> set[str]:
    """Return the names of all files that the files `names` need as bases, directly or through other deltas."""
    base_of = {entry.path.name: entry.base for entry in entries}
    found: set[str] = set()
    todo = list(names)
    while todo:
        base = base_of.get(todo.pop())
        if base is not None and base not in found:
            found.add(base)
            todo.append(base)
    return found


def new_note(step: Any, metric: Any) -> dict[str, Any]:
    """Return the note of a new whole checkpoint; raise InputError unless step and metric are numbers (metric may be None)."""
    if not hasattr(step, "__index__") or isinstance(step, bool) or int(step) < 0:
        raise InputError(f"step is {step!r}, but must be a whole number of at least 0.")
    try:
        number = None if metric is None else float("text" if isinstance(metric, str | bytes) else metric)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"metric is {str(metric)[:60]!r}, but must be a number or None.") from None
    return {"step": int(step), "metric": number, WEIGHTS_ONLY: False}


def is_note(note: Any) -> bool:
    """Return True if `note` has the fields that `CheckpointHistory.save` writes into a file's metadata."""
    if not isinstance(note, dict):
        return False
    numbers = all(type(note.get(key)) is int for key in ("step", "sequence"))
    return numbers and type(note.get(WEIGHTS_ONLY)) is bool and type(note.get("metric", "")) in (float, type(None))
