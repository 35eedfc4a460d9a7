"""Finish queued work when the process ends: at interpreter exit, on SIGINT and on SIGTERM.

At exit (also of a multiprocessing child, which skips the interpreter's exit), and on either signal, all registered objects are
drained (they finish their queued work) and log their failures; then the previous handler, or the default action, gets the
signal. A second signal skips a running drain. Signal handlers can only be set in the main thread; in others only the drain at
exit is set up. Other exit handlers may run after this drain and save once more. So `ending()` is True as soon as the drain has
begun, and from then on a call that saves must not return before its file is durable.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, Protocol

logger = logging.getLogger("fledge.storage")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Drainable(Protocol):
    """An object with work to finish before the process ends."""

    def drain(self, timeout: float | None = None) -> bool: ...

    def report(self) -> object:
        """Log the errors that have not been logged yet."""


_alive: list[Drainable] = []
_previous: dict[int, Any] = {}
_owner = -1  # id of the process that registered the items
_draining = False
_ending = False
EXIT_PRIORITY = 100  # early: saving may need what later finalizers destroy


def register(item: Drainable, signals: bool = True) -> None:
    """Drain `item` when the process exits and, with `signals`, on SIGINT and SIGTERM."""
    global _owner, _draining, _ending
    if _owner != os.getpid():  # first call, or a forked child: the parent's items belong to the parent's threads
        _alive.clear()
        _owner, _draining, _ending = os.getpid(), False, False
        Finalize(None, _at_exit, exitpriority=EXIT_PRIORITY)
    _alive.append(item)
    if signals and threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number not in _previous:
                _previous[number] = signal.signal(number, _on_signal)


def unregister(item: Drainable) -> None:
    """Remove a registered item; if none is left, restore the previous signal handlers."""
    if item in _alive:
        _alive.remove(item)
    if not _alive and _previous and threading.current_thread() is threading.main_thread():
        for number, handler in list(_previous.items()):
            if signal.getsignal(number) is _on_signal:  # else a later handler calls ours: stay in the chain
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
                del _previous[number]


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _draining
    if not _draining and os.getpid() == _owner:
        _draining = True
        try:
            _drain_all(f"signal {signal.Signals(number).name}")
        finally:
            _draining = False
    previous = _previous.get(number, signal.SIG_DFL)
    if callable(previous):
        previous(number, frame)
    elif previous != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _drain_all(why: str) -> None:
    for item in list(_alive):
        with contextlib.suppress(Exception):
            if not item.drain(0):
                logger.warning("%s: finishing the checkpoints that are queued", why)
                item.drain()
            item.report()


def ending() -> bool:
    """Return True once this process has begun to drain at exit; a later save must be finished before its call returns."""
    return _ending and os.getpid() == _owner


@atexit.register
def _at_exit() -> None:
    global _ending
    if os.getpid() == _owner:
        _ending = True  # before the drain: a save that is queued meanwhile waits for itself
        _drain_all("exit")
