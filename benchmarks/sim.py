"""`fledge bench sim`: physics steps per second of a world's simulator, beside the same in plain NumPy and torch.

First all fly on from the same moment and must agree; only then are they timed, in turns, so that whatever else the machine
does meanwhile falls on all of them. One thread is compared with one thread, and all with all: NumPy, which has no threads
of its own, then flies its envs in shares, one a thread; torch is tried with its own threads and in shares. Beside each
stands how many cores it really kept busy. What is flown, and what is left out of the baselines in their favour, says the
world's own part: `references/contest.py` in its folder.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.baselines import find_baselines
from benchmarks.baselines.shares import Shares
from benchmarks.machine import release_memory, resident_bytes
from benchmarks.sim_benchmark import Flight, SimBenchmark
from benchmarks.sim_tables import render
from benchmarks.turns import ratio
from fledge.core.errors import FledgeError, InputError
from fledge.core.machine import default_threads, machine_info
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task

__all__ = ["render", "run"]

TURNS = 10  # of each contestant; all return to the warmed-up moment before each


def run(
    task: str | Task = "navigation",
    num_envs: int | None = None,
    threads: int | None = None,
    seconds: float = 2.0,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return agreement, speed beside the baselines, and speed and memory over numbers of envs; JSON-able.

    Args:
        task: The world, or its name.
        num_envs: Drones or duels of the comparison with the baselines; None: what the world suggests.
        threads: CPU threads of the second comparison; the first is of one thread.
        seconds: Time given to each contestant and to each size.
        sizes: Numbers of them for the simulator alone; None: what the world suggests.
        seed: Decides all that is random.
        on_progress: Called with a line before each part.

    Raises:
        FledgeError: if a baseline and the simulator disagree; nothing is timed then.
    """
    if not seconds > 0:
        raise InputError(f"seconds is {seconds}, but must be greater than 0.")
    contest = contest_of(task)
    count = contest.count if num_envs is None else num_envs
    threads = threads or default_threads()
    say = on_progress or (lambda line: None)
    result: dict[str, Any] = {"machine": machine_info(), "settings": _settings(contest, count, threads, seconds, seed)}
    with ExitStack() as stack:
        groups = []
        for name, number in {"one": 1, "all": threads}.items():
            say(f"warming up {count:,} {contest.many} on {number} threads")
            flight = stack.enter_context(_begin(contest, count, number, seed))
            groups.append(Group(name, number, contest, flight))
        say(f"checking that {count:,} {contest.many} fly the same in NumPy and torch")
        _check_threads(groups)
        result["agreement"] = {group.name: group.flight.check(group.baselines) for group in groups}
        result["figures"] = groups[0].flight.figures()
        say(f"timing {count:,} {contest.many} beside NumPy and torch")
        result["comparison"] = _compare(groups, contest, count, seconds)
    result["sizes"] = []
    for size in contest.sizes if sizes is None else sizes:
        say(f"timing {size:,} {contest.many}")
        result["sizes"].append(_measure_size(contest, size, threads, seconds, seed))
    return result


def contest_of(task: str | Task) -> SimBenchmark:
    """A world's part in this; ConfigError if it has none."""
    task = find_task(task) if isinstance(task, str) else task
    contest: SimBenchmark = find_baselines(task.name).CONTEST
    return contest


def _settings(contest: SimBenchmark, count: int, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    chosen = contest.settings(count)
    words = {"one": contest.one, "many": contest.many, "call": contest.call, "described": contest.describe(chosen)}
    return {**chosen, "threads": threads, "seconds": seconds, "seed": seed, **words}


@contextmanager
def _begin(contest: SimBenchmark, count: int, threads: int, seed: int) -> Iterator[Flight]:
    """A world in mid-flight."""
    flight = contest.begin(count, threads, seed)
    try:
        yield flight
    finally:
        flight.close()


# ---- the comparison --------------------------------------------------------------------------------------------------


class Group:
    """Contestants with the same number of threads, from the same moment of a flight.

    Args:
        name: "one" or "all".
        threads: Of every contestant.
        contest: Has the baselines.
        flight: The simulator, warmed up with as many threads.
    """

    def __init__(self, name: str, threads: int, contest: SimBenchmark, flight: Flight) -> None:
        self.name, self.threads, self.flight = name, threads, flight
        self.baselines = plain = dict(contest.baselines)
        if name == "all":
            shares = {k: (functools.partial(Shares, make, threads), native) for k, (make, native) in plain.items()}
            self.baselines = {"numpy": shares["numpy"], "torch": plain["torch"], "torch in shares": shares["torch"]}

    def contestants(self) -> dict[str, Contestant]:
        """By name."""
        flight, start = self.flight, self.flight.snapshot()
        found = {"fledge": Contestant(flight.go_back, flight.step, flight.calls)}
        for name, (make, native) in self.baselines.items():
            sim = make(start)
            step = functools.partial(_plain_step, sim, flight.arguments(native))
            found[name] = Contestant(functools.partial(sim.load, start), step, flight.calls)
        return found


def _plain_step(sim: Any, arguments: Sequence[tuple[Any, ...]], call: int) -> None:
    sim.step(*arguments[call % len(arguments)])


class Contestant:
    """Something that can be timed.

    Args:
        go_back: Returns to the moment at which the flight began.
        step: Flies the call of this number.
        calls: Calls after which it goes back, outside the time that counts; None: never.
    """

    def __init__(self, go_back: Callable[[], Any], step: Callable[[int], Any], calls: int | None) -> None:
        self.go_back, self.step, self.calls = go_back, step, calls

    def time(self, seconds: float) -> tuple[list[float], float]:
        """Seconds of each call, for about this long and at least one call, and of the CPU in all of them."""
        times: list[float] = []
        cpu = 0.0
        while not times or sum(times) < seconds:
            self.go_back()
            begun = time.process_time()
            times += _time(self.step, seconds - sum(times), self.calls)
            cpu += time.process_time() - begun
        return times, cpu


def _time(step: Callable[[int], Any], seconds: float, calls: int | None) -> list[float]:
    """Seconds of each call, for about this long; at least one call, at most so many."""
    times: list[float] = []
    begun = now = time.perf_counter()
    while not times or (now - begun < seconds and len(times) != calls):
        step(len(times))
        later = time.perf_counter()
        times.append(later - now)
        now = later
    return times


def _check_threads(groups: Sequence[Group]) -> None:
    """The simulator must fly the same, whatever its number of threads."""
    first, *others = (group.flight.out for group in groups)
    for other in others:
        if not bool((first == other).all()):
            raise FledgeError(
                "The simulator flies differently on one thread and on all. Nothing was timed: it is wrong."
            )


def _compare(groups: Sequence[Group], contest: SimBenchmark, count: int, seconds: float) -> dict[str, Any]:
    """Time all contestants of all groups in turns."""
    entries = {(group.name, name): found for group in groups for name, found in group.contestants().items()}
    threads = {group.name: group.threads for group in groups}
    times: dict[Any, list[list[float]]] = {entry: [] for entry in entries}
    cpu: dict[Any, float] = dict.fromkeys(entries, 0.0)
    before = torch.get_num_threads()
    try:
        for _ in range(TURNS):
            for entry, contestant in entries.items():
                torch.set_num_threads(threads[entry[0]])
                turn, used = contestant.time(seconds / TURNS)
                times[entry].append(turn)
                cpu[entry] += used
    finally:
        torch.set_num_threads(before)
    result: dict[str, Any] = {group.name: {} for group in groups}
    for (group, name), turns in times.items():
        every = [second for turn in turns for second in turn]
        row = {"threads": threads[group], "cores_used": round(cpu[group, name] / sum(every), 2)}
        row["cpu_ms"] = round(1e3 * cpu[group, name] / len(every), 4)
        row |= _figures(every, contest.one, count, groups[0].flight.physics_steps)
        medians = {who: [float(np.median(turn)) for turn in times[group, who]] for who in ("fledge", name)}
        result[group][name] = row | {"fledge_faster_by": ratio(medians[name], medians["fledge"])}
    return result


# ---- speed and memory ------------------------------------------------------------------------------------------------


def _figures(times: Sequence[float], one: str, count: int, physics_steps: int) -> dict[str, Any]:
    low, median, high = (float(np.percentile(times, q)) for q in (10, 50, 90))
    return {
        "median_ms": round(1e3 * median, 4),
        "p10_ms": round(1e3 * low, 4),
        "p90_ms": round(1e3 * high, 4),
        f"us_per_{one}_step": round(1e6 * median / (count * physics_steps), 4),
        "env_steps_per_second": round(count * physics_steps / median),
        "repeats": len(times),
    }


def _measure_size(contest: SimBenchmark, size: int, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """Speed and memory of the simulator alone with this many."""
    release_memory()
    before = resident_bytes()
    with _begin(contest, size, threads, seed) as flight:
        times, cpu = Contestant(flight.go_back, flight.step, flight.calls).time(seconds)
        figures = _figures(times, contest.one, size, flight.physics_steps) | flight.figures()
        figures["cores_used"] = round(cpu / sum(times), 2)
        parts = flight.memory()
        memory = {"rss_delta": resident_bytes() - before, **parts}
    memory[f"per_{contest.one}"] = round(sum(parts.values()) / size)
    return {"num_envs": size, **figures, "memory_bytes": memory}
