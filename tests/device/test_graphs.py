"""CUDA graphs on a device without a GPU: captured trainings equal others bit for bit, and mistakes are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.device import host_cuda

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(bool(host_cuda.available()), reason=host_cuda.available())
slow = pytest.mark.slow


def run(*names: str) -> dict[str, Any]:
    """Return what `tests.device.captured` printed for these checks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.captured", *names],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: found for line in lines for name, found in line.items()}


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("fast", 4),
        pytest.param("navrl", 1, marks=slow),
        pytest.param("planned", 4, marks=slow),
        pytest.param("recurrent", 4, marks=slow),
        pytest.param("halves", 4, marks=slow),
        pytest.param("pipelined", 4, marks=slow),
        pytest.param("duel", 4, marks=slow),
        pytest.param("duel_discrete", 4, marks=slow),
    ],
)
def test_a_captured_training_equals_another_bit_for_bit_also_when_resumed(name: str, rates: int) -> None:
    found = run(name)[name]
    assert found["ended"]
    assert len(found["rates"]) == rates
    for part in ("captured", "resumed"):
        assert not found[part]["wrong"]
        assert not found[part]["fell_back"]
        assert found[part]["replays"] > 50


def test_the_fused_features_equal_those_in_torch() -> None:
    found = run("features")["features"]
    assert found.pop("4 m, with gradient")
    assert found.pop("8 m, with gradient")
    assert found
    assert max(found.values()) < 2e-6


def test_the_stand_in_shows_what_would_fail_on_a_gpu() -> None:
    found = run("stand_in")["stand_in"]
    assert found["a value of Python stays"] == [1.0, 2.0, 2.0, 2.0, 2.0], "the second call is captured with its 2"
    assert found["a tensor's value does not"] == [1.0, 3.0, 6.0, 10.0, 15.0]
    assert found["random numbers go on"]
    assert found["memory of the graph is overwritten"]
    for what in ("item", "mask", "copy", "generator", "stream"):
        assert found[f"refused: {what}"], f"{what} must be refused in a capture"
    assert found["off after a failure"]
    assert found["ran after a failure"]
