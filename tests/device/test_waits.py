"""No waits for the GPU in the hot loop, and the CPU's results, on a device without a GPU (`host_cuda`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.device import host_cuda
from tests.device.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
QUICK = ("fast", "fresh_maps", "compressed", "pipelined", "duel_mixed", "duel_dqn")
SLOW = tuple(name for name in SCENARIOS if name not in QUICK)
REPLAY = ("sac", "td3", "dqn", "duel_dqn")
pytestmark = pytest.mark.skipif(bool(host_cuda.available()), reason=host_cuda.available())


def run_scenarios(*args: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.device.scenarios", *args]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = {name: each for line in lines for name, each in json.loads(line).items()}
    assert found, done.stderr[-2000:]
    return found


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return run_scenarios(*QUICK, "fast+wait", "fast+device")


@pytest.fixture(scope="module")
def slow() -> dict[str, Any]:
    return run_scenarios(*SLOW)


@pytest.fixture(scope="module")
def differences() -> dict[str, Any]:
    return run_scenarios("--compare", *SCENARIOS)


def allowed(name: str) -> dict[str, list[str]]:
    """Return the files that wait once in an iteration, by part; no other wait is allowed, however often a part loops."""
    report = ["learn/base.py"]  # the update's losses, which are checked for NaN
    return {
        "collect": ["collect/compressed.py"] if name == "compressed" else [],  # the host compresses the rollout
        "learn": (["replay/buffer.py"] if name in REPLAY else []) + report,  # the host stores the rollout
        "metrics": ["training/run.py"],  # all metrics of an iteration together
    }


def check(name: str, found: dict[str, Any]) -> None:
    assert "error" not in found, found["error"]
    assert found["faults"] == []
    for part, files in allowed(name).items():
        waits = found[part]["waits"]
        where = Counter[str]()
        for text, count in waits.items():
            where[text.rpartition(" at ")[2].partition(":")[0]] += count
        assert where == Counter(files), f"{name}, {part}: {json.dumps(waits, indent=1)}"


@pytest.mark.parametrize("name", QUICK)
def test_the_host_never_waits_within_a_rollout_or_an_update(name: str, quick: dict[str, Any]) -> None:
    check(name, quick[name])


def test_a_seeded_wait_is_found_in_every_decision_and_gradient_step(quick: dict[str, Any]) -> None:
    found = quick["fast+wait"]
    assert sum(found["collect"]["waits"].values()) >= 8
    assert sum(found["learn"]["waits"].values()) >= 5  # 4 minibatches, and the report
    with pytest.raises(AssertionError):
        check("fast", found)


def test_a_kernel_on_the_wrong_device_is_found(quick: dict[str, Any]) -> None:
    assert any("runs on cpu with an array of cuda:0" in fault for fault in quick["fast+device"]["faults"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_host_never_waits_in_any_other_scenario(name: str, slow: dict[str, Any]) -> None:
    check(name, slow[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_rollouts_and_losses_on_the_device_are_those_on_the_cpu(name: str, differences: dict[str, Any]) -> None:
    found = differences[name]
    assert "error" not in found, found["error"]
    exact = {key: found[key] for key in ("terminated", "truncated", "outcome", "episode_length") if key in found}
    assert not any(exact.values()), exact
    assert max(found.values()) < 2e-3, found  # rows that are computed together round differently
