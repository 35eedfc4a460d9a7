"""LiDAR scans, odometry, wind, command delay and controller gains, each against a twin env or a plain NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.tasks.navigation.config import ActionForm, Dynamics, NavigationConfig, RandomizeConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.quadrotor import ROTOR_FILTER
from tests.tasks.navigation.perception.hand import at_rest, look, rows, seen, stage

Make = Callable[..., NavigationEnv]
EMPTY: dict[str, Any] = {"static_obstacles": 0, "moving_obstacles": 8, "num_maps": 1}


def turn(v: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Vectors [N, 3] turned about z, counter-clockwise."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * v[:, 0] - s * v[:, 1], s * v[:, 0] + c * v[:, 1], v[:, 2]], axis=1)


# ---- LiDAR -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decimation", [1, 3])
@pytest.mark.parametrize(("every", "late"), [(4, 0), (1, 3), (3, 4)])
def test_scans_are_those_of_a_perfect_twin_held_and_delivered_late(
    make: Make, decimation: int, every: int, late: int
) -> None:
    options = {"speed_limit": 40.0, "max_episode_steps": 20 * decimation + 1, "decimation": decimation}
    options |= {"starts": Starts.mixed}
    decision_s = 0.016 * decimation
    env = make(options, lidar_period_s=every * decision_s, lidar_delay_s=late * decision_s)
    twin = make(options)
    generator = torch.Generator().manual_seed(1)
    given, true = env.reset()["obs"]["lidar"], twin.reset()["obs"]["lidar"]
    scans = [[true[i].clone()] for i in range(16)]  # of every drone's episode, one for each decision
    ends, held = 0, 0

    def expected(i: int) -> torch.Tensor:
        return scans[i][max(len(scans[i]) - 1 - late, 0) // every * every]

    for _ in range(60):
        for i in range(16):
            assert torch.equal(given[i], expected(i))
            held += not torch.equal(given[i], scans[i][-1])
        action = torch.rand(16, 3, generator=generator)
        out, plain = env.step(action), twin.step(action)
        assert torch.equal(out["reward"], plain["reward"])
        given, true = out["obs"]["lidar"], plain["obs"]["lidar"]
        over = out["terminated"] | out["truncated"]
        for i in range(16):
            scans[i].append((plain["final_obs"]["lidar"] if over[i] else true)[i].clone())
            if over[i]:
                assert torch.equal(out["final_obs"]["lidar"][i], expected(i))
                scans[i] = [true[i].clone()]
                ends += 1
    assert ends > 30
    assert held > 100


def test_lidar_noise_grows_with_the_squared_distance(make: Make) -> None:
    options: dict[str, Any] = {"num_envs": 256, "static_obstacles": 350, "starts": Starts.mixed, "inside_share": 1.0}
    clean = make(options).reset()["obs"]["lidar"]
    noisy = make({**options, "randomize": RandomizeConfig(lidar_noise_m=0.01, lidar_noise_per_m2=0.01)})
    error, away = noisy.reset()["obs"]["lidar"] - clean, 4.0 - clean
    for low, high in ((0.8, 1.2), (1.8, 2.2), (2.8, 3.2)):
        there = (clean > 0) & (away > low) & (away < high)
        assert there.sum() > 200
        expected = 0.01 + 0.01 * float((away[there] ** 2).mean())
        assert error[there].std().item() == pytest.approx(expected, rel=0.15), low
    assert not error[clean == 0].any()


# ---- odometry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decimation", [1, 4])
def test_odometry_walks_at_random_with_the_set_deviation_after_a_minute(make: Make, decimation: int) -> None:
    env = make({**EMPTY, "num_envs": 1024, "decimation": decimation}, drift_m=2.0, drift_yaw_deg=10.0)
    env.reset()
    assert not env.state["drift"].any()
    steps = 48 // decimation
    for _ in range(steps):
        env.step(at_rest(1024))
    root = np.sqrt(steps * decimation * 0.016 / 60)
    sigma = env.state["drift"].double().std(dim=0).numpy() / root
    np.testing.assert_allclose(sigma, [2.0, 2.0, 2.0, np.radians(10.0)], rtol=0.08)
    assert abs(np.corrcoef(env.state["drift"].numpy().T) - np.eye(4)).max() < 0.1


def test_the_estimate_sums_up_the_true_motion_along_the_wrong_heading(make: Make) -> None:
    env = make(
        {"decimation": 3, "moving_obstacles": 0, "static_obstacles": 0, "max_height_m": 50.0}, drift_yaw_deg=90.0
    )
    env.reset()
    estimate = env.state["pos"].double().numpy()
    generator = torch.Generator().manual_seed(2)
    for _ in range(40):
        before, heading = env.state["pos"].double().numpy(), env.state["drift"][:, 3].double().numpy()
        env.step(0.5 + 0.5 * torch.rand(16, 3, generator=generator))
        assert (env.state["step"] > 0).all()
        estimate = estimate + turn(env.state["pos"].double().numpy() - before, heading)
        drift = env.state["drift"].double().numpy()
        np.testing.assert_allclose(env.state["pos"].double().numpy() + drift[:, :3], estimate, atol=2e-4)
    assert np.abs(drift[:, :2]).max() > 0.1


def test_goal_velocity_pose_and_movers_are_wrong_consistently(make: Make) -> None:
    env = make({**EMPTY, "pose": True}, drift_m=1e-6, drift_yaw_deg=1e-6)
    stage(env, [(2.0, 1.0)], [5])
    env.state["vel"].copy_(torch.tensor([1.0, 0.5, -0.2]).expand(16, 3))
    env.bank.tensors["vel"][:, 0] = torch.tensor([0.0, 1.0, 0.0])
    error, yaw = np.array([0.3, -0.2, 0.1]), 0.25
    env.state["drift"].copy_(torch.tensor([*error, yaw]).expand(16, 4))
    obs = {name: value[0].double().numpy() for name, value in look(env).items()}
    to_goal = np.array([20.0, 0.0, 0.0]) - error  # the goal frame is the world's here
    np.testing.assert_allclose(obs["state"][:3], to_goal / np.linalg.norm(to_goal), atol=1e-5)
    np.testing.assert_allclose(obs["state"][3:5], [np.hypot(*to_goal[:2]), to_goal[2]], atol=1e-5)
    angle = np.array([yaw])
    np.testing.assert_allclose(obs["state"][5:], turn(np.array([[1.0, 0.5, -0.2]]), angle)[0], atol=1e-6)
    np.testing.assert_allclose(obs["pose"], [2.1, yaw], atol=1e-6)
    row = obs["dynamic_obstacle"][0, 0]
    np.testing.assert_allclose(row[:3], turn(np.array([[2.0, 1.0, 0.0]]) / np.sqrt(5), angle)[0], atol=1e-6)
    np.testing.assert_allclose(row[5:8], turn(np.array([[0.0, 1.0, 0.0]]), angle)[0], atol=1e-6)
    np.testing.assert_allclose(obs["direction"][0], [20.0, 0.0, 0.0])


@pytest.mark.parametrize("form", ActionForm)
def test_commands_are_flown_in_the_estimated_frame(make: Make, form: ActionForm) -> None:
    env = make({**EMPTY, "action_form": form}, drift_yaw_deg=1e-6)
    stage(env, [], [])
    env.state["drift"].copy_(torch.tensor([0.0, 0.0, 0.5, 0.4]).expand(16, 4))
    ahead = torch.tensor([1.0, 0.5, 0.5]).expand(16, 3) if form is ActionForm.velocity else torch.zeros(16).long()
    state = env.step(ahead)["obs"]["state"]
    vel = env.state["vel"][0].double().numpy()
    assert np.arctan2(vel[1], vel[0]) == pytest.approx(-0.4, abs=1e-4)
    np.testing.assert_allclose(state[0, 6], 0.0, atol=1e-5)  # and by its own estimate it flies straight ahead
    assert (vel[2] < 0) == (form is ActionForm.headings)  # it believes that it flies 0.5 m above the goal's height


# ---- wind, delay, gains --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decimation", [1, 3])
def test_gusts_are_an_ornstein_uhlenbeck_process_with_a_strength_per_episode(make: Make, decimation: int) -> None:
    wind = RandomizeConfig(wind_m_s2=2.0, gust_s=0.4)
    options = {**EMPTY, "moving_obstacles": 0, "num_envs": 1024, "decimation": decimation, "randomize": wind}
    env = make({**options, "speed_limit": 1e-3})
    env.reset()
    filmed = [env.state["wind"].double().numpy()]
    for _ in range(96 // decimation):
        env.step(at_rest(1024))
        filmed.append(env.state["wind"].double().numpy())
    series = np.stack(filmed)
    for part in (series[0], series[-1]):  # stationary from the beginning; strengths are uniform from 0 to 2
        np.testing.assert_allclose((part**2).mean(axis=0), 4 / 3 * np.array([1, 1, 0.25]), rtol=0.2)
    lag = 24 // decimation
    pairs = (series[:-lag] * series[lag:]).mean(axis=(0, 1)) / (series**2).mean(axis=(0, 1))
    np.testing.assert_allclose(pairs, np.exp(-24 * 0.016 / 0.4), atol=0.05)
    strength = np.sqrt((series**2).mean(axis=(0, 2)) / 0.75)
    assert strength.min() < 0.15
    assert strength.max() > 1.6


@pytest.mark.parametrize("dynamics", [Dynamics.lee, Dynamics.first_order])
def test_wind_pushes_the_drone_by_its_acceleration(make: Make, dynamics: Dynamics) -> None:
    wind = RandomizeConfig(wind_m_s2=2.0)
    env = make({**EMPTY, "moving_obstacles": 0, "randomize": wind, "dynamics": dynamics})
    calm = make({**EMPTY, "moving_obstacles": 0, "dynamics": dynamics})
    env.reset()
    calm.reset()
    env.step(at_rest(16))
    calm.step(at_rest(16))
    pushed = (env.state["vel"] - calm.state["vel"]).numpy()
    np.testing.assert_allclose(pushed, env.state["wind"].numpy() * 0.016 * 0.9968, atol=1e-5)
    assert np.abs(pushed).max() > 0.01


@pytest.mark.parametrize("decimation", [1, 3, 4])
def test_commands_are_delayed_by_exactly_the_drawn_physics_steps(make: Make, decimation: int) -> None:
    n, delay = 64, RandomizeConfig(latency_steps=6, latency_min_steps=2)
    env = make({**EMPTY, "moving_obstacles": 0, "num_envs": n, "decimation": decimation, "randomize": delay})
    env.reset()
    latency = env.state["latency"].numpy()
    assert set(latency.tolist()) == {2, 3, 4, 5, 6}
    generator = torch.Generator().manual_seed(3)
    frame = (env.state["goal"] - env.state["start"]).double().numpy()[:, :2]
    angle = np.arctan2(frame[:, 1], frame[:, 0])
    commands: list[np.ndarray] = []  # world, one for each physics step
    vel = np.zeros((n, 3))
    for _ in range(8):
        action = torch.rand(n, 3, generator=generator)
        commands += [turn(4.0 * action.double().numpy() - 2.0, angle)] * decimation
        for t in range(len(commands) - decimation, len(commands)):
            late = [commands[t - d][i] if t >= d else np.zeros(3) for i, d in enumerate(latency)]
            vel = (vel + 0.016 * 2.2 * (np.array(late) - vel)) * 0.9968
        env.step(action)
        np.testing.assert_allclose(env.state["vel"].numpy(), vel, atol=1e-5)


def test_a_smallest_delay_above_the_largest_is_refused() -> None:
    with pytest.raises(ConfigError, match="latency_min_steps is 3, but must be at most"):
        NavigationEnv(NavigationConfig(num_envs=2, num_maps=1, randomize=RandomizeConfig(latency_min_steps=3)))


@pytest.mark.parametrize(
    ("field", "column"), [("velocity_gain", 0), ("attitude_gain", 1), ("drag", 2), ("rotor_lag", 3)]
)
def test_gains_drag_and_rotor_lag_vary_by_their_share_and_change_the_flight(
    make: Make, field: str, column: int
) -> None:
    options: dict[str, Any] = {**EMPTY, "num_envs": 1024, "max_episode_steps": 20, "dynamics": Dynamics.lee}
    env, plain = make({**options, "randomize": RandomizeConfig(**{field: 0.4})}), make(options)
    env.reset()
    plain.reset()
    tuning = env.state["tuning"].double().numpy()
    nominal = np.array([1.0, 1.0, 1.0, ROTOR_FILTER])
    others = [k for k in range(4) if k != column]
    np.testing.assert_allclose(tuning[:, others], np.tile(nominal[others], (1024, 1)), rtol=1e-6)
    factor = tuning[:, column]
    if field == "rotor_lag":  # time constant: what is left after a step is exp(-dt / tau)
        factor = np.log(1 - 0.43) / np.log(1 - factor)
    assert factor.min() == pytest.approx(0.6, abs=0.02)
    assert factor.max() == pytest.approx(1.4, abs=0.02)
    assert factor.mean() == pytest.approx(1.0, abs=0.025)
    ahead = torch.tensor([1.0, 0.5, 0.6]).expand(1024, 3)
    for _ in range(19):
        out, other = env.step(ahead), plain.step(ahead)
    assert (out["obs"]["state"] - other["obs"]["state"]).abs().max() > 1e-4
    env.step(ahead)
    assert not np.array_equal(env.state["tuning"].double().numpy(), tuning)  # a new episode


def test_ghosts_and_losses_do_not_depend_on_what_else_is_random(make: Make) -> None:
    options = {**EMPTY, "moving_obstacles": 16, "starts": Starts.mixed, "inside_share": 1.0}
    alone, both = make(options, ghosts=1.0), make(options, ghosts=1.0, miss_rate=0.9, drift_m=1.0)
    for _ in range(3):
        alone.reset()
        both.reset()
        assert torch.equal(alone.fault_state["ghost_pos"], both.fault_state["ghost_pos"])
    assert seen(look(alone)).sum() > seen(look(both)).sum()
    assert rows(look(alone)).isfinite().all()
