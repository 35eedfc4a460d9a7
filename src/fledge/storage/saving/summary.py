"""Format and print the results of a saver as text."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from fledge.storage.format.writer import Written

LOST = {"failures": "failed", "dropped": "dropped", "skipped": "skipped"}


def summary_of(stats: Mapping[str, Any], max_queue_size: int) -> str:
    """Format statistics as a title and three lines: counts, compression, waiting times."""
    given, written = stats["bytes_in"], stats["bytes_out"]
    size = f"{given / written:.2f}x ({written / given:.0%} of {given / 1e6:.1f} MB)" if given and written else "-"
    lost = [f"{stats[name]} {word}" for name, word in LOST.items() if stats[name]]
    waits = f"{stats['stall_p50_ms']:.2f} ms, p99 {stats['stall_p99_ms']:.2f} ms"
    return "\n".join(
        [
            "[Checkpoint Stats]",
            "  " + ", ".join([f"Total saved: {stats['saves']}", *lost]),
            f"  Compression ratio: {size}",
            f"  Queue size: {stats['queue_size']} of {max_queue_size}; time per save call {waits}",
        ]
    )


def size_of(written: Written) -> str:
    """Format the sizes before and after compression: "3.2 MB as 1.1 MB (2.91x)"."""
    given, taken = written.bytes_in, written.bytes_out
    return f"{given / 1e6:.1f} MB as {taken / 1e6:.1f} MB ({given / max(taken, 1):.2f}x)"


def say(line: str) -> None:
    """Print a line; ignore a closed stdout."""
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)
