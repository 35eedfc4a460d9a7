"""Helpers of the tests of the command line."""

from pathlib import Path

import pytest
import torch

from fledge.storage import save_checkpoint
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    policy = FeaturePolicy(hidden=(16,))
    description = {"kind": "features", "hidden": [16], "lidar": [36, 4], "range_m": 4.0}
    path = tmp_path / "small.fledge"
    save_checkpoint({"model": policy.state_dict(), "policy": description, "task": "navigation"}, path)
    return path
