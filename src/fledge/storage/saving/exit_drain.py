"""Nothing queued is lost when the process ends: at interpreter exit, on SIGINT and on SIGTERM.

Contract
    Objects with a `drain()` are registered while they may hold unsaved work. At exit (of a multiprocessing child too,
    which ends without the interpreter's own exit), and when one of the two signals comes, all of them are drained, and
    say which saves failed; then the handler that was there before gets the signal (its default action
    included), so a program's own handling keeps working. A second signal during the drain skips it.
    Signal handlers can only be set from the main thread; elsewhere only the drain at exit is set up.
    kill -9 and os._exit cannot be caught: then the last durable checkpoint is what is left.
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
    """Something with work that must be finished before the process ends."""

    def drain(self, timeout: float | None = None) -> bool: ...

    def report(self) -> object:
        """Log errors that nobody has been told of."""


_alive: list[Drainable] = []
_previous: dict[int, Any] = {}
_owner = -1  # the process whose items these are
_draining = False
EXIT_PRIORITY = 100  # early: what else ends with a process may be needed to save


def register(item: Drainable, signals: bool = True) -> None:
    """Drain `item` before the process ends."""
    global _owner, _draining
    if _owner != os.getpid():  # the first here, or a forked child: the parent's items live on the parent's threads
        _alive.clear()
        _owner, _draining = os.getpid(), False
        Finalize(None, _at_exit, exitpriority=EXIT_PRIORITY)
    _alive.append(item)
    if signals and threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number not in _previous:
                _previous[number] = signal.signal(number, _on_signal)


def unregister(item: Drainable) -> None:
    """Forget `item`; with the last one gone, the previous signal handlers come back."""
    if item in _alive:
        _alive.remove(item)
    if not _alive and _previous and threading.current_thread() is threading.main_thread():
        for number, handler in list(_previous.items()):
            if signal.getsignal(number) is _on_signal:  # else someone has chained onto us since: stay in the chain
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


@atexit.register
def _at_exit() -> None:
    if os.getpid() == _owner:
        _drain_all("exit")
