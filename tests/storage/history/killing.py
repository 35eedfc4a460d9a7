"""Kills processes in the middle of saving, and checks what they leave.

Run: python -m tests.storage.history.killing ROUNDS SEED FOLDER.
Each round forks a process that resumes from the folder and saves as fast as it can, kills it with SIGKILL after a random
time, and then demands: the newest checkpoint loads, verifies, is what was saved at its step, and is not older than any
that the process knew to be durable. The folder is never cleaned: what one round leaves, the next must live with.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from fledge.core.errors import StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory
from fledge.storage.disk.durable import TEMP_PREFIX
from tests.storage.states import assert_same, near_at

OPTIONS = [
    {},
    {"delta": "all"},
    {"delta": "weights_only", "keep_weights_only": 3},
    {"weights_only_dtype": "bfloat16", "keep_best": 2},
]


def save_forever(folder: Path, report: int, options: dict[str, object]) -> None:
    """The process that gets killed; writes each step to `report` once it knows it durable."""
    with AsyncCheckpointSaver(max_queue_size=2) as saver:
        history = CheckpointHistory(folder, saver=saver, keep_whole=3, **options)  # type: ignore[arg-type]
        try:
            step = history.load_latest()[1].step
        except StorageError:
            step = 0
        while True:
            step += 1
            handle = history.save(near_at(step), step, metric=float(step % 7))
            if step % 3 == 0:
                handle.wait(60)
                os.write(report, step.to_bytes(8, "little"))


def last_report(descriptor: int) -> int:
    """Newest step that the killed process knew to be durable."""
    data = b""
    while chunk := os.read(descriptor, 65536):
        data += chunk
    return int.from_bytes(data[-8:], "little") if data else 0


def run(rounds: int, seed: int, folder: Path) -> dict[str, int]:
    """Counts; raises when a checkpoint was lost or cannot be read."""
    rng = random.Random(seed)
    newest = leftovers = 0
    for number in range(rounds):
        options = OPTIONS[number % len(OPTIONS)]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                save_forever(folder, writer, options)
            finally:
                os._exit(9)
        os.close(writer)
        time.sleep(rng.uniform(0.05, 0.35))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, f"round {number}: the process ended by itself ({status})"
        durable = last_report(reader)
        os.close(reader)
        leftovers += sum(name.startswith(TEMP_PREFIX) for name in os.listdir(folder)) if folder.exists() else 0
        try:
            state, info = CheckpointHistory(folder).load_latest()
        except StorageError:
            assert durable == newest == 0, f"round {number}: nothing is left, but step {durable or newest} was durable"
            continue
        assert not info.skipped, f"round {number}: {info.skipped}"
        assert info.step >= max(durable, newest), f"round {number}: step {info.step} is older than {durable}, {newest}"
        assert_same(state, near_at(info.step))
        newest = info.step
        for entry in CheckpointHistory(folder).entries():
            weights = CheckpointHistory(folder).load(entry, keys=["model/bias"])["model"]["bias"]
            assert weights[0].item() in (entry.step, torch.tensor(float(entry.step)).bfloat16().item())
        assert not any(name.startswith(TEMP_PREFIX) for name in os.listdir(folder)), "a dead process's file was left"
    return {"rounds": rounds, "newest": newest, "leftovers_cleaned": leftovers}


if __name__ == "__main__":
    torch.set_num_threads(1)  # no worker threads: this process forks
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
