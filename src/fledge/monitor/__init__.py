"""Measuring a run: timers, model size, names. Names resolve on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.core.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, _HOME)
