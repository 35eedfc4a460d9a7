"""Measure trainings on this machine's GPU with and without CUDA graphs, and print the figures as JSON: `make test-gpu`.

python -m tests.gpu.speed [NAME]...
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import warp as wp

from fledge.monitor import PerformanceMonitor
from tests.gpu.runs import TASKS, graphs, make_run

SETTINGS = ["env.num_envs=4096", "total_frames=1000000000"]
ITERATIONS, WARM_UP = 8, 3


def measure(name: str, captured: bool) -> dict[str, Any]:
    """Return the median milliseconds per iteration of collecting and learning, on the GPU and on the host."""
    with graphs(captured):
        run = make_run(name, "cuda", SETTINGS)
    monitor, host = PerformanceMonitor(cuda=True), list[float]()
    for k in range(WARM_UP + ITERATIONS):
        if k == WARM_UP:
            torch.cuda.synchronize()
            monitor.reset()
            host.clear()
        begun = time.perf_counter()
        with monitor.timer("collect"):
            rollout = run.collect()
        host.append(time.perf_counter() - begun)  # until everything is queued
        with monitor.timer("learn"):
            run.learn(rollout)
    torch.cuda.synchronize()
    stats = monitor.get_stats()
    frames = run.frames_per_iteration
    run.close()
    collect_s, learn_s = stats["collect"]["p50"], stats["learn"]["p50"]
    return {
        "collect_ms": 1e3 * collect_s,
        "learn_ms": 1e3 * learn_s,
        "queued_ms": 1e3 * statistics.median(host),
        "frames_per_second": frames / (collect_s + learn_s),
        "memory_mb": torch.cuda.max_memory_allocated() / 2**20,
    }


def main() -> None:
    if not torch.cuda.is_available():
        print("torch finds no NVIDIA GPU: install its CUDA build and a driver.", file=sys.stderr)
        raise SystemExit(1)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "warp": wp.config.version,
    }
    found = {name: {"graphs": measure(name, True), "plain": measure(name, False)} for name in sys.argv[1:] or TASKS}
    print(json.dumps({"machine": machine, "settings": SETTINGS, "runs": found}, indent=1))


if __name__ == "__main__":
    main()
