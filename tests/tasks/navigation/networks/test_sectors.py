"""A dense scan is reduced to sectors: each holds the nearest hit of its rays, and the first one looks ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fledge.agents.policy_file import write_policy
from fledge.core.errors import ConfigError, FormatError
from fledge.evaluation.export import export_policy
from fledge.tasks.navigation.networks.feature_policy import PlannedPolicy, Sectors
from fledge.tasks.navigation.task import NavigationTask
from fledge.training.config import make_config

TASK = NavigationTask()
SCAN = ["env.lidar_azimuths=72", "env.lidar_elevations_deg=[-15.0,15.0]", "env.lidar_rows=8", "env.lidar_range_m=8.0"]


def described(*words: str) -> dict[str, object]:
    cfg = make_config(TASK, "planned", [*SCAN, "env.num_maps=2", *words])
    return TASK.policy.describe(TASK, "ppo", cfg.env, cfg.policy)


@pytest.mark.parametrize("wraps", [True, False])
def test_a_sector_holds_its_nearest_hit_within_reach(wraps: bool) -> None:
    distances = np.random.default_rng(0).uniform(0.3, 9.0, (5, 24, 6))
    scan = np.clip(8.0 - distances, 0.0, None)
    found = Sectors((24, 6), 8.0, (6, 3), 4.0, wraps).reduce(torch.tensor(scan, dtype=torch.float32)[:, None])
    assert found.shape == (5, 1, 6, 3)
    for h in range(6):
        azimuths = [(4 * h + k - (2 if wraps else 0)) % 24 for k in range(4)]
        for v in range(3):
            nearest = distances[:, azimuths][:, :, [2 * v, 2 * v + 1]].min(axis=(1, 2))
            assert np.allclose(found[:, 0, h, v], np.clip(4.0 - nearest, 0.0, None), atol=1e-5)


def test_with_sectors_a_network_has_the_inputs_of_a_coarse_scan_and_takes_over_its_weights() -> None:
    description = described("policy.sectors=[36,4]")
    assert (description["lidar"], description["range_m"]) == ([36, 4], 4.0)
    policy = TASK.policy.build(description)
    assert isinstance(policy, PlannedPolicy)
    policy.load_state_dict(PlannedPolicy().state_dict())
    obs = policy.example_inputs(7)
    assert obs["lidar"].shape == (7, 1, 72, 8)
    obs["lidar"] *= 0.8
    nearer = obs["lidar"].clone()
    nearer[:, :, 1, 3] = 7.5  # the first sector has the rays -1 and 0, the second one 1 and 2
    beams = slice(9, 9 + 144)
    assert policy.inputs == policy.encode(obs).shape[1]
    changed = (policy.encode({**obs, "lidar": nearer}) != policy.encode(obs))[:, beams].reshape(7, 36, 4)
    assert changed[:, 1, 1].all()
    assert changed.sum() == 7


def test_a_policy_with_sectors_is_exported(tmp_path: Path) -> None:
    description = described("policy.sectors=[36,4]", "policy.hidden=[8]")
    torch.manual_seed(0)
    model = TASK.policy.build(description)
    path = tmp_path / "p.fledge"
    write_policy({"model": model.state_dict(), "policy": description, "task": "navigation"}, path)
    assert export_policy(str(path), tmp_path / "p.onnx")


def test_sectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="divide the LiDAR's 72 x 8 rays"):
        described("policy.sectors=[30,4]")
    with pytest.raises(ConfigError, match="divide the LiDAR's 72 x 8 rays"):
        described("policy.sectors=[36]")
    with pytest.raises(ConfigError, match="divide the LiDAR's 72 x 8 rays"):
        described("policy.sectors=[36,0]")
    with pytest.raises(FormatError, match="description of a policy is damaged"):
        TASK.policy.build(
            {**described("policy.sectors=[36,4]"), "scan": {"rays": [70, 8], "range_m": 8.0, "wraps": True}}
        )
