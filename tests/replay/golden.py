"""The golden replay states: written once by each version of the saved form, and read ever since.

Run: python -m tests.replay.golden. Only when a new version of the form is added, and then for a new file: the old must stay.
`golden_v1.fledge` has packed keys, an occupancy map stored as bits, and an image compressed in blocks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fledge.replay import DictReplayBuffer
from fledge.replay.snapshot import VERSION
from fledge.storage import save_checkpoint

FOLDER = Path(__file__).parent
KEYS = ["map", "image", "stack", "state", "reward", "next_map", "next_image", "next_stack", "next_state"]
LENGTHS = (20, 33, 9, 30)  # the first episode is removed
MAX_SIZE = 80


def golden_episode(number: int) -> dict[str, np.ndarray]:
    """Return episode `number`, computed without random numbers."""
    length = LENGTHS[number]
    t, y, x = np.mgrid[: length + 1, :64, :64]
    disc = (x - 2 * t) ** 2 + (y - 20 - 5 * number) ** 2 < 150
    image = ((x * 3 + y * 5 + 7 * t * (x * y % 11) + number) % 251).astype(np.uint8)
    planes = np.where(disc, 200, y // 8 * 10).astype(np.uint8)
    before = np.concatenate([planes[:1]] * 3 + [planes])
    stack = np.stack([before[k : k + length + 1, ::2, ::2] for k in range(4)], -1)
    state = np.sin(np.arange((length + 1) * 5).reshape(length + 1, 5) * 0.01 + number).astype(np.float32)
    return {
        "map": disc.astype(np.uint8),
        "image": image[:, :48, :48],
        "stack": np.ascontiguousarray(stack),
        "state": state,
        "reward": np.arange(length, dtype=np.float32) + 100 * number,
    }


def golden_buffer(filled: bool = True) -> DictReplayBuffer:
    """Return a prioritised buffer, filled with the golden episodes or empty."""
    buffer = DictReplayBuffer(MAX_SIZE, KEYS, prioritized=True, seed=5)
    for number in range(len(LENGTHS) if filled else 0):
        buffer.add(golden_episode(number))
    if filled:
        buffer.update_priorities(np.arange(LENGTHS[0], sum(LENGTHS), 3), np.arange(24) + 0.5)
    return buffer


if __name__ == "__main__":
    save_checkpoint({"replay": golden_buffer().state_dict()}, FOLDER / f"golden_v{VERSION}.fledge")
