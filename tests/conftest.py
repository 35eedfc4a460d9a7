"""Two workers share two cores: one thread each, also in the processes that tests start.

Tests run on the CPU unless they ask for a GPU (`-m gpu`): what they compare was computed there.
"""

import os

import pytest

from fledge.core import machine

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop(
    "PYTHONDONTWRITEBYTECODE", None
)  # each process that a test starts would compile Fledge anew, which takes 0.5 s


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("markexpr", "")
    if "gpu" not in chosen or "not gpu" in chosen:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    machine.default_threads = lambda: 1  # before other modules import it
