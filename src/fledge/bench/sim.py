"""`fledge bench sim`: env steps per second of the simulator, beside the same step in plain NumPy and torch.

First all fly on from the same moment and must agree; only then are they timed, in turns, so that whatever else the machine
does meanwhile falls on all of them. One thread is compared with one thread, and all with all: NumPy, which has no threads
of its own, then flies its drones in shares, one a thread; torch is tried with its own threads and in shares. Beside each
stands how many cores it really kept busy. The task is NavRL's: 350 columns, 80 moving obstacles, a decision each physics
step, full observation and NavRL's reward. Left out of the baselines, in their favour: the crowd's own motion, and the start
of new episodes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table
from tensordict import TensorDict

from fledge.bench.baselines.shares import Shares
from fledge.bench.machine import release_memory, resident_bytes
from fledge.bench.tables import shown, table, three_digits
from fledge.bench.turns import ratio
from fledge.core.errors import FledgeError, InputError
from fledge.core.machine import default_threads, machine_info
from fledge.tasks.registry import find_task

SIZES = (64, 256, 1024, 4096, 16384)
ACTION = (0.9, 0.5, 0.5)  # goal frame: 1.6 m/s straight towards the goal
WARM_UP_STEPS = 125  # 2 s: drones are at speed, and some have crashed and begun again
TURNS = 10  # of each contestant; the baselines return to the warmed-up moment before each

TASK: Any = find_task("navigation")
PLAIN = TASK.references
BASELINES: dict[str, Any] = {
    "numpy": (PLAIN.NumpySim, torch.Tensor.numpy),
    "torch": (PLAIN.TorchSim, lambda tensor: tensor),
}


def run(
    num_envs: int = 1024,
    threads: int | None = None,
    seconds: float = 2.0,
    sizes: Sequence[int] = SIZES,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return agreement, speed beside the baselines, and speed and memory over numbers of drones; JSON-able.

    Args:
        num_envs: Drones of the comparison with the baselines.
        threads: CPU threads of the second comparison; the first is of one thread.
        seconds: Time given to each contestant and to each size.
        sizes: Numbers of drones for the simulator alone.
        seed: Decides maps, starts and crowds.
        on_progress: Called with a line before each part.

    Raises:
        FledgeError: if a baseline and the simulator disagree; nothing is timed then.
    """
    if not seconds > 0:
        raise InputError(f"seconds is {seconds}, but must be greater than 0.")
    threads = threads or default_threads()
    say = on_progress or (lambda line: None)
    result: dict[str, Any] = {"machine": machine_info(), "settings": _settings(num_envs, threads, seconds, seed)}
    with ExitStack() as stack:
        groups = []
        for name, count in {"one": 1, "all": threads}.items():
            say(f"warming up {num_envs:,} drones on {count} threads")
            env, out = stack.enter_context(_warm_env(num_envs, count, seed))
            groups.append(Group(name, count, env, out))
        say(f"checking that {num_envs:,} drones fly the same in NumPy and torch")
        _check_threads(groups)
        result["agreement"] = {group.name: group.check() for group in groups}
        say(f"timing {num_envs:,} drones beside NumPy and torch")
        result["comparison"] = _compare(groups, seconds)
    result["sizes"] = []
    for size in sizes:
        say(f"timing {size:,} drones")
        result["sizes"].append(_measure_size(size, threads, seconds, seed))
    return result


def _settings(num_envs: int, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    cfg = PLAIN.bench_config(num_envs)
    names = ("num_envs", "static_obstacles", "moving_obstacles", "num_maps", "decimation")
    chosen = {"threads": threads, "seconds": seconds, "seed": seed, "action": list(ACTION), "warm_up": WARM_UP_STEPS}
    return {**{name: getattr(cfg, name) for name in names}, "beams": 144, "reward": "navrl", **chosen}


@contextmanager
def _warm_env(num_envs: int, threads: int, seed: int) -> Iterator[tuple[Any, TensorDict]]:
    """An env whose drones are at speed in the forest, and its buffers."""
    env = TASK.make_env(PLAIN.bench_config(num_envs), seed=seed, num_threads=threads)
    try:
        out = env.make_buffers()
        env.reset(out=out)
        action = _action(num_envs)
        for _ in range(WARM_UP_STEPS):
            env.step(action, out=out)
        yield env, out
    finally:
        env.close()


def _action(num_envs: int) -> torch.Tensor:
    return torch.tensor(ACTION).repeat(num_envs, 1)


# ---- the comparison --------------------------------------------------------------------------------------------------


class Group:
    """Contestants with the same number of threads, from the same moment of a flight.

    Args:
        name: "one" or "all".
        threads: Of every contestant.
        env: The simulator, warmed up with as many threads.
        out: Its buffers.
    """

    def __init__(self, name: str, threads: int, env: Any, out: TensorDict) -> None:
        self.name, self.threads, self.env, self.out = name, threads, env, out
        self.baselines = BASELINES
        if name == "all":
            shares = {k: (functools.partial(Shares, make, threads), native) for k, (make, native) in BASELINES.items()}
            self.baselines = {"numpy": shares["numpy"], "torch": BASELINES["torch"], "torch in shares": shares["torch"]}

    def check(self) -> dict[str, Any]:
        """How far the baselines differ from the simulator; raises where it is too far."""
        return PLAIN.check_agreement(self.env, self.out, self.baselines)

    def contestants(self) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
        """By name: how to go back to this moment, and a step."""
        start, action = PLAIN.snapshot_of(self.env), _action(self.env.num_envs)
        crowd = [self.env.bank.tensors["trail"][-1].clone(), self.env.bank.tensors["vel"].clone()]
        found: dict[str, Any] = {"fledge": (lambda: None, lambda: self.env.step(action, out=self.out))}
        for name, (make, native) in self.baselines.items():
            sim, given = make(start), [native(tensor) for tensor in (action, *crowd)]
            found[name] = (functools.partial(sim.load, start), functools.partial(sim.step, *given))
        return found


def _check_threads(groups: Sequence[Group]) -> None:
    """The simulator must fly the same, whatever its number of threads."""
    first, *others = (group.out for group in groups)
    for other in others:
        if not bool((first == other).all()):
            raise FledgeError(
                "The simulator flies differently on one thread and on all. Nothing was timed: it is wrong."
            )


def _compare(groups: Sequence[Group], seconds: float) -> dict[str, Any]:
    """Time all contestants of all groups in turns."""
    entries = {(group.name, name): found for group in groups for name, found in group.contestants().items()}
    threads = {group.name: group.threads for group in groups}
    drones = groups[0].env.num_envs
    times: dict[Any, list[list[float]]] = {entry: [] for entry in entries}
    cpu: dict[Any, float] = dict.fromkeys(entries, 0.0)
    before = torch.get_num_threads()
    try:
        for _ in range(TURNS):
            for entry, (go_back, step) in entries.items():
                torch.set_num_threads(threads[entry[0]])
                go_back()
                begun = time.process_time()
                times[entry].append(_time(step, seconds / TURNS))
                cpu[entry] += time.process_time() - begun
    finally:
        torch.set_num_threads(before)
    result: dict[str, Any] = {group.name: {} for group in groups}
    for (group, name), turns in times.items():
        every = [second for turn in turns for second in turn]
        row = {"threads": threads[group], "cores_used": round(cpu[group, name] / sum(every), 2)}
        row["cpu_ms"] = round(1e3 * cpu[group, name] / len(every), 4)
        row |= _figures(every, drones)
        medians = {who: [float(np.median(turn)) for turn in times[group, who]] for who in ("fledge", name)}
        result[group][name] = row | {"fledge_faster_by": ratio(medians[name], medians["fledge"])}
    return result


# ---- speed and memory ------------------------------------------------------------------------------------------------


def _time(step: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call, for about this long; at least one call."""
    times: list[float] = []
    begun = now = time.perf_counter()
    while not times or now - begun < seconds:
        step()
        later = time.perf_counter()
        times.append(later - now)
        now = later
    return times


def _figures(times: Sequence[float], num_envs: int) -> dict[str, Any]:
    low, median, high = (float(np.percentile(times, q)) for q in (10, 50, 90))
    return {
        "median_ms": round(1e3 * median, 4),
        "p10_ms": round(1e3 * low, 4),
        "p90_ms": round(1e3 * high, 4),
        "us_per_drone_step": round(1e6 * median / num_envs, 4),
        "env_steps_per_second": round(num_envs / median),
        "repeats": len(times),
    }


def _measure_size(size: int, threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """Speed and memory of the simulator alone with this many drones."""
    release_memory()
    before = resident_bytes()
    with _warm_env(size, threads, seed) as (env, out):
        action = _action(size)
        figures = _figures(_time(lambda: env.step(action, out=out), seconds), size)
        maps = tensor_bytes(vars(env.bank))
        drones = tensor_bytes({k: v for k, v in vars(env).items() if k != "bank"}) + tensor_bytes(out)
        memory = {"rss_delta": resident_bytes() - before, "drones": drones, "maps": maps}
    return {
        "num_envs": size,
        **figures,
        "memory_bytes": {**memory, "per_drone": round((drones + maps) / size)},
    }


def tensor_bytes(holder: Any) -> int:
    """Bytes of all tensors in a tensor, TensorDict, or mapping of them."""
    if isinstance(holder, torch.Tensor):
        return holder.nbytes
    if isinstance(holder, (Mapping, TensorDict)):
        return sum(tensor_bytes(value) for value in holder.values())
    return 0


# ---- printing --------------------------------------------------------------------------------------------------------


def render(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return the figures of `run` as rich renderables: machine, agreement, comparison, sizes."""
    machine, settings = result["machine"], result["settings"]
    title = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']} at the start · "
        f"Python {machine['python']}, torch {machine['torch']}, Warp {machine['warp']}, NumPy {machine['numpy']}"
    )
    task = (
        f"{settings['static_obstacles']} columns, {settings['moving_obstacles']} moving obstacles, "
        f"{settings['beams']} beams, a decision each {settings['decimation']} physics step, NavRL's reward"
    )
    return [title, task, _agreement_table(result), _comparison_table(result), _sizes_table(result)]


def _agreement_table(result: Mapping[str, Any]) -> Table:
    agreement = result["agreement"]
    one = agreement["one"]
    title = f"Same flight: {one['drones']:,} drones, {one['steps']} steps from the same moment"
    view = table(title, "largest difference", *BASELINES, "tolerance", "allowed", "outside")
    for key in one["numpy"]:
        rows = {name: [found[k][key] for found in agreement.values() for k in found if k.startswith(name)]
                for name in BASELINES}  # fmt: skip
        largest = [f"{max(row['max_difference'] for row in rows[name]):.1e}" for name in BASELINES]
        outside = max(row["share_outside"] for found in rows.values() for row in found)
        limits = one["numpy"][key]
        view.add_row(key, *largest, f"{limits['tolerance']:g}", f"{limits['allowed_share']:.1%}", f"{outside:.3%}")
    return view


def _comparison_table(result: Mapping[str, Any]) -> Table:
    view = table(
        f"{result['settings']['num_envs']:,} drones, in turns (quartiles)",
        "",
        "threads",
        "cores",
        "CPU ms",
        "ms a step",
        "steps/s",
        "Fledge faster by",
    )
    for group in result["comparison"].values():
        for name, row in group.items():
            faster = "" if name == "fledge" else shown(row["fledge_faster_by"])
            figures = [f"{row['cores_used']:.2f}", *(three_digits(row[key]) for key in ("cpu_ms", "median_ms"))]
            figures.append(f"{row['env_steps_per_second']:,}")
            view.add_row(name, str(row["threads"]), *figures, faster)
        view.add_section()
    return view


def _sizes_table(result: Mapping[str, Any]) -> Table:
    title = (
        f"Fledge alone, {result['settings']['threads']} threads, {result['settings']['num_maps']} maps; memory in MiB"
    )
    columns = ("ms a step", "p10-p90", "µs/drone", "steps/s", "of drones", "of maps", "RSS +")
    view = table(title, "drones", *columns)
    for row in result["sizes"]:
        memory = [f"{row['memory_bytes'][key] / 2**20:.1f}" for key in ("drones", "maps", "rss_delta")]
        times = [three_digits(row[key]) for key in ("median_ms", "p10_ms", "p90_ms", "us_per_drone_step")]
        speed = f"{row['env_steps_per_second']:,}"
        view.add_row(f"{row['num_envs']:,}", times[0], f"{times[1]}-{times[2]}", times[3], speed, *memory)
    return view
