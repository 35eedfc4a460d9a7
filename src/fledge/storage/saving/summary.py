"""What a saver tells people: its statistics, and lines that may go unread."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


def summary_of(stats: Mapping[str, Any], max_queue_size: int) -> str:
    """A title and three lines: how many, how much smaller, and what callers wait."""
    given, written = stats["bytes_in"], stats["bytes_out"]
    size = f"{given / written:.2f}x ({written / given:.0%} of {given / 1e6:.1f} MB)" if given and written else "-"
    lost = [f"{stats[name]} {word}" for name, word in LOST.items() if stats[name]]
    waits = f"{stats['stall_p50_ms']:.2f} ms, p99 {stats['stall_p99_ms']:.2f} ms"
    return "\n".join(
        [
            "[Checkpoint Stats]",
            "  " + ", ".join([f"Saved: {stats['saves']}", *lost]),
            f"  Compression: {size}",
            f"  Queue: {stats['queue_size']} of {max_queue_size}; a save waits {waits}",
        ]
    )


LOST = {"failures": "failed", "dropped": "dropped", "skipped": "skipped"}


def say(line: str) -> None:
    """Print a line; where nobody listens any more (a closed pipe) saving goes on without it."""
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)
