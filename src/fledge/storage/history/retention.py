"""Which checkpoints of a folder stay whole, which are thinned to weights, and which go.

Contract
    `plan` is a pure function of what is in the folder. It never asks to thin or remove a file that another one, which
    stays, is a delta to; it never touches the newest; it keeps the best by metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class HistoryEntry:
    """One checkpoint in a history's folder.

    Attributes:
        path: The file.
        step: Training step, as given to `save`.
        metric: Value to rank by, as given to `save`.
        sequence: Order of saving, over all runs that used the folder.
        thin: Whether only the weights are left.
        bytes: Size of the file.
        base: Name of the file that it is a delta to.
        id: Identity of its content.
        metadata: As given to `save`.
        skipped: After `load_latest`: newer files that could not be used, with the reason.
    """

    path: Path
    step: int
    metric: float | None
    sequence: int
    thin: bool
    bytes: int
    base: str | None
    id: str
    metadata: dict[str, Any] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Policy:
    """What a history keeps."""

    keep_whole: int = 3
    keep_best: int = 0
    keep_thin: int | None = None
    higher_is_better: bool = True


@dataclass(frozen=True)
class Plan:
    """What to do with a folder, newest first: a delta comes before its base."""

    thin: tuple[HistoryEntry, ...]
    remove: tuple[HistoryEntry, ...]
    best: frozenset[str]  # names


def plan(entries: Sequence[HistoryEntry], policy: Policy) -> Plan:
    """What to thin and what to remove, given what is there."""
    newest_first = sorted(entries, key=lambda entry: entry.sequence, reverse=True)
    whole = [entry for entry in newest_first if not entry.thin]
    stay_whole = {entry.path.name for entry in whole[: policy.keep_whole]}
    stay_whole |= bases_of(stay_whole, entries)
    best = best_names(entries, policy)
    older = [entry for entry in newest_first if entry.path.name not in stay_whole]
    limit = len(older) if policy.keep_thin is None else policy.keep_thin
    kept = {entry.path.name for entry in older[:limit]} | best | stay_whole
    # A thin file that is a delta needs its (thin) base; a whole one that gets thinned is rewritten without.
    kept |= bases_of({entry.path.name for entry in older if entry.thin and entry.path.name in kept}, entries)
    thin = [entry for entry in older if entry.path.name in kept and not entry.thin]
    remove = [entry for entry in older if entry.path.name not in kept]
    return Plan(tuple(thin), tuple(remove), frozenset(best))


def best_names(entries: Sequence[HistoryEntry], policy: Policy) -> set[str]:
    """Names of the best checkpoints; of equals, the newer."""
    ranked = [entry for entry in entries if entry.metric is not None and entry.metric == entry.metric]
    sign = 1 if policy.higher_is_better else -1
    ranked.sort(key=lambda entry: (sign * (entry.metric or 0.0), entry.sequence), reverse=True)
    return {entry.path.name for entry in ranked[: policy.keep_best]}


def bases_of(names: set[str], entries: Sequence[HistoryEntry]) -> set[str]:
    """All files that the named ones need, directly or through others."""
    base_of = {entry.path.name: entry.base for entry in entries}
    found: set[str] = set()
    todo = list(names)
    while todo:
        base = base_of.get(todo.pop())
        if base is not None and base not in found:
            found.add(base)
            todo.append(base)
    return found
