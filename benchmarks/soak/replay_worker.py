"""`python -m benchmarks.soak.replay_worker FOLDER`: fill, save and load a replay buffer until the process is stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fledge.replay import DictReplayBuffer
from fledge.storage import load_checkpoint, save_checkpoint

CAPACITY, LONGEST, WIDTH = 60_000, 400, 24  # transitions of the replay, steps of an episode, numbers of an observation


def fill_forever(folder: Path) -> None:
    """Fill a replay buffer with random episodes; save it, load it into another one, compare them and go on with that one."""
    folder.mkdir(exist_ok=True)
    random, keys = np.random.default_rng(0), ("obs", "action", "reward")
    buffer = DictReplayBuffer(CAPACITY, keys)
    while True:
        for _ in range(100):
            steps = int(random.integers(2, LONGEST))
            obs = np.cumsum(random.normal(size=(steps, WIDTH)), axis=0).astype(np.float32)
            action, reward = random.normal(size=(steps, 4)).astype(np.float32), random.normal(size=steps)
            buffer.add({"obs": obs, "action": action, "reward": reward.astype(np.float32)})
            buffer.sample(256)
        save_checkpoint(buffer.state_dict(), folder / "replay.fledge")
        other = DictReplayBuffer(CAPACITY, keys)
        other.load_state_dict(load_checkpoint(folder / "replay.fledge"))
        ours, theirs = buffer.sample(512), other.sample(512)
        if any(not np.array_equal(np.asarray(ours[key]), np.asarray(theirs[key])) for key in keys):
            sys.exit("A loaded replay buffer gives another batch than the saved one.")
        buffer.close()
        buffer = other


if __name__ == "__main__":
    fill_forever(Path(sys.argv[1]))
