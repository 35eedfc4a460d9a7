"""Movers on prescribed paths: kernels against the formula in float64, as obstacles of an env in a scene."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.overrides import from_plain
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.navigation.worlds.scene import Movers

N, DECIMATION = 6, 3
HOVER = torch.full((N, 3), 0.5)


def position(movers: Movers, t: float) -> np.ndarray:
    """Return where movers are after t seconds, [M, 3], in float64."""
    a = movers.pace[:, 0] * t + movers.pace[:, 1]
    loop = np.stack([np.sin(a) + 2 * np.sin(2 * a), np.cos(a) - 2 * np.cos(2 * a), -np.sin(3 * a)], axis=1)
    drifted = movers.origin + movers.drift * t
    for axis in (0, 1):
        half = movers.turn[axis]
        while (np.abs(drifted[:, axis]) > half).any():
            x = drifted[:, axis]
            drifted[:, axis] = np.where(x > half, 2 * half - x, np.where(x < -half, -2 * half - x, x))
    return drifted + movers.loop * loop


@pytest.fixture(params=["sando", "fapp"])
def env(request: pytest.FixtureRequest) -> Iterator[NavigationEnv]:
    preset = NavigationTask().presets.load("env", request.param)
    env = NavigationEnv(
        from_plain(NavigationConfig, {**preset, "num_envs": N, "decimation": DECIMATION}), seed=4, num_threads=1
    )
    env.reset()
    yield env
    env.close()


def movers_of(env: NavigationEnv, i: int) -> Movers:
    worlds: Any = env.bank.worlds
    return worlds.worlds[worlds.number[int(env.state["slot"][i])]].scene.movers


def test_movers_follow_their_formula_and_know_its_derivative(env: NavigationEnv) -> None:
    assert sorted(env.state["slot"].tolist()) == list(range(N))  # each drone in its own world
    dt = env.cfg.dt_s
    steps = 0
    for count in (1, 40, 900):
        for _ in range(count):
            env.step(HOVER)
            steps += DECIMATION
        for slot in (0, N - 1):
            movers = movers_of(env, int((env.state["slot"] == slot).nonzero()[0]))
            for k in range(DECIMATION):
                t = (steps - DECIMATION + k + 1) * dt
                found = env.bank.tensors["trail"][k, slot].numpy()
                np.testing.assert_allclose(found, position(movers, t), atol=2e-4)
            np.testing.assert_allclose(
                env.bank.tensors["before"][slot], position(movers, t - DECIMATION * dt), atol=2e-4
            )
            slope = (position(movers, t + 1e-5) - position(movers, t - 1e-5)) / 2e-5
            near_border = (np.abs(np.abs(found[:, :2]) - movers.turn) < 1e-3).any(axis=1)
            velocity = env.bank.tensors["vel"][slot].numpy()
            np.testing.assert_allclose(velocity[~near_border], slope[~near_border], atol=2e-4)


def test_time_keeps_its_precision_after_a_week(env: NavigationEnv) -> None:
    env.bank.tensors["clock"][0] = 37_000_000  # 6.9 days
    env._clock = 37_000_000
    env.step(HOVER)
    t = (37_000_000 + DECIMATION) * np.float64(np.float32(env.cfg.dt_s))
    movers = movers_of(env, int((env.state["slot"] == 0).nonzero()[0]))
    rounded = Movers(movers.kinds, *(v.astype(np.float32).astype(np.float64) for v in list(vars(movers).values())[1:]))
    np.testing.assert_allclose(env.bank.tensors["trail"][-1, 0], position(rounded, t), atol=1e-3)


def test_a_flight_in_a_scene_has_its_own_ends_limits_and_clock() -> None:
    preset = NavigationTask().presets.load("env", "sando")
    env = NavigationEnv(
        from_plain(NavigationConfig, {**preset, "num_envs": 4, "decimation": 5, "moving_obstacles": 0}), num_threads=1
    )
    env.reset()
    assert (env.state["start"] == torch.tensor([0.0, 0.0, 2.0])).all()
    assert (env.state["goal"] == torch.tensor([105.0, 0.0, 2.0])).all()
    env.state["pos"][:3, 2] = torch.tensor([0.45, 6.05, 0.55])
    env.state["step"][3] = 6245
    out = env.step(HOVER[:4])
    ends = [Outcome(int(o)) for o in out["outcome"]]
    assert ends == [Outcome.OUT_OF_BOUNDS, Outcome.OUT_OF_BOUNDS, Outcome.RUNNING, Outcome.TIMEOUT]
    env.state["pos"][2] = torch.tensor([104.2, 0.3, 2.0])
    assert Outcome(int(env.step(HOVER[:4])["outcome"][2])) == Outcome.SUCCESS
    env.close()


def test_the_drone_hits_beams_and_cubes_of_a_scene_exactly_and_sees_them() -> None:
    preset = NavigationTask().presets.load("env", "sando")
    env = NavigationEnv(
        from_plain(NavigationConfig, {**preset, "num_envs": 4, "decimation": 1, "dynamics": "first_order"}),
        num_threads=1,
    )
    env.reset()
    worlds: Any = env.bank.worlds
    boxes = [worlds.worlds[worlds.number[int(env.state["slot"][i])]].scene.boxes for i in range(4)]
    beam = boxes[0][-1]  # 4 m along x, floating
    radius = env.cfg.collision_radius_m
    alone = torch.tensor([beam[0], beam[1] - 0.2, beam[2]])
    env.bank.tensors["count"].zero_()
    env.state["pos"][0] = alone - torch.tensor([0.0, radius - 0.002, 0.0])
    env.state["pos"][1] = torch.tensor([-4.0, 0.0, 2.0])
    out = env.step(HOVER[:4])
    assert Outcome(int(out["outcome"][0])) == Outcome.COLLISION_STATIC
    env.bank.tensors["count"].fill_(env.cfg.moving_obstacles)
    env.step(HOVER[:4])
    for gap, hit in ((0.03, False), (-0.01, True)):
        slot = int(env.state["slot"][1])
        cubes, velocity = env.bank.tensors["trail"][-1, slot], env.bank.tensors["vel"][slot]
        apart = (cubes[:, None, :2] - torch.from_numpy(boxes[1][None, :, :2])).norm(dim=-1).amin(dim=1)
        apart = torch.minimum(apart, torch.cdist(cubes, cubes).fill_diagonal_(9.0).amin(dim=1))
        j = int(torch.where((cubes[:, 2] - 3.0).abs() < 2.0, apart, 0.0).argmax())
        ahead = cubes[j] + velocity[j] * env.cfg.dt_s
        env.state["pos"][1] = ahead - torch.tensor([0.4 + radius + gap, 0.0, 0.0])
        env.state["vel"][1] = 0.0
        out = env.step(HOVER[:4])
        assert Outcome(int(out["outcome"][1])) == (Outcome.COLLISION_MOVING if hit else Outcome.RUNNING)
        if not hit:
            row = out["obs"]["dynamic_obstacle"][1, 0, 0]
            assert row[8] == pytest.approx(2.2, abs=1e-5)  # the width class of 0.8 m
            assert row[9] == 1.0
    env.close()


def test_misuse_of_a_scene_gets_one_sentence() -> None:
    for settings, sentence in (
        (
            {"world": "sando_easy", "moving_obstacles": 80},
            "the scene sando_easy has 32 movers: set env.moving_obstacles=32",
        ),
        ({"world": "sando_easy,rooms", "moving_obstacles": 0}, "name one scene alone"),
        ({"world": "fapp", "moving_obstacles": 0, "grid_map": True}, "set env.grid_map=false"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            NavigationEnv(NavigationConfig(num_envs=2, num_maps=2, **settings), num_threads=1)  # type: ignore[arg-type]
