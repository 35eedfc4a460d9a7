"""The browser server of the soak test, and its replay worker."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request

from benchmarks.soak.plan import Plan, Workload, wait_until
from fledge.core.errors import ConfigError

START_S = 120.0


def record_flights(plan: Plan) -> None:
    """Record flights of a scripted policy for the pages of the browser app."""
    command = [sys.executable, "-m", "fledge.cli", "eval", "gap", "--episodes", "16", "env.num_envs=16"]
    done = subprocess.run(
        [*command, "--record", str(plan.place / "flights.frec")], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise ConfigError(f"The flights for the browser app could not be recorded: {done.stderr.strip()}")


class BrowserServer(Workload):
    """`fledge watch` on the folder of the soak test."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "browser server")
        log = plan.out / "browser_server.log"
        log.unlink(missing_ok=True)
        self.process = self.launch(self.name, "watch", str(plan.place), "--port", "0", "--no-browser")
        end = time.monotonic() + START_S
        while (found := re.search(r"open (http://[^/\s]+)", log.read_text())) is None:
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                raise ConfigError(f"`fledge watch` did not start: {self.last_words(self.name)}")
            time.sleep(0.2)
        self.base = found[1]

    def work(self) -> None:
        for page in ("/watch", "/play"):  # which load the simulators
            wait_until(self.plan, lambda page=page: answers(self.base + page), 2 * START_S)
        self.ready.set()
        while not self.plan.stop.wait(1.0):
            if self.process.poll() is not None:
                return self.plan.fault(f"the browser server ended: {self.last_words(self.name)}")


def answers(link: str) -> bool:
    """Return whether a page can be loaded."""
    try:
        with urllib.request.urlopen(link, timeout=START_S) as page:
            return bool(page.read())
    except OSError:
        return False


class ReplayWorker(Workload):
    """A process that fills, saves and loads a replay buffer."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "replay")

    def work(self) -> None:
        folder = self.plan.place / "replay"
        process = self.launch(self.name, str(folder), module="benchmarks.soak.replay_worker")
        known = 0.0
        while not self.plan.stop.wait(0.5):
            if process.poll() is not None:
                return self.plan.fault(f"the replay worker ended: {self.last_words(self.name)}")
            path = folder / "replay.fledge"
            if path.exists() and path.stat().st_mtime != known:
                known = path.stat().st_mtime
                self.plan.count("replay saves")
                self.ready.set()
