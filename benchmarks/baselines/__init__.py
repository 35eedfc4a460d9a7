"""Plain implementations that benchmarks measure beside Fledge: one package per task, one module per storage subject."""

from __future__ import annotations

import importlib
from types import ModuleType

from fledge.core.errors import ConfigError

TASKS = ("navigation", "aircombat")


def find_baselines(task: str) -> ModuleType:
    """Return the package of plain implementations of a task.

    Raises:
        ConfigError: if the task has none.
    """
    if task not in TASKS:
        raise ConfigError(f"There are no baselines for task {task!r}; choose one of {', '.join(TASKS)}.")
    return importlib.import_module(f"benchmarks.baselines.{task}")
