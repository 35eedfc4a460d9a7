"""Deployment folders that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.folders import PLANNER, deploy_small, with_memory

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="session")
def reflex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_small("fledge-reflex", tmp_path_factory.mktemp("deployed") / "reflex")


@pytest.fixture(scope="session")
def nav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_small("fledge-nav", tmp_path_factory.mktemp("deployed") / "nav")


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_small(with_memory(), tmp_path_factory.mktemp("deployed") / "memory")


@pytest.fixture(scope="session")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_small(PLANNER, tmp_path_factory.mktemp("deployed") / "planner", decimation=4)
