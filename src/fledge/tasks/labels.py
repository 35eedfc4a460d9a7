"""The label of an env in tables and pictures."""

from __future__ import annotations

from typing import Any

from fledge.tasks.base import Task


def env_label(task: Task, cfg: Any) -> str:
    """Return a short label of an env: the task's own, or the task's name."""
    return task.metrics.env_label(cfg) or task.name
