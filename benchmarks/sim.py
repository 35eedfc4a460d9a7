"""`python -m benchmarks sim`: physics steps per second of a task's simulator, beside the same in plain NumPy and torch.

All implementations continue from the same state and must agree before anything is timed. They are then timed in turns, so
that other load on the machine affects all of them. One thread is compared with one thread, and all threads with all
threads: NumPy, which has no threads of its own, splits its envs into one share per thread; torch is tried with its own
threads and in shares. The number of cores that each kept busy is reported beside its time. What is simulated, and what the
baselines leave out in their favour, is documented in `baselines/TASK/benchmark.py`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.baselines.aircombat.benchmark import DuelBenchmark
from benchmarks.baselines.navigation.benchmark import NavigationBenchmark
from benchmarks.baselines.shares import Shares
from benchmarks.machine import release_memory, resident_bytes
from benchmarks.sim_benchmark import Flight, SimBenchmark
from benchmarks.sim_tables import render
from benchmarks.turns import ratio
from fledge.core.errors import ConfigError, FledgeError, InputError
from fledge.core.machine import default_threads, machine_info

__all__ = ["render", "run"]

BENCHMARKS: dict[str, SimBenchmark] = {"navigation": NavigationBenchmark(), "aircombat": DuelBenchmark()}
TURNS = 10  # per candidate; each turn starts from the warmed-up state


def run(
    task: str = "navigation",
    num_envs: int | None = None,
    threads: int | None = None,
    seconds: float = 2.0,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return parity, speed beside the baselines, and speed and memory by number of envs; JSON-able.

    Args:
        task: Name of the task.
        num_envs: Drones or duels in the comparison with the baselines; None: the benchmark's default.
        threads: CPU threads of the second comparison; the first uses one thread.
        seconds: Time to spend on each candidate and on each size.
        sizes: Numbers of envs at which to time the simulator alone; None: the benchmark's default.
        seed: Random seed.
        on_progress: Called with a line before each part.

    Raises:
        FledgeError: if a baseline and the simulator disagree; nothing is timed then.
    """
    if not seconds > 0:
        raise InputError(f"seconds is {seconds}, but must be greater than 0.")
    benchmark = find_benchmark(task)
    count = benchmark.count if num_envs is None else num_envs
    threads = threads or default_threads()
    say = on_progress or (lambda line: None)
    result: dict[str, Any] = {
        "machine": machine_info(),
        "settings": _settings(benchmark, count, threads, seconds, seed),
    }
    with ExitStack() as stack:
        groups = []
        for name, number in {"one": 1, "all": threads}.items():
            say(f"warming up {count:,} {benchmark.many} on {number} threads")
            flight = stack.enter_context(_begin(benchmark, count, number, seed))
            groups.append(Group(name, number, benchmark, flight))
        say(f"checking that {count:,} {benchmark.many} fly the same in NumPy and torch")
        _check_threads(groups)
        result["parity"] = {group.name: group.flight.check(group.baselines) for group in groups}
        result["figures"] = groups[0].flight.figures()
        say(f"timing {count:,} {benchmark.many} beside NumPy and torch")
        result["comparison"] = _compare(groups, benchmark, count, seconds)
    result["sizes"] = []
    for size in benchmark.sizes if sizes is None else sizes:
        say(f"timing {size:,} {benchmark.many}")
        result["sizes"].append(_measure_size(benchmark, size, threads, seconds, seed))
    return result


def find_benchmark(task: str) -> SimBenchmark:
    """Return the simulation benchmark of a task.

    Raises:
        ConfigError: if the task has none.
    """
    if task not in BENCHMARKS:
        raise ConfigError(f"Task {task!r} has no simulation benchmark; choose one of {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[task]


def _settings(benchmark: SimBenchmark, count: int, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    chosen = benchmark.settings(count)
    names = {"one": benchmark.one, "many": benchmark.many, "call": benchmark.call}
    measured = {"threads": threads, "seconds": seconds, "seed": seed}
    return {**chosen, **measured, **names, "described": benchmark.describe(chosen)}


@contextmanager
def _begin(benchmark: SimBenchmark, count: int, threads: int, seed: int) -> Iterator[Flight]:
    """Yield a warmed-up flight, and close it."""
    flight = benchmark.begin(count, threads, seed)
    try:
        yield flight
    finally:
        flight.close()


# ---- the comparison --------------------------------------------------------------------------------------------------


class Group:
    """Candidates with the same number of threads, which continue from the same state.

    Args:
        name: "one" or "all".
        threads: Threads of every candidate.
        benchmark: Provides the baselines.
        flight: The simulator, warmed up with this many threads.
    """

    def __init__(self, name: str, threads: int, benchmark: SimBenchmark, flight: Flight) -> None:
        self.name, self.threads, self.flight = name, threads, flight
        self.baselines = plain = dict(benchmark.baselines)
        if name == "all":
            shares = {k: (functools.partial(Shares, make, threads), native) for k, (make, native) in plain.items()}
            self.baselines = {"numpy": shares["numpy"], "torch": plain["torch"], "torch in shares": shares["torch"]}

    def candidates(self) -> dict[str, Candidate]:
        """Return the simulator and every baseline, by name."""
        flight, start = self.flight, self.flight.snapshot()
        found = {"fledge": Candidate(flight.go_back, flight.step, flight.calls)}
        for name, (make, native) in self.baselines.items():
            sim = make(start)
            step = functools.partial(_plain_step, sim, flight.arguments(native))
            found[name] = Candidate(functools.partial(sim.load, start), step, flight.calls)
        return found


def _plain_step(sim: Any, arguments: Sequence[tuple[Any, ...]], call: int) -> None:
    sim.step(*arguments[call % len(arguments)])


class Candidate:
    """An implementation to time.

    Args:
        go_back: Restores the state in which the flight began.
        step: Makes the call of this number.
        calls: Calls after which to go back, outside the timed section; None: never.
    """

    def __init__(self, go_back: Callable[[], Any], step: Callable[[int], Any], calls: int | None) -> None:
        self.go_back, self.step, self.calls = go_back, step, calls

    def time(self, seconds: float) -> tuple[list[float], float]:
        """Call `step` for about this long, at least once; return the seconds of each call, and the CPU seconds of all."""
        times: list[float] = []
        cpu = 0.0
        while not times or sum(times) < seconds:
            self.go_back()
            begun = time.process_time()
            times += _time(self.step, seconds - sum(times), self.calls)
            cpu += time.process_time() - begun
        return times, cpu


def _time(step: Callable[[int], Any], seconds: float, calls: int | None) -> list[float]:
    """Call `step` for about this long, at least once and at most `calls` times; return the seconds of each call."""
    times: list[float] = []
    begun = now = time.perf_counter()
    while not times or (now - begun < seconds and len(times) != calls):
        step(len(times))
        later = time.perf_counter()
        times.append(later - now)
        now = later
    return times


def _check_threads(groups: Sequence[Group]) -> None:
    """Raise FledgeError if the simulator's result depends on its number of threads."""
    first, *others = (group.flight.out for group in groups)
    for other in others:
        if not bool((first == other).all()):
            raise FledgeError("The simulator's results differ between one thread and all threads. Nothing was timed.")


def _compare(groups: Sequence[Group], benchmark: SimBenchmark, count: int, seconds: float) -> dict[str, Any]:
    """Time all candidates of all groups in turns."""
    entries = {(group.name, name): found for group in groups for name, found in group.candidates().items()}
    threads = {group.name: group.threads for group in groups}
    times: dict[Any, list[list[float]]] = {entry: [] for entry in entries}
    cpu: dict[Any, float] = dict.fromkeys(entries, 0.0)
    before = torch.get_num_threads()
    try:
        for _ in range(TURNS):
            for entry, candidate in entries.items():
                torch.set_num_threads(threads[entry[0]])
                turn, used = candidate.time(seconds / TURNS)
                times[entry].append(turn)
                cpu[entry] += used
    finally:
        torch.set_num_threads(before)
    result: dict[str, Any] = {group.name: {} for group in groups}
    for (group, name), turns in times.items():
        every = [second for turn in turns for second in turn]
        row = {"threads": threads[group], "cores_used": round(cpu[group, name] / sum(every), 2)}
        row["cpu_ms"] = round(1e3 * cpu[group, name] / len(every), 4)
        row |= _figures(every, benchmark.one, count, groups[0].flight.physics_steps)
        medians = {key: [float(np.median(turn)) for turn in times[group, key]] for key in ("fledge", name)}
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


def _measure_size(benchmark: SimBenchmark, size: int, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """Return speed and memory of the simulator alone with `size` envs."""
    release_memory()
    before = resident_bytes()
    with _begin(benchmark, size, threads, seed) as flight:
        times, cpu = Candidate(flight.go_back, flight.step, flight.calls).time(seconds)
        figures = _figures(times, benchmark.one, size, flight.physics_steps) | flight.figures()
        figures["cores_used"] = round(cpu / sum(times), 2)
        parts = flight.memory()
        memory = {"rss_delta": resident_bytes() - before, **parts}
    memory[f"per_{benchmark.one}"] = round(sum(parts.values()) / size)
    return {"num_envs": size, **figures, "memory_bytes": memory}
