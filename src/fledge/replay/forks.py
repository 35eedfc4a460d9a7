"""Fork: a child gets every buffer whole, with locks, threads and draws of its own.

Contract
    What is `watched` is held, by its `lock`, while the process forks: no other thread is inside it, so the child's copy is
    not half-changed and its lock is free. In the child `forked(number)` is then called, with a number that no other child
    of this process got. Afterwards the two have nothing in common: what one adds, the other does not see.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol

import numpy as np


class Forkable(Protocol):
    """Something with a lock that other threads may hold when the process forks."""

    lock: Any  # re-entrant

    def forked(self, number: int) -> None: ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_guard = threading.RLock()
_held: list[Forkable] = []
_forks = 0


def watch(item: Forkable) -> None:
    """Hold `item` at every fork from now on, for as long as it lives."""
    with _guard:
        _watched.add(item)


def other_draws(rng: np.random.Generator, number: int) -> np.random.Generator:
    """Draws that depend on the state of `rng` and on `number`, and on nothing else."""
    return np.random.default_rng([number, *rng.integers(0, 2**32, 4)])


def _before() -> None:
    _guard.acquire()
    for item in list(_watched):
        item.lock.acquire()
        _held.append(item)


def _after(in_child: bool) -> None:
    global _forks
    _forks += 1
    held = _held.copy()
    _held.clear()
    for item in held:
        if in_child:
            item.forked(_forks)
        item.lock.release()
    _guard.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=_before, after_in_parent=lambda: _after(in_child=False), after_in_child=lambda: _after(in_child=True)
    )
