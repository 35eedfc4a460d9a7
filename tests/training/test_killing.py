"""Trainings killed at random moments go on bit for bit; `python -m tests.training.killing` kills them more often."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["league", "sac"])
def test_a_training_killed_at_random_moments_equals_one_that_was_never_stopped(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "tests.training.killing", kind, "6", "3", str(tmp_path / "runs")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900
    )  # forks: it needs a process without threads
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 6
    assert result["values"] > 500
