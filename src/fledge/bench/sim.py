"""`fledge bench sim`: env steps per second of the simulator, beside the same step in plain NumPy and torch.

First all three fly on from the same moment and must agree; only then are they timed, in turns, so that whatever else
the machine does meanwhile falls on all of them. The task is NavRL's: 350 columns, 80 moving obstacles, a decision each
physics step, full observation and NavRL's reward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table
from tensordict import TensorDict

from fledge.bench.machine import release_memory, resident_bytes
from fledge.core.errors import InputError
from fledge.core.machine import default_threads, machine_info
from fledge.tasks.registry import find_task

SIZES = (64, 256, 1024, 4096, 16384)
ACTION = (0.9, 0.5, 0.5)  # goal frame: 1.6 m/s straight towards the goal
WARM_UP_STEPS = 125  # 2 s: drones are at speed, and some have crashed and begun again
ROUNDS = 5  # turns of each contestant; the baselines return to the warmed-up moment before each

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
        threads: CPU threads of the simulator, and the most that torch may use.
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
    say(f"checking that {num_envs:,} drones fly the same in NumPy and torch")
    with _warm_env(num_envs, threads, seed) as (env, out):
        result["agreement"] = PLAIN.check_agreement(env, out, BASELINES)
        say(f"timing {num_envs:,} drones beside NumPy and torch")
        result["comparison"] = _compare(env, out, threads, seconds)
    speed = {name: row["env_steps_per_second"] for name, row in result["comparison"].items()}
    for name in BASELINES:
        result[f"ratio_vs_{name}"] = round(speed["fledge"] / speed[name], 2)
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


# ---- speed and memory ------------------------------------------------------------------------------------------------


def _compare(env: Any, out: TensorDict, threads: int, seconds: float) -> dict[str, Any]:
    """Time the env and the baselines in turns, all from the same moment."""
    start, action = PLAIN.snapshot_of(env), _action(env.num_envs)
    sims = {name: make(start) for name, (make, _) in BASELINES.items()}
    crowd = {key: env.bank.tensors[key].clone() for key in ("trail", "vel")}

    def stepper(name: str) -> Callable[[], Any]:
        native, sim = BASELINES[name][1], sims[name]
        given = native(action), native(crowd["trail"][-1]), native(crowd["vel"])
        return lambda: sim.step(*given)

    steps: dict[str, Callable[[], Any]] = {"fledge": lambda: env.step(action, out=out)}
    steps |= {name: stepper(name) for name in sims}
    before = torch.get_num_threads()
    try:
        used = {"fledge": env.launcher.num_threads, "numpy": 1}
        if "torch" in sims:
            used["torch"] = _faster_torch_threads(steps["torch"], threads)
            torch.set_num_threads(used["torch"])
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                if name in sims:
                    sims[name].load(start)
                times[name] += _time(step, seconds / ROUNDS)
    finally:
        torch.set_num_threads(before)
    return {name: {"threads": used.get(name, 1), **_figures(times[name], env.num_envs)} for name in steps}


def _faster_torch_threads(step: Callable[[], Any], threads: int) -> int:
    """One thread or all of them: whichever serves torch better, for many small tensors may not gain from more."""
    trials = {}
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        step()
        trials[count] = min(_time(step, 0.0) + _time(step, 0.0) + _time(step, 0.0))
    return min(trials, key=lambda count: trials[count])


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


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _agreement_table(result: Mapping[str, Any]) -> Table:
    agreement = result["agreement"]
    title = f"Same flight: {agreement['drones']:,} drones, {agreement['steps']} steps from the same moment"
    table = _table(title, "largest difference", *BASELINES, "tolerance", "allowed outside", "outside")
    for key in next(iter(agreement[name] for name in BASELINES)):
        rows = [agreement[name][key] for name in BASELINES]
        largest = [f"{row['max_difference']:.1e}" for row in rows]
        outside = f"{max(row['share_outside'] for row in rows):.4%}"
        table.add_row(key, *largest, f"{rows[0]['tolerance']:g}", f"{rows[0]['allowed_share']:.1%}", outside)
    return table


def _comparison_table(result: Mapping[str, Any]) -> Table:
    title = f"{result['settings']['num_envs']:,} drones"
    table = _table(title, "", "threads", "ms per step", "p10 to p90", "env steps/s", "Fledge is faster by")
    for name, row in result["comparison"].items():
        ratio = "" if name == "fledge" else f"{result[f'ratio_vs_{name}']:.1f}x"
        spread = f"{row['p10_ms']:.2f} to {row['p90_ms']:.2f}"
        speed = f"{row['env_steps_per_second']:,}"
        table.add_row(name, str(row["threads"]), f"{row['median_ms']:.2f}", spread, speed, ratio)
    return table


def _sizes_table(result: Mapping[str, Any]) -> Table:
    title = f"Fledge alone, {result['settings']['threads']} threads, {result['settings']['num_maps']} maps"
    columns = ("ms per step", "p10 to p90", "µs per drone", "env steps/s", "MiB drones", "MiB maps", "RSS +MiB")
    table = _table(title, "drones", *columns)
    for row in result["sizes"]:
        memory = [f"{row['memory_bytes'][key] / 2**20:.1f}" for key in ("drones", "maps", "rss_delta")]
        spread = f"{row['p10_ms']:.2f} to {row['p90_ms']:.2f}"
        speed = f"{row['env_steps_per_second']:,}"
        table.add_row(
            f"{row['num_envs']:,}", f"{row['median_ms']:.2f}", spread, f"{row['us_per_drone_step']:.2f}", speed, *memory
        )
    return table
