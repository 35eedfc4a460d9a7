"""Measure and log a run: timers, metric loggers, model sizes, checkpoint names."""

from fledge.monitor.model_info import format_checkpoint_name, get_model_size, print_model_info
from fledge.monitor.performance import TITLE, PerformanceMonitor

__all__ = ["TITLE", "PerformanceMonitor", "format_checkpoint_name", "get_model_size", "print_model_info"]
