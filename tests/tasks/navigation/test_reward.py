"""Rewards: NavRL's recomputed in NumPy from what the policy saw, and the progress reward worked out by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import NavigationConfig, RewardConfig, RewardKind
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.tasks.navigation.rewards import NUMBERS, TERMS, RewardTerm

DT = 0.016
MakeEnv = Callable[..., NavigationEnv]


@pytest.fixture
def make_env() -> Iterator[MakeEnv]:
    made: list[NavigationEnv] = []

    def make(seed: int = 0, **settings: object) -> NavigationEnv:
        made.append(NavigationEnv(NavigationConfig(**{"num_maps": 4, **settings}), seed=seed))
        made[-1].reset()
        return made[-1]

    yield make
    for env in made:
        env.close()


# ---- NavRL's reward ------------------------------------------------------------------------------------------------


def navrl_reward(obs: dict[str, np.ndarray], start_z: np.ndarray, goal_z: np.ndarray, height: float) -> np.ndarray:
    """1 + speed towards the goal + mean log of beams + mean log of obstacles - height penalty, from the observation."""
    state = obs["state"].astype(np.float64)
    towards = (state[:, :3] * state[:, 5:8]).sum(-1)
    beams = np.log(np.maximum(4.0 - obs["lidar"].reshape(len(state), -1), 1e-6)).mean(-1)
    rows = obs["dynamic_obstacle"][:, 0].astype(np.float64)
    present = (rows != 0).any(-1)
    gap = np.hypot(rows[..., 3], rows[..., 4]) - 0.125 * (rows[..., 8] + 1)
    obstacles = np.log(np.where(present, np.clip(gap, 1e-6, 4.0), 4.0)).mean(-1)
    z = goal_z - state[:, 4]
    low, high = np.minimum(start_z, goal_z) - 0.2, np.maximum(start_z, goal_z) + 0.2
    outside = np.maximum(np.maximum(low - z, z - high), 0)
    return 1 + towards + beams + obstacles - height * outside**2


def spread_out(env: NavigationEnv, rng: np.random.Generator) -> None:
    """Put every drone next to a moving obstacle of its map, at speed, so that all terms of the reward matter."""
    n = env.num_envs
    crowd = env.bank.tensors["trail"][-1][env.state["slot"].long()].numpy()
    beside = crowd[np.arange(n), rng.integers(0, crowd.shape[1], n)] + rng.uniform(-2, 2, (n, 3))
    beside[:, 2] = rng.uniform(0.4, 3.8, n)
    env.state["pos"].copy_(torch.as_tensor(beside))
    env.state["vel"].copy_(torch.as_tensor(rng.uniform(-2, 2, (n, 3))))


@pytest.mark.parametrize("floating", [True, False])
def test_navrl_reward_follows_from_the_observation_and_the_height_band(make_env: MakeEnv, floating: bool) -> None:
    reward = RewardConfig(kind=RewardKind.navrl, height=8.0)
    env = make_env(num_envs=256, success_ends_episode=False, reward=reward, floating_boxes=floating)
    rng = np.random.default_rng(1)
    out = env.make_buffers()
    spread_out(env, rng)
    seen = {"ended": 0, "obstacles": 0, "hits": 0, "outside": 0}
    for _ in range(25):
        start_z, goal_z = (env.state[k][:, 2].numpy().astype(np.float64) for k in ("start", "goal"))
        env.step(torch.as_tensor(rng.random((256, 3)), dtype=torch.float32), out=out)
        ended = (out["terminated"] | out["truncated"]).numpy()
        pick = {k: (out["obs"][k].numpy(), out["final_obs"][k].numpy()) for k in ("state", "lidar", "dynamic_obstacle")}
        obs = {k: np.where(ended.reshape(-1, *[1] * (a.ndim - 1)), b, a) for k, (a, b) in pick.items()}
        expected = navrl_reward(obs, start_z, goal_z, 8.0)
        np.testing.assert_allclose(out["reward"].numpy(), expected, atol=3e-5)
        seen["ended"] += ended.sum()
        seen["obstacles"] += (obs["dynamic_obstacle"] != 0).any(-1).sum()
        seen["hits"] += (obs["lidar"] > 0).sum()
        seen["outside"] += (np.abs(expected - navrl_reward(obs, start_z, goal_z, 0.0)) > 0.01).sum()
    assert min(seen.values()) > 50, seen


def test_navrl_reward_in_empty_space_at_rest_is_one_plus_two_logs_of_the_range(make_env: MakeEnv) -> None:
    reward = RewardConfig(kind=RewardKind.navrl, height=8.0)
    env = make_env(num_envs=8, static_obstacles=0, moving_obstacles=0, reward=reward)
    env.state["pos"][:, 2] = env.state["start"][:, 2] = env.state["goal"][:, 2] = 2.0  # the ground is out of reach
    out = env.step(torch.full((8, 3), 0.5))
    np.testing.assert_allclose(out["reward"].numpy(), 1 + 2 * np.log(4.0), atol=1e-4)


def test_navrl_reward_deducts_nothing_for_a_crash_but_ends_the_episode(make_env: MakeEnv) -> None:
    reward = RewardConfig(kind=RewardKind.navrl, height=8.0, crash=1000.0)
    env = make_env(num_envs=1, static_obstacles=0, moving_obstacles=0, reward=reward)
    env.state["start"][0, 2] = env.state["goal"][0, 2] = 3.95
    env.state["pos"][0, 2] = 3.999
    env.state["vel"][0, 2] = 1.0
    out = env.step(torch.tensor([[0.5, 0.5, 1.0]]))
    assert out["terminated"].all()
    assert int(out["outcome"]) == Outcome.OUT_OF_BOUNDS
    assert float(out["reward"]) == pytest.approx(1 + 2 * np.log(4.0), abs=0.05)


# ---- progress reward -----------------------------------------------------------------------------------------------

QUIET = {"height": 0.0, "near": 0.0, "crash": 0.0, "success": 0.0, "time": 0.0}


def straight_flight(make_env: MakeEnv, decimation: int = 5, movers: int = 0, **weights: float) -> NavigationEnv:
    """One drone at (0, 0, 2) flying at 2 m/s along +x towards a goal at (20, 0, 2), with only these reward terms."""
    reward = RewardConfig(**{**QUIET, **weights})
    env = make_env(num_envs=1, static_obstacles=0, moving_obstacles=movers, decimation=decimation, reward=reward)
    env.state["start"][0] = torch.tensor([-20.0, 0.0, 2.0])
    env.state["goal"][0] = torch.tensor([20.0, 0.0, 2.0])
    env.state["pos"][0] = torch.tensor([0.0, 0.0, 2.0])
    env.state["vel"][0] = torch.tensor([2.0, 0.0, 0.0])
    env.state["quat"][0] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    return env


def fly(env: NavigationEnv) -> tuple[float, np.ndarray, Outcome]:
    """Reward of one decision straight ahead, the position before it, and the outcome."""
    before = env.state["pos"][0].numpy().copy()
    out = env.step(torch.tensor([[1.0, 0.5, 0.5]]))
    return float(out["reward"]), before, Outcome(int(out["outcome"]))


def test_progress_pays_the_metres_gained_towards_the_goal(make_env: MakeEnv) -> None:
    env = straight_flight(make_env)
    env.state["pos"][0, 1] = 9.0  # a goal that is not straight ahead
    goal = env.state["goal"][0].numpy().copy()
    reward, before, _ = fly(env)
    after = env.state["pos"][0].numpy()
    gained = np.linalg.norm(goal - before) - np.linalg.norm(goal - after)
    assert 0.1 < gained < 0.16
    assert reward == pytest.approx(gained, abs=1e-5)


def test_flying_away_from_the_goal_costs_as_much_as_flying_towards_it_pays(make_env: MakeEnv) -> None:
    env = straight_flight(make_env)
    there, _, _ = fly(env)
    env = straight_flight(make_env)
    env.state["vel"][0, 0] = -2.0
    back = float(env.step(torch.tensor([[0.0, 0.5, 0.5]]))["reward"])
    assert there > 0.14
    assert back == pytest.approx(-there, rel=0.01)


def test_height_costs_its_weight_times_square_metres_outside_the_band_per_second(make_env: MakeEnv) -> None:
    gained, _, _ = fly(straight_at_height(make_env, 3.0, height=0.0))
    reward, _, _ = fly(straight_at_height(make_env, 3.0, height=2.0))
    # the band ends at 2.2 m; the drone stays within a centimetre of 3.0 m for five steps
    assert gained - reward == pytest.approx(2.0 * 0.8**2 * 5 * DT, rel=0.03)


def straight_at_height(make_env: MakeEnv, z: float, height: float) -> NavigationEnv:
    env = straight_flight(make_env, height=height)
    env.state["pos"][0, 2] = z
    return env


def test_inside_the_band_height_costs_nothing(make_env: MakeEnv) -> None:
    gained, _, _ = fly(straight_at_height(make_env, 2.1, height=0.0))
    reward, _, _ = fly(straight_at_height(make_env, 2.1, height=2.0))
    assert reward == gained


@pytest.mark.parametrize(("mover", "width"), [(1, 0.5), (7, 1.0)])
def test_nearness_costs_grow_linearly_below_the_threshold(make_env: MakeEnv, mover: int, width: float) -> None:
    """Beside a box (kind 1) and a cylinder (kind 7), 0.6 m from its side: 0.4 · seconds · (0.8 - 0.6) / 0.5."""
    rewards = []
    for near in (0.0, 0.4):
        env = straight_flight(make_env, movers=8, near=near, near_m=0.8)
        park_movers(env, mover, [0.07, width / 2 + 0.6, 2.0])
        rewards.append(fly(env)[0])
    assert rewards[0] - rewards[1] == pytest.approx(0.4 * 5 * DT * (0.8 - 0.6) / 0.5, rel=0.05)


def park_movers(env: NavigationEnv, mover: int, where: list[float]) -> None:
    """Send all moving obstacles to a far corner, and one beside the path, at rest until their next speed."""
    bank = env.bank.tensors
    bank["clock"].fill_(1)  # velocities are drawn at age 0, 125, ...
    bank["vel"].zero_()
    far = torch.tensor([-19.0, -19.0, 2.5])
    for name in ("trail", "goal"):
        bank[name][...] = far
        bank[name][..., mover, :] = torch.tensor(where)
    bank["goal"][..., 0] += 1.0  # not reached


def test_nearness_to_columns_counts_too(make_env: MakeEnv) -> None:
    rewards = []
    for near in (0.0, 0.4):
        reward = RewardConfig(**{**QUIET, "near": near})
        env = make_env(num_envs=64, moving_obstacles=0, decimation=1, reward=reward, seed=3)
        rng = np.random.default_rng(5)
        env.state["pos"].copy_(torch.as_tensor(np.c_[rng.uniform(-18, 18, (64, 2)), rng.uniform(1, 2, 64)]))
        out = env.step(torch.full((64, 3), 0.5))
        rewards.append(out["reward"].numpy())
        ended = out["terminated"].numpy()
        lidar = np.where(ended[:, None], out["final_obs"]["lidar"].flatten(1), out["obs"]["lidar"].flatten(1))
    gap = 4.0 - lidar.max(-1)
    expected = np.where(gap < 0.8, 0.4 * DT * (0.8 - gap) / 0.5, 0.0)
    assert (expected > 0).sum() > 5
    np.testing.assert_allclose(rewards[0] - rewards[1], expected, atol=1e-6)


def test_time_costs_its_weight_per_second(make_env: MakeEnv) -> None:
    gained, _, _ = fly(straight_flight(make_env))
    reward, _, _ = fly(straight_flight(make_env, time=3.0))
    assert gained - reward == pytest.approx(3.0 * 5 * DT, abs=1e-5)


@pytest.mark.parametrize("how", [Outcome.OUT_OF_BOUNDS, Outcome.COLLISION_MOVING])
def test_a_crash_is_deducted_once(make_env: MakeEnv, how: Outcome) -> None:
    rewards = []
    for crash in (0.0, 20.0):
        env = straight_flight(make_env, movers=8, crash=crash)
        park_movers(env, 7, [0.5, 0.0, 2.5] if how is Outcome.COLLISION_MOVING else [5.0, 5.0, 2.5])
        if how is Outcome.OUT_OF_BOUNDS:
            env.state["pos"][0, 2] = 4.1
        reward, _, outcome = fly(env)
        assert outcome == how
        rewards.append(reward)
    assert rewards[0] - rewards[1] == pytest.approx(20.0, abs=1e-5)


def test_a_success_is_paid_once_and_ends_the_episode(make_env: MakeEnv) -> None:
    rewards = []
    for success in (0.0, 10.0):
        env = straight_flight(make_env, success=success, crash=20.0)
        env.state["pos"][0, 0] = 19.45
        reward, _, outcome = fly(env)
        assert outcome == Outcome.SUCCESS
        rewards.append(reward)
    assert rewards[1] - rewards[0] == pytest.approx(10.0, abs=1e-5)


def test_a_timeout_pays_neither_crash_nor_success(make_env: MakeEnv) -> None:
    env = straight_flight(make_env, success=10.0, crash=20.0)
    env.state["step"][0] = env.cfg.max_episode_steps - 5
    reward, _, outcome = fly(env)
    assert outcome == Outcome.TIMEOUT
    assert 0.1 < reward < 0.16


def test_seconds_stop_counting_when_the_episode_ends_within_a_decision(make_env: MakeEnv) -> None:
    """The goal is reached in the first of five physics steps, so one step's time is charged."""
    rewards = []
    for time in (0.0, 3.0):
        env = straight_flight(make_env, time=time)
        env.state["pos"][0, 0] = 19.49
        rewards.append(fly(env)[0])
    assert rewards[0] - rewards[1] == pytest.approx(3.0 * DT, abs=1e-5)


def test_episode_return_is_the_sum_of_its_rewards(make_env: MakeEnv) -> None:
    env = make_env(num_envs=32, max_episode_steps=40, decimation=2)
    total, out = np.zeros(32), env.make_buffers()
    for _ in range(20):
        env.step(torch.tensor([[0.9, 0.5, 0.5]]).repeat(32, 1), out=out)
        total += out["reward"].numpy()
    assert out["truncated"].all()
    np.testing.assert_allclose(out["episode_return"].numpy(), total, rtol=1e-5)
    assert (out["episode_length"] == 20).all()


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.kind.value} {term.name}")
def test_the_documentation_has_the_row_of_a_term(term: RewardTerm) -> None:
    weight = f"{term.sign} `env.reward.{term.weight}`" if term.weight else "+ 1"
    row = f"| {term.kind.value} | `{term.name}` | {weight} | {term.doc} |"
    docs = Path(__file__).parents[3] / "docs" / "worlds" / "navigation.md"
    assert row in docs.read_text().splitlines()


def test_every_weight_is_a_setting_and_every_setting_is_used() -> None:
    assert {term.weight for term in TERMS if term.weight} == set(NUMBERS) - {"near_m"}


def test_the_terms_of_a_step_add_up_to_its_reward(make_env: MakeEnv) -> None:
    for kind in RewardKind:
        env = make_env(reward=RewardConfig(kind=kind, time=0.5), num_envs=8)
        env.reset()
        for _ in range(5):
            out = env.step(torch.full((8, 3), 0.8))
            torch.testing.assert_close(env.reward_terms.sum(dim=1), out["reward"])
        other = [k for k, term in enumerate(TERMS) if term.kind is not kind]
        assert (env.reward_terms[:, other] == 0).all()
