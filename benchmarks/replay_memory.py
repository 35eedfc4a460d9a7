"""Measure whether memory stays flat while millions of frames pass through a bounded buffer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.machine import release_memory, resident_bytes
from benchmarks.replay_flights import Episode
from fledge.replay import DictReplayBuffer

POINTS = 20  # measurements
FULL_SHARE = 0.2  # of the frames; by then the buffer has long been full


def measure_memory(
    episodes: Sequence[Episode], keys: Sequence[str], frames: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Add `frames` transitions (the episodes again and again) to a buffer that holds a hundredth of them.

    Returns resident bytes at 20 points, and how much they grew after the first fifth: JSON-able.
    """
    longest = max(len(e["reward"]) for e in episodes)
    capacity = max(frames // 100, 2 * longest)
    points: list[dict[str, int]] = []
    added = 0
    release_memory()
    with DictReplayBuffer(capacity, keys) as buffer:
        for episode in itertools.cycle(episodes):
            buffer.add(episode)
            added += len(episode["reward"])
            if added * POINTS >= frames * (len(points) + 1):
                buffer.sample(256)
                resident, held = resident_bytes(), int(buffer.stats()["held_bytes"])
                points.append({"frames": added, "resident_bytes": resident, "buffer_bytes": held})
                say(f"{added / 1e6:.1f} million frames added, {resident / 2**20:.0f} MiB resident")
            if added >= frames:
                break
    late = [p["resident_bytes"] for p in points if p["frames"] >= FULL_SHARE * frames]
    return {
        "frames": added,
        "capacity": capacity,
        "points": points,
        "growth_bytes": max(late) - late[0],
        "buffer_bytes": points[-1]["buffer_bytes"],
    }
