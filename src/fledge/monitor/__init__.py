"""Measuring a run: timers, model size, names. Names resolve on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.monitor.model_info import format_checkpoint_name, get_model_size, print_model_info
    from fledge.monitor.performance import PerformanceMonitor

__all__ = ["PerformanceMonitor", "format_checkpoint_name", "get_model_size", "print_model_info"]

_HOME = {
    "PerformanceMonitor": "performance",
    "format_checkpoint_name": "model_info",
    "get_model_size": "model_info",
    "print_model_info": "model_info",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
