"""Envs whose drones fly in another simulator: placed at starts, delayed as asked, resumed bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import SIMULATED, Dynamics, NavigationConfig, RandomizeConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from tests.tasks.navigation.physics.test_bodies import Collision, Watched, columns, expected

PACKAGES = {Dynamics.mujoco: "mujoco", Dynamics.pyflyt: "PyFlyt"}
EMPTY = {"static_obstacles": 0, "moving_obstacles": 0, "num_maps": 1}


def make(kind: type[NavigationEnv] = NavigationEnv, **options: Any) -> NavigationEnv:
    settings = {"num_envs": 8, "dynamics": Dynamics.iris, "decimation": 4, **options}
    return kind(NavigationConfig(**settings), seed=3, num_threads=2)


@pytest.mark.parametrize("dynamics", SIMULATED)
def test_drones_start_at_rest_at_their_starts_and_fly_as_commanded(dynamics: Dynamics) -> None:
    if dynamics in PACKAGES:
        pytest.importorskip(PACKAGES[dynamics])
    env = make(dynamics=dynamics, **EMPTY)
    env.reset()
    start = env.state["pos"].clone()
    out = env.step(torch.full((8, 3), 0.5))
    assert (env.state["pos"] - start).norm(dim=1).max() < 0.01
    for _ in range(60):
        out = env.step(torch.tensor([[1.0, 0.5, 0.5]]).expand(8, 3))
    vel = out["obs"]["state"][:, 5:]
    assert vel[:, 0].min() > 1.8
    assert vel[:, 1:].abs().max() < 0.15
    assert torch.allclose(env.state["pos"], torch.from_numpy(env.external.plant.pos.T).float())
    env.close()


def test_a_decision_of_four_steps_flies_like_four_decisions_of_one() -> None:
    coarse, fine = (make(decimation=steps, **EMPTY) for steps in (4, 1))
    coarse.reset()
    fine.reset()
    for action in torch.rand(20, 8, 3, generator=torch.Generator().manual_seed(1)):
        action[:, 2] = 0.5
        coarse.step(action)
        for _ in range(4):
            fine.step(action)
        for name in ("pos", "vel", "quat", "rate"):
            assert torch.equal(coarse.state[name], fine.state[name]), name
    coarse.close()
    fine.close()


def test_a_drone_begins_its_next_episode_at_rest() -> None:
    env = make(**EMPTY, max_episode_steps=40, decimation=1)
    env.reset()
    for _ in range(40):
        out = env.step(torch.tensor([[1.0, 0.5, 0.5]]).expand(8, 3))
    assert out["truncated"].all()
    start = env.state["pos"].clone()
    env.step(torch.full((8, 3), 0.5))
    assert (env.state["pos"] - start).norm(dim=1).max() < 1e-3
    assert env.state["vel"].norm(dim=1).max() < 0.01
    env.close()


def test_commands_arrive_late_by_the_latency() -> None:
    """A drone with a latency of k steps flies k steps behind one without."""
    late, prompt = (
        make(**EMPTY, decimation=1, randomize=RandomizeConfig(latency_steps=k, latency_min_steps=k)) for k in (6, 0)
    )
    action = torch.tensor([[1.0, 0.5, 0.7]]).expand(8, 3)
    moved = []
    for env in (late, prompt):
        env.reset()
        start = env.state["pos"].clone()
        track = []
        for _ in range(40):
            env.step(action)
            track.append(env.state["pos"] - start)
        moved.append(torch.stack(track))
        env.close()
    assert (moved[0][6:] - moved[1][:-6]).abs().max() < 1e-3
    assert moved[0][:6].abs().max() < 1e-3


@pytest.mark.parametrize("dynamics", [Dynamics.iris, Dynamics.mujoco])
def test_a_loaded_state_continues_the_same_flight(dynamics: Dynamics) -> None:
    if dynamics in PACKAGES:
        pytest.importorskip(PACKAGES[dynamics])
    env = make(dynamics=dynamics, num_maps=2)
    env.reset()
    actions = torch.rand(20, 8, 3, generator=torch.Generator().manual_seed(1))
    for action in actions[:10]:
        env.step(action)
    saved = env.state_dict()
    first = [env.step(action) for action in actions[10:]]
    env.load_state_dict(saved)
    for action, before in zip(actions[10:], first, strict=True):
        after = env.step(action)
        assert all(torch.equal(after["obs"][name], before["obs"][name]) for name in env.observation_spec)
    env.close()


def test_collisions_of_such_flights_are_those_of_plain_numpy() -> None:
    """The reference is that of test_bodies: boxes instead of cells, float64, 500 points on each path."""
    env = make(Watched, num_envs=32, num_maps=8, decimation=1, starts=Starts.mixed, inside_share=1.0)
    env.reset()
    generator, seen, unsure = torch.Generator().manual_seed(2), dict.fromkeys(env.outcomes.values(), 0), 0
    for t in range(120):
        if t % 30 == 0:
            action = torch.rand(32, 3, generator=generator)
            action[:, 2] = 0.5
        was, slots = env.state["pos"].clone(), env.state["slot"].long()
        then = env.bank.tensors["trail"][-1][slots].clone()
        env.step(action)
        for i in range(32):
            name, gap = expected(env, i, *(a[i].double().numpy() for a in (was, env.last["pos"], then)))
            if abs(gap) < 1e-3:
                unsure += 1
            else:
                assert env.outcomes[int(env.last["crash"][i])] == name, (t, i, gap)
                seen[name] += 1
    assert unsure < 100
    assert seen["collision_static"] > 5
    env.close()
    assert env.cfg.collision is Collision.cylinder


def beam_lengths(centre: np.ndarray, half: np.ndarray, pos: np.ndarray, yaw: float) -> np.ndarray:
    """Lengths [36, 4] of a drone's beams in float64: each beam against each box by its slabs, and against the ground."""
    around = yaw + np.radians(10.0 * np.arange(36))[:, None]
    up = np.radians([-10.0, 0.0, 10.0, 20.0])[None]
    shape = np.broadcast_shapes(around.shape, up.shape)
    rays = np.stack([np.cos(around) * np.cos(up), np.sin(around) * np.cos(up), np.broadcast_to(np.sin(up), shape)], -1)[
        :, :, None
    ]
    rays = np.where(np.abs(rays) < 1e-12, 1e-12, rays)
    enter, leave = ((centre - pos + sign * np.sign(rays) * half) / rays for sign in (-1.0, 1.0))
    ground = np.where(rays[:, :, 0, 2] < 0, -pos[2] / rays[:, :, 0, 2], 1e9)
    first, last = enter.max(-1), leave.min(-1)
    boxes = np.where((first <= last) & (last >= 0), np.maximum(first, 0.0), np.inf).min(-1)
    below = np.abs(pos[:2] + ground[..., None] * rays[:, :, 0, :2]).max(-1) < 20.0
    return np.minimum(np.minimum(boxes, np.where(below, ground, np.inf)), 4.0)


def test_scans_of_such_flights_are_those_of_plain_numpy() -> None:
    """Float32 grazes a few edges on the other side."""
    env = make(num_maps=4, starts=Starts.mixed, inside_share=1.0)
    out = env.reset()
    gaps = []
    for action in torch.rand(12, 8, 3, generator=torch.Generator().manual_seed(1)):
        action[:, 2] = 0.5
        out = env.step(action)
        for i in range(8):
            x, y, z, w = env.state["quat"][i].double().tolist()
            boxes = columns(env, int(env.state["slot"][i]))
            yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
            plain = beam_lengths(*boxes, env.state["pos"][i].double().numpy(), yaw)
            gaps.append(np.abs(4.0 - out["obs"]["lidar"][i, 0].numpy() - plain))
    hits = np.stack(gaps)
    assert (hits > 1e-3).mean() < 3e-3
    env.close()


@pytest.mark.parametrize("name", ["mass", "wind_m_s2"])
def test_what_only_the_envs_own_dynamics_can_vary_is_refused(name: str) -> None:
    cfg = NavigationConfig(dynamics=Dynamics.iris, randomize=RandomizeConfig(**{name: 0.1}))
    with pytest.raises(ConfigError, match=f"env.randomize.{name} needs env.dynamics=lee or first_order, not iris"):
        check_settings(cfg, "env.")


def test_a_missing_simulator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("mujoco", "PyFlyt.core"):
        monkeypatch.setitem(sys.modules, module, None)
    for dynamics, words in (
        (Dynamics.mujoco, "mujoco is not installed"),
        (Dynamics.pyflyt, "PyFlyt.* is not installed"),
    ):
        with pytest.raises(ImportError, match=words):
            make(dynamics=dynamics, **EMPTY)


def test_many_drones_fly_as_they_do_alone() -> None:
    """Also across the blocks of MuJoCo."""
    pytest.importorskip("mujoco")
    from fledge.tasks.navigation.simulators.mujoco import BLOCK, Mujoco

    plants = [Mujoco(count, 0.002) for count in (BLOCK + 3, 1)]
    for plant in plants:
        quat = np.tile([[0.0], [0.0], [0.0], [1.0]], plant.count)
        plant.place(np.arange(plant.count), np.zeros((3, plant.count)), quat)
        for _ in range(50):
            plant.step(np.tile([[0.31], [0.29], [0.30], [0.28]], plant.count))
    assert np.allclose(plants[0].pos, plants[1].pos)
    assert np.allclose(plants[0].rate, plants[1].rate)
