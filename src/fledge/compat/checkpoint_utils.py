"""The module `checkpoint_utils` of NavRL's add-on: measure durations in a training loop, and the size of a model."""

from __future__ import annotations

import os
import time
from typing import Any

from torch import nn

from fledge import monitor
from fledge.core.errors import InputError

WINDOW = 100  # number of last durations that statistics cover by default


class PerformanceMonitor(monitor.PerformanceMonitor):
    """Measure durations by name, with `timer`, or `start_timer` and `end_timer`; statistics cover the last 100 by default."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._started: dict[str, float] = {}

    def start_timer(self, name: str) -> None:
        """Start measuring `name`."""
        self._started[name] = time.perf_counter()

    def end_timer(self, name: str) -> float | None:
        """Record the time since `start_timer(name)` and return it in seconds; None if it was not started."""
        started = self._started.pop(name, None)
        if started is None:
            return None
        elapsed = time.perf_counter() - started
        self.record(name, elapsed)
        return elapsed

    def get_stats(self, window: int | None = WINDOW) -> dict[str, dict[str, float]]:
        """Return mean, std, min, max, total (seconds) and count by name, over the last `window` durations."""
        stats = super().get_stats(window)
        return {name: {**stat, "total": stat["mean"] * stat["count"]} for name, stat in stats.items()}

    def get_summary(self, window: int | None = WINDOW) -> str:
        """Return the statistics as text: a title, and a line per name, `name: mean ms (± std ms) [min, max]`."""
        return super().get_summary(window) or monitor.TITLE


def format_checkpoint_name(
    base_path: str, iteration: int, metric_name: str | None = None, metric_value: float | None = None
) -> str:
    """Return a path such as `ckpts/checkpoint_iter_1000.pt` or `ckpts/checkpoint_iter_1000_reward_123.45.pt`."""
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0:
        raise InputError(f"iteration is {iteration!r}, but must be a whole number of at least 0.")
    metric = f"_{metric_name}_{metric_value:.2f}" if metric_name and metric_value is not None else ""
    return os.path.join(base_path, f"checkpoint_iter_{iteration}{metric}.pt")


def get_model_size(model: nn.Module) -> dict[str, float]:
    """Return total_params, trainable_params, size_mb (2**20 bytes) and the entries of `fledge.get_model_size`."""
    size = monitor.get_model_size(model)
    named = {"total_params": size["parameters"], "trainable_params": size["trainable"]}
    return {**named, "size_mb": size["bytes"] / 2**20, **size}


def print_model_info(model: nn.Module, name: str = "Model") -> None:
    """Print a model's parameters, trainable parameters and size."""
    size = get_model_size(model)
    print(f"\n=== {name} Info ===")
    print(f"Total parameters: {size['total_params']:,}")
    print(f"Trainable parameters: {size['trainable_params']:,}")
    print(f"Estimated size: {size['size_mb']:.2f} MB")
