"""P2M's arena: where things stand, and how its movers swing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.overrides import from_plain
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.terrain import CELLS, SOLID
from fledge.tasks.navigation.task import NavigationTask

CFG: NavigationConfig = from_plain(
    NavigationConfig, {**NavigationTask().presets.load("env", "p2m"), "num_envs": 6, "decimation": 2}
)


@pytest.fixture(scope="module")
def env() -> NavigationEnv:
    env = NavigationEnv(CFG, seed=4, num_threads=1)
    env.reset()
    return env


def test_flights_go_along_the_lane_between_four_walls_on_maps_of_their_own(env: NavigationEnv) -> None:
    assert torch.equal(env.state["start"], torch.tensor([[0.0, -15.0, 2.0]]).expand(6, 3))
    assert torch.equal(env.state["goal"], torch.tensor([[0.0, 15.0, 2.0]]).expand(6, 3))
    solid = env.bank.grid.numpy().reshape(6, CELLS, CELLS) >= SOLID
    for x, y in ((-6.6, 0.0), (6.6, 0.0), (0.0, -17.6), (0.0, 17.6), (-6.6, 17.6)):
        assert solid[:, round((x + 25) * 10), round((y + 25) * 10)].all()
    inside = solid[:, 185:315, 75:425]
    assert not inside[:, :, :22].any()  # nothing stands before y = -15.3
    shares = inside.mean(axis=(1, 2))
    area = 13 * np.pi * 0.25 * np.mean(np.linspace(0.25, 1.05, 101) ** 2)
    assert shares.mean() * 13 * 35 == pytest.approx(area, rel=0.35)  # some overlap
    assert len({inside[k].tobytes() for k in range(6)}) == 6


def test_movers_swing_between_the_borders_and_are_seen_as_cylinders_of_half_a_metre(env: NavigationEnv) -> None:
    places, speeds = [], []
    for _ in range(150):
        out = env.step(torch.full((6, 3), 0.5))
        places.append(env.bank.tensors["trail"][-1].clone())
        speeds.append(env.bank.tensors["vel"].clone())
        rows = out["obs"]["dynamic_obstacle"][:, 0]
        there = rows[..., :3].abs().sum(-1) > 0
        assert (rows[there][:, 8] == 1).all()
        assert (rows[there][:, 9] == 0).all()
    pos, vel = torch.stack(places).numpy(), torch.stack(speeds).numpy()
    assert np.abs(pos[..., 0]).max() < 5.0 + 3.6 * 0.033
    assert np.abs(pos[..., 1]).max() < 12.5 + 3.6 * 0.033
    size = np.abs(vel[..., :2])
    assert size.max() <= 1.68 * 2.1 + 1e-4
    assert size.min() >= 0.34 * 0.1 - 1e-4
    assert (np.diff(np.sign(vel[..., 0]), axis=0) != 0).any()  # some turned back
    assert (vel[..., 2] == 0).all()


def test_the_arena_and_its_lane_go_together() -> None:
    with pytest.raises(ConfigError, match="need each other"):
        check_settings(from_plain(NavigationConfig, {"layout": "arena"}))
