"""Tests that need an NVIDIA GPU: `make test-gpu`."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no NVIDIA GPU: install its CUDA build and a driver, and look at `fledge doctor`")
