"""However the process ends (short of kill -9), what was given to the saver is on the disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fledge.storage import load_checkpoint
from tests.storage.saving.ending import CASES
from tests.storage.states import assert_same, state_at

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ending")
    command = [sys.executable, "-m", "tests.storage.saving.ending", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_everything_queued_is_saved(ended: tuple[Path, dict[str, Any]], case: str) -> None:
    for i in range(4):
        assert_same(load_checkpoint(ended[0] / case / str(i)), state_at(i))


@pytest.mark.parametrize(
    ("case", "status", "printed"),
    [
        ("end_of_program", 0, ""),
        ("exception", 1, "ValueError: crash"),
        ("sigterm", -signal.SIGTERM, "finishing the checkpoints that are queued"),
        ("sigint", -signal.SIGINT, "KeyboardInterrupt"),
        ("own_handler", 7, "own handler after 4"),  # the program's own handler runs, after the drain
        ("forked_child", 0, f"child {int(signal.SIGTERM)}"),  # the child neither saves nor hangs
        ("shut_down", 0, "True True"),  # the signals are given back
    ],
)
def test_the_process_ends_as_it_would_have(
    ended: tuple[Path, dict[str, Any]], case: str, status: int, printed: str
) -> None:
    result = ended[1][case]
    assert result["status"] == status, result["output"]
    assert printed in result["output"]
