"""An env with every fault keeps the contract of an env, and what counts as truth stays true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from fledge.core.errors import ConfigError
from fledge.envs.checker import check_tensor_env
from fledge.tasks.navigation.config import (
    Dynamics,
    NavigationConfig,
    RandomizeConfig,
    RewardConfig,
    RewardKind,
    Starts,
)
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.perception.config import PerceptionConfig
from fledge.tasks.navigation.physics.quadrotor import ROTOR_FILTER

Make = Callable[..., NavigationEnv]
ALL: dict[str, Any] = vars(
    PerceptionConfig(
        vary=0.5, miss_rate=0.3, lose_rate=1.0, lose_s=0.1, ghosts=1.0, ghost_s=0.2, mover_period_s=0.05,
        mover_delay_s=0.1, position_noise=0.1, velocity_noise=0.2, size_error=0.3, occlusion=True, view_deg=200.0,
        lidar_period_s=0.1, lidar_delay_s=0.05, drift_m=2.0, drift_yaw_deg=20.0,
    )
)  # fmt: skip
SEEN = {**ALL, "drift_yaw_deg": 0.0}  # changes what is read, never how the drone flies
SHAKEN = RandomizeConfig(
    mass=0.2, drag=0.3, velocity_gain=0.2, attitude_gain=0.2, rotor_lag=0.3, wind_m_s2=2.0, latency_steps=4,
    lidar_noise_m=0.02, lidar_noise_per_m2=0.01, lidar_dropout=0.1, state_noise=0.05,
)  # fmt: skip
NOISE = RandomizeConfig(0.2, 0.2, 0.3, latency_steps=4, lidar_noise_m=0.1, lidar_dropout=0.1, state_noise=0.1)
FAST: dict[str, Any] = {"speed_limit": 60.0, "max_episode_steps": 20, "randomize": SHAKEN, "starts": Starts.mixed}
MAPS: dict[str, dict[str, Any]] = {"lasting": {}, "new": {"map_refresh_steps": 7}, "fresh": {"fresh_maps": True}}
every_kind_of_maps = pytest.mark.parametrize("maps", MAPS.values(), ids=MAPS)


def actions(n: int) -> torch.Tensor:
    return torch.rand(n, 64, 3, generator=torch.Generator().manual_seed(5))


def fly(env: NavigationEnv, steps: range, rows: slice = slice(0, 16)) -> list[TensorDict]:
    script = actions(200)
    return [env.step(script[t, rows]) for t in steps]


def assert_same(a: list[TensorDict], b: list[TensorDict]) -> None:
    for t, (x, y) in enumerate(zip(a, b, strict=True)):
        for key in x.keys(True, True):
            assert torch.equal(x[key], y[key]), f"{key} differs after {t} steps"


@every_kind_of_maps
def test_flights_are_bit_identical_for_1_2_and_8_threads(make: Make, maps: dict[str, Any]) -> None:
    films = []
    for threads in (1, 2, 8):
        env = make({**FAST, **maps, "decimation": 2, "plan": True}, threads=threads, **ALL)
        films.append([env.reset(), *fly(env, range(25))])
    assert sum(int(r["terminated"].sum() + r["truncated"].sum()) for r in films[0]) > 20
    assert_same(films[0], films[1])
    assert_same(films[0], films[2])


def test_one_env_of_32_flies_like_two_envs_of_16(make: Make) -> None:
    whole = make({**FAST, "num_envs": 32}, **ALL)
    films = [whole.reset(), *fly(whole, range(40), slice(0, 32))]
    for offset in (0, 16):
        part, rows = make(FAST, place=(offset, 32), **ALL), slice(offset, offset + 16)
        assert_same([r[rows] for r in films], [part.reset(), *fly(part, range(40), rows)])


@every_kind_of_maps
def test_a_saved_state_continues_bit_for_bit_here_and_in_another_env(make: Make, maps: dict[str, Any]) -> None:
    options = {**FAST, **maps, "decimation": 2}
    env, other = make(options, **ALL), make(options, **ALL)
    env.reset()
    fly(env, range(33))
    state = env.state_dict()
    expected = fly(env, range(33, 70))
    for target in (other, env):
        target.load_state_dict(state)
        assert_same(expected, fly(target, range(33, 70)))
    for name in env.fault_state:  # each part of the state is needed
        assert f"fault_{name}" in state["drones"]


def test_a_state_of_an_older_release_loads_with_nominal_drones(make: Make) -> None:
    env = make()
    env.reset()
    fly(env, range(5))
    state = env.state_dict()
    expected = fly(env, range(5, 10))
    for name in ("tuning", "wind", "drift", "gap"):
        del state["drones"][name]
    other = make()
    other.load_state_dict(state)
    assert torch.equal(other.state["tuning"], torch.tensor([1.0, 1.0, 1.0, ROTOR_FILTER]).expand(16, 4))
    assert_same(expected, fly(other, range(5, 10)))


def test_a_masked_reset_leaves_the_faults_of_other_drones_alone(make: Make) -> None:
    env, twin = make(FAST, **ALL), make(FAST, **ALL)
    mask = torch.arange(16) % 3 == 0
    for each in (env, twin):
        each.reset()
        last = fly(each, range(15))[-1]
    result = env.reset(mask)
    for key, value in result["obs"].items():
        assert torch.equal(value[~mask], last["obs"][key][~mask]), key
    assert not env.state["drift"][mask].any()
    assert_same([r[~mask] for r in fly(env, range(15, 45))], [r[~mask] for r in fly(twin, range(15, 45))])


@pytest.mark.parametrize("decimation", [1, 3])
def test_the_checker_finds_no_broken_rule(decimation: int) -> None:
    def navigation(steps: int) -> Callable[..., NavigationEnv]:
        def make(num_envs: int, seed: int) -> NavigationEnv:
            small: dict[str, Any] = {"num_maps": 2, "static_obstacles": 60, "moving_obstacles": 16, "pose": True}
            small |= {"randomize": SHAKEN, "perception": PerceptionConfig(**ALL), "decimation": decimation}
            cfg = NavigationConfig(num_envs=num_envs, max_episode_steps=steps * decimation, **small)
            return NavigationEnv(cfg, seed=seed, num_threads=2)

        return make

    assert check_tensor_env(navigation(20), steps=48, make_longer=navigation(400)).truncated > 0


@pytest.mark.parametrize("kind", RewardKind)
def test_rewards_outcomes_and_clearances_are_those_of_perfect_perception(make: Make, kind: RewardKind) -> None:
    options = {"starts": Starts.mixed, "inside_share": 1.0, "reward": RewardConfig(kind=kind), "speed_limit": 8.0}
    options |= {
        "decimation": 2,
        "max_episode_steps": 60,
        "moving_obstacles": 80,
        "num_envs": 64,
        "lidar_sees_movers": True,
    }
    env, perfect = (
        make({**options, "randomize": RandomizeConfig(lidar_noise_m=0.1, lidar_dropout=0.2)}, **SEEN),
        make(options),
    )
    first = [env.reset(), perfect.reset()]
    assert not torch.equal(first[0]["obs"]["lidar"], first[1]["obs"]["lidar"])
    for t in range(60):
        action = actions(200)[t]
        out, plain = env.step(action), perfect.step(action)
        for key in ("reward", "terminated", "truncated", "outcome", "episode_return", "episode_length"):
            assert torch.equal(out[key], plain[key]), f"{key} at {t}"
        assert torch.equal(env.reward_terms, perfect.reward_terms)
        assert torch.equal(env.state["gap"], perfect.state["gap"])
        for name in ("state", "dynamic_obstacle", "lidar"):
            assert not torch.equal(out["obs"][name], plain["obs"][name]), name


def test_clearance_is_the_distance_to_the_nearest_observed_surface_of_a_perfect_drone(make: Make) -> None:
    env = make({"num_envs": 256, "starts": Starts.mixed, "inside_share": 1.0, "moving_obstacles": 80})
    obs = env.reset()["obs"]
    columns = 4.0 - obs["lidar"].flatten(1).amax(dim=1)
    rows = obs["dynamic_obstacle"][:, 0]
    away = torch.cat([rows[..., 3:5]], dim=-1).norm(dim=-1) - 0.125 * (rows[..., 8] + 1)
    movers = torch.where(rows[..., 3] > 0, away, 4.0).amin(dim=1)
    torch.testing.assert_close(env.state["gap"], torch.minimum(columns, movers))


def test_faults_that_never_show_change_no_bit(make: Make) -> None:
    options = {"starts": Starts.mixed, "inside_share": 1.0, "decimation": 3, "plan": True, "pose": True}
    options |= {"moving_obstacles": 80, "num_envs": 64, "max_episode_steps": 90}
    env, plain = make(options, view_deg=359.99), make(options)
    assert env.faults is not None
    assert plain.faults is None
    assert_same(
        [env.reset(), *fly(env, range(40), slice(0, 64))], [plain.reset(), *fly(plain, range(40), slice(0, 64))]
    )


SUMS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "plain": (
        {"starts": Starts.crossing, "walls": True},
        {
            "state": 11005.276,
            "lidar": 1124.4308,
            "direction": 13138.544,
            "dynamic_obstacle": 0.0,
            "reward": 0.038555145,
        },
    ),
    "noisy": (
        {"decimation": 3, "randomize": NOISE, "lidar_sees_movers": True, "starts": Starts.mixed},
        {
            "state": 9053.05,
            "lidar": 1397.5902,
            "direction": 11317.222,
            "dynamic_obstacle": 222.05957,
            "reward": 0.84590875,
        },
    ),
    "first order": (
        {"dynamics": Dynamics.first_order, "starts": Starts.mixed, "plan": True, "decimation": 2},
        {
            "state": 9001.7388,
            "lidar": 1572.412,
            "direction": 11317.222,
            "dynamic_obstacle": 222.99317,
            "reward": 0.63515282,
        },
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_without_faults_flights_are_those_of_the_release_before_faults(make: Make, name: str) -> None:
    """Sums of observations and rewards over a short flight, recorded when the env had no faults (then equal in every bit)."""
    options, expected = SUMS[name]
    env = make({"dynamics": Dynamics.lee, **options})
    generator, results = torch.Generator().manual_seed(1), [env.reset()]
    for _ in range(12):
        results.append(env.step(torch.rand(16, 3, generator=generator)))
    found = {
        key: sum(float(r["obs"][key].double().abs().sum()) for r in results) for key in expected if key != "reward"
    }
    found["reward"] = sum(float(r["reward"].double().abs().sum()) for r in results[1:])
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_occupancy_grid_cannot_be_faulty() -> None:
    cfg = NavigationConfig(num_envs=2, grid_map=True, perception=PerceptionConfig(ghosts=0.1))
    with pytest.raises(ConfigError, match=r"set env\.grid_map=false"):
        NavigationEnv(cfg)
    assert not PerceptionConfig(vary=1.0, lose_s=3.0, ghost_s=3.0).active
