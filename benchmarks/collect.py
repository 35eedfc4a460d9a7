"""`python -m benchmarks collect`: decisions per second of a PPO loop with each collector, beside the synchronous one.

First results are compared, bit for bit, on a small task, through several updates of the policy:

    pipelined    with a loop without threads that flies batch k + 1 when batch k is handed out
    halves       with the synchronous collector over the same two envs
    compressed   with the synchronous collector's rollouts, all envs and some

Only then are they timed, an iteration each in turns, so that other load on the machine affects all of them. The task,
network and learner are the fast preset's. A pipelined iteration ends when the batch under way is complete, so that it does
not disturb the others: as in a run of its own, it takes the longer of simulating and learning.

More torch threads are not always faster: on a busy machine they wait for each other. The synchronous loop is tried with one
and with all, and every loop gets the faster number, so that no gain is an artefact of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.collect_loop import Loop
from benchmarks.collect_parity import check_results
from benchmarks.tables import machine_line, table
from fledge.core.errors import InputError
from fledge.core.machine import default_threads, keep_freed_memory, machine_info
from fledge.training.config import TrainConfig, make_config

Times = list[dict[str, float]]  # seconds of each iteration
LABELS = {
    "synchronous": "synchronous",
    "pipelined": "pipelined",
    "halves": "halves",
    "compressed": "compressed",
}


def run(
    rounds: int = 5,
    num_envs: int = 1024,
    rollout_steps: int = 64,
    threads: int | None = None,
    compression_level: int = 4,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return the parity of results and the speed of every collector; JSON-able.

    Args:
        rounds: Timed iterations of each collector, after one to warm up.
        num_envs: Drones; even.
        rollout_steps: Decisions per drone and iteration.
        threads: Cores to use.
        compression_level: Level of the compressed collector, 0 to 9.
        seed: Random seed of weights, maps and flights.
        on_progress: Called with a line before each part.

    Raises:
        FledgeError: if a collector's results differ from the reference; nothing is timed then.
    """
    if rounds < 1:
        raise InputError(f"rounds is {rounds}, but must be at least 1.")
    if num_envs < 2 or num_envs % 2:
        raise InputError(f"num_envs is {num_envs}, but must be even: halves take turns.")
    threads = threads or default_threads()
    say = on_progress or (lambda line: None)
    cfg = bench_config(num_envs, rollout_steps, seed)
    before = torch.get_num_threads()
    try:
        say("checking that all collectors fly what they must")
        torch.set_num_threads(1)
        parity = check_results(cfg, compression_level)
        keep_freed_memory()
        times, sizes, torch_threads = _time(cfg, threads, compression_level, rounds, say)
    finally:
        torch.set_num_threads(before)
    names = ("num_envs", "decimation", "num_maps", "static_obstacles", "moving_obstacles")
    settings = {name: getattr(cfg.env, name) for name in names} | {"rollout_steps": rollout_steps, "rounds": rounds}
    settings |= {
        "threads": threads,
        "torch_threads": torch_threads,
        "seed": seed,
        "compression_level": compression_level,
    }
    return {
        "machine": machine_info(),
        "settings": settings,
        "parity": parity,
        "collectors": {kind: _figures(rows, times["synchronous"], cfg) for kind, rows in times.items()},
        **sizes,
    }


def bench_config(num_envs: int, rollout_steps: int, seed: int) -> TrainConfig:
    """Return the config of the fast preset at a given size."""
    words = [f"env.num_envs={num_envs}", f"ppo.rollout_steps={rollout_steps}", f"seed={seed}"]
    return make_config("navigation", "fast", words)


def _time(
    cfg: TrainConfig, threads: int, level: int, rounds: int, say: Callable[[str], None]
) -> tuple[dict[str, Times], dict[str, Any], int]:
    """Return the seconds of every iteration of every collector, sizes in memory, and torch's number of threads."""
    loops: dict[str, Loop] = {}
    times: dict[str, Times] = {kind: [] for kind in LABELS}
    try:
        for kind in LABELS:
            say(f"warming up: {LABELS[kind]}")
            loops[kind] = Loop(kind, cfg, threads, level)
            loops[kind].iterate()
        say("choosing torch's number of threads")
        torch_threads = _quickest(loops["synchronous"], threads)
        for loop in loops.values():
            loop.use_threads(torch_threads)
        for number in range(rounds):
            say(f"timing, round {number + 1} of {rounds}")
            for kind, loop in loops.items():
                times[kind].append(loop.iterate())
        compression = _compression(loops["compressed"], times["compressed"])
        return times, {"compression": compression, "memory": _memory(loops["synchronous"])}, torch_threads
    finally:
        for loop in loops.values():
            loop.close()


def _quickest(loop: Loop, threads: int) -> int:
    """Return the number of torch threads, 1 or `threads`, with which a loop is faster."""
    seconds = {}
    for count in sorted({1, threads}):
        loop.use_threads(count)
        seconds[count] = min(loop.iterate()["total"] for _ in range(2))
    return min(seconds, key=lambda count: seconds[count])


def _compression(loop: Loop, rows: Times) -> dict[str, float]:
    """Return sizes of the last batch's LiDAR, and the seconds of compressing it, decoding it, and decoding an eighth of it."""
    batch = loop.collector.latest
    begun = time.perf_counter()
    batch.decode()
    whole = time.perf_counter()
    batch.decode(torch.arange(0, loop.cfg.env.num_envs, 8))
    part = time.perf_counter()
    return {
        "bytes_before": batch.raw_nbytes,
        "bytes_after": batch.nbytes,
        "ratio": round(batch.ratio, 2),
        "encode_s": round(statistics.median(row["collect"] - row["fly"] for row in rows), 4),
        "decode_s": round(whole - begun, 4),
        "decode_eighth_s": round(part - whole, 4),
    }


def _memory(loop: Loop) -> dict[str, int]:
    """Return the bytes of the rollouts that are in memory with return_same_td=True, and with False, which copies them."""
    rollout = loop.collector.latest
    sizes = [_storage_bytes([rollout]), _storage_bytes([rollout, rollout.clone()])]
    return dict(zip(("same_td_bytes", "copied_td_bytes"), sizes, strict=True))


def _storage_bytes(rollouts: list[Any]) -> int:
    storages = [tensor.untyped_storage() for rollout in rollouts for tensor in rollout.values(True, True)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _figures(rows: Times, beside: Times, cfg: TrainConfig) -> dict[str, float]:
    """Return speed and shares of one collector; `ratio` is to the synchronous one, round by round."""
    frames = cfg.env.num_envs * cfg.ppo.rollout_steps
    rates = sorted(frames / row["total"] for row in rows)
    ratios = sorted(other["total"] / row["total"] for row, other in zip(rows, beside, strict=True))
    middle = {name: statistics.median(row[name] for row in rows) for name in ("collect", "learn", "fly")}
    return {
        "decisions_per_second": round(statistics.median(rates)),
        "slowest": round(rates[0]),
        "fastest": round(rates[-1]),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(ratios[0], 3),
        "ratio_highest": round(ratios[-1], 3),
        "collect_s": round(middle["collect"], 4),
        "learn_s": round(middle["learn"], 4),
        "fly_s": round(middle["fly"], 4),
        "share_collect": round(middle["collect"] / (middle["collect"] + middle["learn"]), 3),
        "share_learn": round(middle["learn"] / (middle["collect"] + middle["learn"]), 3),
    }


def render(result: Mapping[str, Any]) -> list[Any]:
    """Return the figures as a table, and the figures of compression."""
    settings = result["settings"]
    size = f"{settings['num_envs']:,} drones x {settings['rollout_steps']} decisions"
    size += f", {settings['threads']} cores, {settings['torch_threads']} torch threads"
    view = table(
        f"PPO with each collector: {size}, {settings['rounds']} rounds",
        "collector", "decisions/s", "ratio", "its range", "waits, s", "learns, s",
    )  # fmt: skip
    for kind, row in result["collectors"].items():
        view.add_row(
            LABELS[kind],
            f"{row['decisions_per_second']:,}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_lowest']:.2f}-{row['ratio_highest']:.2f}",
            f"{row['collect_s']:.2f}",
            f"{row['learn_s']:.2f}",
        )
    packed, memory = result["compression"], result["memory"]
    parity = ", ".join(f"{kind} {row['values']:,} values" for kind, row in result["parity"].items())
    return [
        view,
        f"compressed LiDAR: {packed['bytes_before'] / 1e6:,.1f} MB in {packed['bytes_after'] / 1e6:,.1f} MB "
        f"({packed['ratio']:.1f} times smaller); {packed['encode_s']:.3f} s to compress, "
        f"{packed['decode_s']:.3f} s to decode, {packed['decode_eighth_s']:.3f} s for every eighth env",
        f"rollouts in memory: {memory['same_td_bytes'] / 1e6:,.1f} MB, "
        f"with return_same_td=False {memory['copied_td_bytes'] / 1e6:,.1f} MB",
        f"same results, bit for bit: {parity}",
        machine_line(result["machine"], "end"),
    ]
