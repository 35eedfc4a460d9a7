"""`python -m benchmarks soak`: run everything for as long as told, and judge whether memory, handles, threads and disk grow.

browser server    `fledge watch` with pages open, episodes streamed and matches played, by HTTP and WebSocket
training          watched live, evaluated, and saved about every second
killed            a SAC run with replay and a league run, killed at random moments and resumed, in turns
full disk         a training whose disk is full half of the time
replay            a replay buffer that is filled, saved, loaded into another buffer and compared, again and again
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.soak.clients import Clients
from benchmarks.soak.picture import draw
from benchmarks.soak.plan import Plan, Workload
from benchmarks.soak.sampling import LIMITS, UNITS, Samples
from benchmarks.soak.trainings import START_S, KilledTrainings, LongTraining, StarvedTraining
from benchmarks.soak.workers import BrowserServer, ReplayWorker, record_flights
from benchmarks.tables import table
from fledge.core.machine import machine_info

SAMPLES = 240  # at least, as samples of a long test are MAX_PAUSE_S apart
MAX_PAUSE_S = 5.0
MINUTE = 60.0


def run(
    on_progress: Callable[[str], None], minutes: float = 30.0, folder: str = "soak", seed: int = 0
) -> dict[str, Any]:
    """Run all workloads for some minutes, and return figures and verdicts; JSON-able.

    Args:
        folder: Folder for soak.json, soak.png and the output of every process.
        seed: Seed of the moments of the kills.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    begun = machine_info()
    with TemporaryDirectory(prefix="fledge-soak-", ignore_cleanup_errors=True) as place:
        plan = Plan(Path(place), out, minutes, seed)
        on_progress("recording flights for the browser")
        record_flights(plan)
        parts: list[Workload] = []
        samples = Samples()
        try:
            parts.append(server := BrowserServer(plan))
            parts += [LongTraining(plan), KilledTrainings(plan), StarvedTraining(plan), ReplayWorker(plan)]
            on_progress("starting")
            for part in parts:
                part.start()
            for part in parts:
                part.ready.wait(2 * START_S)
            parts.append(clients := Clients(plan, server.base))
            clients.start()
            plan.begin()
            sample(plan, parts, samples, on_progress)
        finally:
            plan.stop.set()
            for part in parts:
                part.end()
        result: dict[str, Any] = {
            "machine": begun,
            "minutes": round(plan.minute(), 2),
            "disk_limited_by": plan.facts.get("disk", ""),
            "counts": dict(sorted(plan.counts.items())),
            "faults": dict(plan.faults),
            "events": plan.events,
            "verdicts": samples.verdicts(minutes),
            "samples": samples.rows,
        }
    result["passed"] = not result["faults"] and all(row["verdict"] != "grows" for row in result["verdicts"])
    (out / "soak.json").write_text(json.dumps(result))
    draw(result, out / "soak.png")
    return result


def sample(plan: Plan, parts: list[Workload], samples: Samples, on_progress: Callable[[str], None]) -> None:
    """Sample all processes until the time is over, and report progress every minute."""
    pause, reported = min(MAX_PAUSE_S, plan.minutes * MINUTE / SAMPLES), time.monotonic()
    while not plan.stop.wait(pause) and plan.minute() < plan.minutes:
        for part in parts:
            for name, process in part.processes().items():
                samples.add(plan.minute(), name, process)
        samples.add_disk(plan.minute(), plan.place)
        if time.monotonic() - reported >= MINUTE:
            reported = time.monotonic()
            server = samples.last("browser server", "memory_mb")
            told = ", ".join(f"{plan.counts[name]:,} {name}" for name in ("requests", "saves", "kills"))
            on_progress(
                f"minute {plan.minute():.0f} of {plan.minutes:g}: server {server:.0f} MB; {told}; {plan.faults.total()} faults"
            )


def render(result: dict[str, Any]) -> Iterator[Any]:
    """Yield the figures as text and a table."""
    counts = ", ".join(f"{count:,} {name}" for name, count in result["counts"].items())
    yield f"{result['minutes']:.1f} minutes: {counts}"
    yield f"full disk by {result['disk_limited_by']}"
    shown = table("change after warm-up, with its 95 % interval", "process", "figure", "median", "per hour", "verdict")
    for row in result["verdicts"]:
        change = "-"
        if row["per_hour"] is not None:
            change = f"{row['per_hour']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})"
        shown.add_row(row["process"], f"{UNITS[row['figure']]}", f"{row['median']:,.1f}", change, row["verdict"])
    yield shown
    allowed = ", ".join(f"{limit:g} {UNITS[name]}" for name, limit in LIMITS.items())
    yield f"flat: surely below {allowed} per hour. grows: surely above 0, and more than that. unclear: run it for longer."
    for fault, count in result["faults"].items():
        yield f"fault, {count} times: {fault}"
    yield "passed" if result["passed"] else "FAILED"
