"""Parts of a row of a run's metrics: means over episodes, memory, and the checkpoint saver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fledge.core.machine import resident_bytes


def mean_episodes(iterations: list[dict[str, float]]) -> dict[str, float | None]:
    """Return the number of episodes that ended in these iterations, and the mean of each metric over these episodes.

    If no episode ended, the means are None.
    """
    episodes = sum(row["episodes"] for row in iterations)
    names = [name for name in iterations[0] if name != "episodes"]
    sums = {name: sum(row[name] * row["episodes"] for row in iterations) for name in names}
    return {"episodes": episodes, **{name: sums[name] / episodes if episodes else None for name in names}}


def memory_metrics(device: str | torch.device) -> dict[str, float]:
    """Return the memory that this process uses, and the memory that it allocated on its GPU, in megabytes."""
    held = resident_bytes()
    found = {} if held is None else {"memory_mb": held / 1e6}
    if torch.device(device).type == "cuda":
        found["gpu_memory_mb"] = torch.cuda.memory_allocated(device) / 1e6
    return found


def checkpoint_metrics(stats: Mapping[str, Any]) -> dict[str, float]:
    """Return the checkpoint saver's statistics as metrics, without those that have no value yet."""
    names = [
        "saves",
        "failures",
        "queue_size",
        "bytes_out",
        "compression_ratio",
        "stall_p99_ms",
        "fence_p99_ms",
        "age_s",
    ]
    return {f"checkpoint/{name}": stats[name] for name in names if stats[name] is not None}
