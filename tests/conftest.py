"""Two workers share two cores: one thread each, also in the processes that tests start.

Tests run on the CPU unless they ask for a GPU (`-m gpu`): what they compare was computed there.
"""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("markexpr", "")
    if "gpu" not in chosen or "not gpu" in chosen:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
