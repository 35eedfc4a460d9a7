"""Fork safety: a forked child gets complete buffers, with free locks and random numbers of its own.

Contract
    The locks of all `watched` objects are held while the process forks, so that no other thread is changing them and the
    child's copies are consistent. In the child, `forked(number)` is called with a number unique among the children of this
    process. Parent and child are independent from then on.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_guard = threading.RLock()
_held: list[Any] = []
_forks = 0


def watch(item: Any) -> None:
    """Hold `item.lock`, which must be re-entrant, during every fork from now on, as long as the item exists."""
    with _guard:
        _watched.add(item)


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


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=lambda: _after(False), after_in_child=lambda: _after(True))
