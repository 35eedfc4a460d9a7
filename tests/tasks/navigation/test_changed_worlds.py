"""Worlds that differ from those of training: a heavier drone, faster movers."""

from __future__ import annotations

import pytest
import torch

import fledge
from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import Dynamics, NavigationConfig, RandomizeConfig
from fledge.tasks.navigation.physics.quadrotor import GRAVITY, VELOCITY_GAIN

WORLD = {"static_obstacles": 0, "moving_obstacles": 16, "num_maps": 1, "num_envs": 4}


def test_a_drone_that_is_a_quarter_heavier_sinks_at_the_speed_at_which_its_controller_holds_it() -> None:
    """The controller assumes the nominal mass: it holds where VELOCITY_GAIN * speed makes up for the missing weight."""
    env = fledge.make_env("navigation", **WORLD, randomize={"mass_factor": 1.25}, min_height_m=0.2)
    out = env.reset()
    env.state["pos"][:, 2] = 4.0
    for _ in range(30):
        out = env.step(torch.full((4, 3), 0.5))
    assert not out["terminated"].any()
    assert env.state["frame"][:, 0].tolist() == [1.25] * 4
    held = 0.25 * GRAVITY / VELOCITY_GAIN
    assert torch.all(env.state["vel"][:, 2] < -0.5 * held)
    assert torch.all(env.state["vel"][:, 2] > -1.05 * held)


def test_movers_are_as_many_times_faster_as_mover_speed_says() -> None:
    speeds = []
    for factor in (1.0, 3.0):
        env = fledge.make_env("navigation", **WORLD, mover_speed=factor)
        env.reset()
        env.step(torch.full((4, 3), 0.5))
        speeds.append(env.bank.tensors["vel"].norm(dim=-1))
    assert torch.allclose(speeds[1], 3.0 * speeds[0], rtol=1e-5)
    assert float(speeds[0].min()) >= 0.5


def test_simulators_with_a_drone_of_their_own_refuse_another_mass() -> None:
    cfg = NavigationConfig(dynamics=Dynamics.iris, randomize=RandomizeConfig(mass_factor=1.25))
    with pytest.raises(ConfigError, match=r"set env.randomize.mass_factor=1, or change env.dynamics"):
        check_settings(cfg, "env.")
