"""Time, folders, counts and faults of a soak test, which all its workloads share."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any


class Plan:
    """Time, folders and findings of one soak test.

    Attributes:
        place: Folder of the runs and recordings; the browser app serves it.
        stop: Set when the workloads shall end.
        counts: What was done, by name.
        faults: How often each thing went wrong, by a sentence that says what.
        events: [minute, workload, what] of kills and phases, for the picture.
    """

    def __init__(self, place: Path, out: Path, minutes: float, seed: int) -> None:
        self.place, self.out, self.minutes = place, out, minutes
        self.stop = threading.Event()
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.events: list[tuple[float, str, str]] = []
        self.facts: dict[str, str] = {}
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Count the time from now on."""
        self._begun = time.monotonic()

    def minute(self) -> float:
        """Return the minutes since the start."""
        return (time.monotonic() - self._begun) / 60

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[name] += number

    def fault(self, text: str) -> None:
        """Note a fault, unless the test is ending, when processes are stopped at any moment."""
        if not self.stop.is_set():
            with self._lock:
                self.faults[text] += 1

    def event(self, workload: str, what: str) -> None:
        self.events.append((round(self.minute(), 3), workload, what))


class Workload(threading.Thread):
    """A part of the soak test: a thread that repeats its work until the end, and the processes that it started.

    `ready` is set when its processes have started to work; the time of the test begins when all are ready.
    """

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.plan, self.ready = plan, threading.Event()
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def work(self) -> None:
        """Do the work until `plan.stop` is set."""

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.plan.fault(f"{self.name} ended with {type(error).__name__}: {error}")
        self.ready.set()

    def launch(self, name: str, *command: str, module: str = "fledge.cli") -> subprocess.Popen[bytes]:
        """Start `python -m MODULE COMMAND` as the process that the report calls `name`; its output goes to NAME.log."""
        with (self.plan.out / f"{name.replace(' ', '_')}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._children[name] = process
        return process

    def last_words(self, name: str, prefix: str = "") -> str:
        """Return the last line that a process wrote, among those that begin with `prefix`; "" if there is none."""
        with (self.plan.out / f"{name.replace(' ', '_')}.log").open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 20_000))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip() and line.startswith(prefix)), "")

    def processes(self) -> dict[str, int]:
        """Return the ids of the processes that run now, by name."""
        return {name: process.pid for name, process in list(self._children.items()) if process.poll() is None}

    def end(self) -> None:
        """Stop the processes, and wait for the thread."""
        for _ in range(2):  # the thread may start another one until it notices the end
            for process in list(self._children.values()):
                with contextlib.suppress(OSError):
                    process.kill()
                process.wait()
            if self.ident is not None:
                self.join(20.0)


def wait_until(plan: Plan, condition: Any, seconds: float) -> bool:
    """Wait until a condition holds; return False if it does not within some seconds or the test ends."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or plan.stop.wait(0.1):
            return False
    return True
