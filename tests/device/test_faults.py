"""Parts that failed on a GPU, checked on a device without one (`host_cuda`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import host_cuda
from tests.device.faults import CHECKS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(bool(host_cuda.available()), reason=host_cuda.available())


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """Run all checks in one process; return by name an error, or ""."""
    command = [sys.executable, "-m", "tests.device.faults"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {"": done.stderr} | {name: error for line in lines for name, error in json.loads(line).items()}


@pytest.mark.parametrize("name", CHECKS)
def test_on_the_device(name: str, errors: dict[str, str]) -> None:
    error = errors.get(name, f"it did not finish:\n{errors['']}")
    assert not error, error
