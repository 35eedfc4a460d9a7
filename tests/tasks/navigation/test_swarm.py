"""Several drones in one world: collisions against a float64 reference, what they see of each other, and shared episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fledge
from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.envs.checker import check_tensor_env
from fledge.tasks.navigation.config import Collision, Dynamics, Layout, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics import meetings
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE

Make = Callable[..., NavigationEnv]
RADIUS, HEIGHT, DT = 0.3, 0.2, 0.016
MOVING, STATIC, SUCCESS = (int(o) for o in (Outcome.COLLISION_MOVING, Outcome.COLLISION_STATIC, Outcome.SUCCESS))
PLAIN: dict[str, Any] = {"num_maps": 1, "static_obstacles": 0, "moving_obstacles": 0, "starts": Starts.circle}
CROWDED: dict[str, Any] = {"starts": Starts.crossing, "walls": True, "static_obstacles": 200, "moving_obstacles": 40}


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes small envs and closes them after the test."""
    made: list[NavigationEnv] = []

    def build(threads: int = 2, offset: int = 0, total: int | None = None, **options: Any) -> NavigationEnv:
        cfg = NavigationConfig(**(PLAIN | {"num_envs": 8, "drones": 8} | options))
        made.append(NavigationEnv(cfg, seed=3, num_threads=threads, env_offset=offset, total_envs=total))
        return made[-1]

    yield build
    for env in made:
        env.close()


def ahead(n: int) -> Tensor:
    """Full speed along the goal frame's x axis."""
    return torch.tensor([1.0, 0.5, 0.5]).expand(n, 3).clone()


def interval(a: float, b: float, c: float) -> tuple[float, float]:
    """The interval in which a t² + b t + c <= 0, for a >= 0; (1, 0) if there is none."""
    if abs(a) < 1e-18:
        if abs(b) < 1e-18:
            return (-np.inf, np.inf) if c <= 0 else (1.0, 0.0)
        return (-np.inf, -c / b) if b > 0 else (-c / b, np.inf)
    root = b * b - 4 * a * c
    if root < 0:
        return 1.0, 0.0
    return (-b - root**0.5) / (2 * a), (-b + root**0.5) / (2 * a)


def bodies_touch(sphere: bool, was: np.ndarray, now: np.ndarray, grown: float = 0.0) -> bool:
    """Whether two drones touch while one moves from `was` to `now` relative to the other: roots of quadratics."""
    axes, reach, move = (3 if sphere else 2), 2 * RADIUS + grown, now - was
    a, b = float(move[:axes] @ move[:axes]), 2 * float(was[:axes] @ move[:axes])
    spans = [(0.0, 1.0), interval(a, b, float(was[:axes] @ was[:axes]) - reach**2)]
    if not sphere:
        spans.append(interval(move[2] ** 2, 2 * was[2] * move[2], was[2] ** 2 - (HEIGHT + grown) ** 2))
    return max(low for low, _ in spans) <= min(high for _, high in spans)


def crashes(sphere: bool, track: np.ndarray, flown: np.ndarray, crash: np.ndarray, grown: float) -> tuple[Any, Any]:
    """Outcome and number of steps flown of each drone of one world, from its track [M, D + 1, 3]."""
    crash, flown = crash.copy(), flown.copy()
    for k in range(track.shape[1] - 1):
        present = flown > k
        steps = [(track[m, k], track[m, k + 1]) for m in range(len(track))]
        for m in np.flatnonzero(present):
            others = [o for o in np.flatnonzero(present) if o != m]
            met = any(bodies_touch(sphere, steps[o][0] - steps[m][0], steps[o][1] - steps[m][1], grown) for o in others)
            if met and not (flown[m] == k + 1 and crash[m]):
                crash[m], flown[m] = MOVING, k + 1
    return crash, flown


@pytest.mark.parametrize("collision", [Collision.cylinder, Collision.sphere])
def test_collisions_between_drones_are_those_of_the_reference(make: Make, collision: Collision) -> None:
    worlds, drones, steps = 96, 5, 4
    env = make(num_envs=worlds * drones, drones=drones, decimation=steps, collision=collision)
    env.reset()
    rng = np.random.default_rng(0)
    first = rng.uniform([-1.5, -1.5, 1.0], [1.5, 1.5, 1.8], (worlds, drones, 1, 3))
    track = first + np.cumsum(rng.normal(0, 0.25, (worlds, drones, steps + 1, 3)), axis=2)
    track = track.astype(np.float32).astype(np.float64)
    flown = rng.choice([0, 1, 2, 3, 4, 4, 4], (worlds, drones))
    crash = np.where((flown > 0) & (flown < 4), rng.choice([0, STATIC], (worlds, drones)), 0)
    state = env.state
    state["track"].copy_(torch.as_tensor(track).reshape(worlds * drones, steps + 1, 3))
    state["elapsed"].copy_(torch.as_tensor(flown.ravel() * DT))
    state["step"].copy_(torch.as_tensor(100 + flown.ravel()))
    state["crash"].copy_(torch.as_tensor(crash.ravel()))
    state["reached"].copy_(torch.as_tensor(((flown > 0) & (flown < 4) & (crash == 0)).ravel()))
    env.launcher.run(env.record([meetings_call(env)]))
    found, ended = (state[name].reshape(worlds, drones).numpy() for name in ("crash", "step"))
    sure = met = 0
    for w in range(worlds):
        expected = crashes(collision is Collision.sphere, track[w], flown[w], crash[w], 0.0)
        if any(
            not np.array_equal(expected, crashes(collision is Collision.sphere, track[w], flown[w], crash[w], grown))
            for grown in (-1e-3, 1e-3)
        ):
            continue  # float32 may decide either way
        sure, met = sure + 1, met + int((expected[0] == MOVING).sum())
        np.testing.assert_array_equal(found[w], expected[0])
        np.testing.assert_array_equal(ended[w], 100 + expected[1])
        for m in np.flatnonzero(expected[0] == MOVING):
            assert np.allclose(state["pos"][w * drones + m], track[w, m, expected[1][m]])
            assert not state["reached"][w * drones + m]
    assert sure > 0.9 * worlds
    assert 50 < met < worlds * drones - 50


def meetings_call(env: NavigationEnv) -> Any:
    from fledge.envs.launch import Call

    return Call(meetings.meet, [env.params, env.drones])


def test_two_drones_that_fly_straight_at_each_other_crash_in_the_middle(make: Make) -> None:
    env = make(num_envs=2, drones=2, dynamics=Dynamics.first_order, decimation=4)
    env.reset()
    seen = 0
    for _ in range(200):
        out = env.step(ahead(2))
        seen += int((out["obs"]["dynamic_obstacle"] != 0).any())
        if out["terminated"].any():
            break
    assert out["terminated"].all()
    assert not out["truncated"].any()
    assert (out["outcome"] == MOVING).all()
    assert 3.0 < float(out["episode_length"][0]) * 4 * DT < 6.0  # 8 m each at 2 m/s, less the bodies and the start
    assert seen > 5  # they saw each other


def test_a_drone_sees_its_nearest_peers_with_their_velocities(make: Make) -> None:
    env = make(num_envs=16, drones=8, lidar_range_m=30.0)
    env.reset()
    for _ in range(40):
        out = env.step(ahead(16))
    rows = out["obs"]["dynamic_obstacle"].reshape(16, -1, DYNAMIC_OBSTACLE.width)
    pos, vel = env.state["pos"].double(), env.state["vel"].double()
    for i in range(16):
        others = [o for o in range(i // 8 * 8, i // 8 * 8 + 8) if o != i]
        flat = torch.stack([(pos[o] - pos[i])[:2].norm() for o in others])
        order = flat.argsort()[: rows.shape[1]]
        x_axis = (env.state["goal"][i] - env.state["start"][i])[:2].double()
        x, y = (x_axis / x_axis.norm()).tolist()
        turn = torch.tensor([[x, y, 0], [-y, x, 0], [0, 0, 1]], dtype=torch.float64)
        for k, n in enumerate(order.tolist()):
            o, row = others[n], rows[i, k]
            offset = pos[o] - pos[i]
            assert torch.allclose(row[DYNAMIC_OBSTACLE["horizontal_distance"]].double(), flat[n], atol=1e-4)
            unit = turn @ (offset / offset.norm())
            assert torch.allclose(row[DYNAMIC_OBSTACLE["to_obstacle"]].double().flatten(), unit, atol=1e-4)
            assert torch.allclose(row[DYNAMIC_OBSTACLE["velocity"]].double().flatten(), turn @ vel[o], atol=1e-4)
            assert row[DYNAMIC_OBSTACLE["vertical_distance"]].double() == pytest.approx(float(offset[2]), abs=1e-4)
            assert row[DYNAMIC_OBSTACLE["width_class"]] == pytest.approx(2 * RADIUS / 0.25 - 1)
            assert row[DYNAMIC_OBSTACLE["is_box"]] == 1


@pytest.mark.parametrize("blind_m", [0.0, 0.1], ids=["upright rays", "single rays"])
def test_beams_hit_other_drones(make: Make, blind_m: float) -> None:
    sensor = {"lidar_range_m": 20.0, "lidar_azimuths": 360, "lidar_elevations_deg": [0.0], "lidar_min_range_m": blind_m}
    env = make(num_envs=2, drones=2, lidar_sees_movers=True, **sensor)
    env.reset()
    env.state["pos"][:, 2] = 1.5
    out = env.reset(torch.zeros(2, dtype=torch.bool))  # observes again
    apart = float((env.state["pos"][0] - env.state["pos"][1])[:2].norm())
    hits = 20.0 - out["obs"]["lidar"].reshape(2, 360, -1)
    assert float(hits.min()) == pytest.approx(apart - RADIUS, abs=0.02)
    width = int((hits.amin(-1)[0] < 19.9).sum())
    assert abs(width - 2 * np.degrees(np.arcsin(RADIUS / apart))) <= 1.5


def test_without_broadcast_a_column_hides_a_drone(make: Make) -> None:
    counts = {}
    for broadcast in (True, False):
        env = make(
            num_envs=64, lidar_range_m=60.0, num_maps=2, broadcast=broadcast, **CROWDED | {"moving_obstacles": 0}
        )
        rows = env.reset()["obs"]["dynamic_obstacle"].reshape(64, -1, DYNAMIC_OBSTACLE.width)
        counts[broadcast] = int((rows != 0).any(-1).sum())
    assert counts[True] == 64 * rows.shape[1]
    assert 0 < counts[False] < counts[True]


def test_a_drone_that_landed_rests_until_all_have(make: Make) -> None:
    env = make(num_envs=4, drones=4, decimation=3, max_episode_steps=900)
    env.reset()
    env.state["pos"][0] = env.state["goal"][0] + torch.tensor([0.0, 0.0, 0.2])  # drone 0 is there
    out = env.step(ahead(4))
    assert env.state["reached"].tolist() == [1, 0, 0, 0]
    assert not out["terminated"].any()
    assert (out["outcome"] == 0).all()
    assert float(out["reward"][0]) > 0.0
    place, total = env.state["pos"][0].clone(), float(env.state["episode_return"][0])
    stay = torch.full((4, 3), 0.5)
    for _ in range(10_000):
        out = env.step(stay)
        if out["truncated"].any():
            break
        assert float(out["reward"][0]) == 0.0
        assert not env.reward_terms[0].any()
        assert not any(bool(out["obs"][name][0].any()) for name in ("state", "lidar", "dynamic_obstacle"))
        assert torch.equal(env.state["pos"][0], place)
    assert out["terminated"].tolist() == [True, False, False, False]
    assert out["truncated"].tolist() == [False, True, True, True]
    assert out["outcome"].tolist() == [SUCCESS] + [int(Outcome.TIMEOUT)] * 3
    assert out["episode_length"].tolist() == [300] * 4
    assert float(out["episode_return"][0]) == total
    assert out["final_obs"]["state"][1:].any()
    assert not out["final_obs"]["state"][0].any()
    assert env.state["episode"].tolist() == [1] * 4
    assert env.state["reached"].tolist() == [0] * 4


def test_a_landed_drone_is_neither_seen_nor_hit(make: Make) -> None:
    env = make(num_envs=2, drones=2, lidar_sees_movers=True)
    env.reset()
    env.state["pos"][0] = env.state["goal"][0]
    env.step(ahead(2))
    env.state["pos"][1] = env.state["pos"][0]
    out = env.step(ahead(2))
    assert int(env.state["crash"][1]) == 0
    assert not out["obs"]["dynamic_obstacle"][1].any()
    assert not out["obs"]["lidar"][1].any()


@pytest.mark.parametrize("starts", [Starts.circle, Starts.streams, Starts.corridor])
@pytest.mark.parametrize("drones", [2, 7, 32])
def test_formations_start_apart_and_in_the_free(make: Make, starts: Starts, drones: int) -> None:
    layout = Layout.arena if starts is Starts.corridor else Layout.forest
    env = make(num_envs=2 * drones, drones=drones, starts=starts, layout=layout)
    env.reset()
    for _ in range(3):
        start, goal = (env.state[name].reshape(2, drones, 3) for name in ("start", "goal"))
        for world in range(2):
            apart = torch.cdist(start[world], start[world]) + 99 * torch.eye(drones)
            assert apart.min() > 1.2
            assert (goal - start)[world].norm(dim=-1).min() > 14.0
        assert not torch.equal(start[0], start[1])
        assert start.abs().max() < 24.0
        assert (start[..., 2] - 1.5).abs().max() <= 0.11
        if starts is Starts.corridor:
            assert start[..., 0].abs().max() < 6.0
            assert start[..., 1].abs().max() < 17.0
        out = env.step(ahead(2 * drones))
        assert not out["terminated"].any()
        assert not env.state["crash"].any()
        env.reset()


def test_results_do_not_depend_on_threads_or_ranks(make: Make) -> None:
    options = {
        "drones": 4,
        "decimation": 2,
        "num_maps": 3,
        "speed_limit": 20.0,
        "dynamics": Dynamics.first_order,
    } | CROWDED
    options["max_episode_steps"] = 60
    whole = make(threads=1, num_envs=24, **options)
    threads = make(threads=5, num_envs=24, **options)
    parts = [make(num_envs=12, offset=k * 12, total=24, **options) for k in range(2)]
    first = [env.reset() for env in (whole, threads, *parts)]
    assert torch.equal(first[0]["obs"]["state"], first[1]["obs"]["state"])
    ends = 0
    for t in range(60):
        action = torch.rand(24, 3, generator=torch.Generator().manual_seed(t // 5))
        outs = [
            env.step(a)
            for env, a in zip((whole, threads, *parts), (action, action, action[:12], action[12:]), strict=True)
        ]
        joined = torch.cat(outs[2:])
        ends += int((outs[0]["outcome"] > 0).sum())
        for other in (outs[1], joined):
            for name in ("reward", "terminated", "truncated", "outcome"):
                assert torch.equal(outs[0][name], other[name]), name
            for name in whole.observation_spec:
                assert torch.equal(outs[0]["obs"][name], other["obs"][name]), name
    assert ends > 10


def test_the_env_keeps_the_contract() -> None:
    def build(num_envs: int, seed: int) -> NavigationEnv:
        options = PLAIN | {"speed_limit": 30.0, "dynamics": Dynamics.first_order, "max_episode_steps": 40}
        return NavigationEnv(NavigationConfig(num_envs=num_envs, drones=4, **options), seed=seed, num_threads=2)

    check_tensor_env(build, num_envs=16, steps=60)


def test_num_envs_of_make_env_counts_before_the_settings_are_checked() -> None:
    with contextlib.closing(fledge.make_env("navigation", 6, preset="swarm", drones=3, num_maps=1)) as env:
        assert env.num_envs == 6
    with pytest.raises(ConfigError, match=r"env\.num_envs is 10, .*set env\.num_envs=12"):
        fledge.make_env("navigation", 10, preset="swarm", drones=3)


def test_pettingzoo_has_one_agent_for_each_drone() -> None:
    pytest.importorskip("pettingzoo")
    from fledge.pettingzoo import parallel_env

    env = parallel_env("navigation", preset="swarm", drones=3, max_episode_steps=30, seed=2)
    observations, _ = env.reset()
    assert list(observations) == env.agents == ["p1", "p2", "p3"]
    for _ in range(100):
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations, rewards, terminated, truncated, infos = env.step(actions)
        assert set(rewards) == {"p1", "p2", "p3"}
        if not env.agents:
            break
    assert all(truncated.values())
    assert not any(terminated.values())
    assert infos["p3"]["outcome"] == "timeout"
    env.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_envs": 12}, "must be a multiple of env.drones=8.*env.num_envs=16"),
        ({"starts": Starts.edges}, "choose one of crossing, circle, streams, corridor"),
        ({"success_ends_episode": False}, "success_ends_episode=true"),
        ({"fresh_maps": True}, "set env.fresh_maps=false"),
        ({"starts": Starts.corridor}, "layout=arena"),
    ],
)
def test_settings_that_do_not_fit_several_drones_are_refused(options: dict[str, Any], sentence: str) -> None:
    cfg = NavigationConfig(**(PLAIN | {"num_envs": 8, "drones": 8} | options))
    with pytest.raises(ConfigError, match=sentence):
        check_settings(cfg, "env.")
