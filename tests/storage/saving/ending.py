"""Ends processes in every way that can be caught, with a full queue. Run: python -m tests.storage.saving.ending FOLDER

Each case is a fork of this process, which saves four checkpoints into its own folder and then ends in its way. Prints one
JSON object: case, exit status (negative for a signal), and what it printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fledge.storage import AsyncCheckpointSaver
from fledge.storage.saving import saver as saver_module
from tests.storage.states import state_at

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with SIGINT ignored


def write_slowly() -> None:
    """Make the background slow enough for the queue to be full when the end comes."""
    real = saver_module.write_state

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return real(*args, **kwargs)

    saver_module.write_state = slow


def save_four(folder: Path) -> AsyncCheckpointSaver:
    """A saver with a full queue."""
    saver = AsyncCheckpointSaver(max_queue_size=3)
    for i in range(4):
        saver.save_async(state_at(i), folder / str(i))
    assert saver.get_stats()["queue_size"] >= 2
    return saver


def kill_self(number: int) -> None:
    """Send ourselves a signal, and wait for it."""
    os.kill(os.getpid(), number)
    time.sleep(30)


def end_of_program(folder: Path) -> None:
    save_four(folder)


def exception(folder: Path) -> None:
    save_four(folder)
    raise ValueError("crash")


def sigterm(folder: Path) -> None:
    save_four(folder)
    kill_self(signal.SIGTERM)


def sigint(folder: Path) -> None:
    save_four(folder)
    kill_self(signal.SIGINT)


def own_handler(folder: Path) -> None:
    def own(number: int, frame: FrameType | None) -> None:
        print("own handler after", sum(name.endswith(".fledge") for name in os.listdir(folder)), flush=True)
        sys.exit(7)

    signal.signal(signal.SIGTERM, own)
    save_four(folder)
    kill_self(signal.SIGTERM)


def forked_child(folder: Path) -> None:
    save_four(folder)
    child = os.fork()
    if child == 0:
        kill_self(signal.SIGTERM)
    print("child", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)


def shut_down(folder: Path) -> None:
    save_four(folder).shutdown()
    print(
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    )


CASES: list[Callable[[Path], None]] = [end_of_program, exception, sigterm, sigint, own_handler, forked_child, shut_down]


def main(folder: Path) -> None:
    """Fork and wait, case by case; the children return from here to end as programs do."""
    results = {}
    for case in CASES:
        place = folder / case.__name__
        place.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            write_slowly()
            case(place)
            return
        status = os.waitpid(child, 0)[1]
        results[case.__name__] = {"status": os.waitstatus_to_exitcode(status), "output": (place / "output").read_text()}
    print(json.dumps(results))


if __name__ == "__main__":
    torch.set_num_threads(1)  # no worker threads: this process forks
    main(Path(sys.argv[1]))
