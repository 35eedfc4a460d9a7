"""The planner's C library, built once for all tests."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from fledge_runtime import native


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = native.build(tmp_path_factory.mktemp("native") / native.LIBRARY, flags=("-Wall", "-Wextra", "-Werror"))
    loaded = native.load(Path(path))
    assert loaded is not None
    return loaded
