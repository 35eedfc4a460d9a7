"""The Gymnasium adapter: stock loops and wrappers run on it, and its arrays belong to the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics, TransformReward

from fledge.core.errors import InputError
from fledge.envs.adapters.gymnasium import GymnasiumVectorEnv, space_of
from fledge.tasks.navigation.config import ActionForm, Dynamics, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome

N = 16
LIMIT = 6


def make(seed: int = 3, **options: Any) -> NavigationEnv:
    small: dict[str, Any] = {"num_envs": N, "num_maps": 2, "static_obstacles": 60, "moving_obstacles": 16}
    small |= {"max_episode_steps": LIMIT, "dynamics": Dynamics.first_order, "speed_limit": 100.0}
    return NavigationEnv(NavigationConfig(**(small | options)), seed=seed, num_threads=2)


@pytest.fixture
def env() -> Iterator[GymnasiumVectorEnv]:
    env = GymnasiumVectorEnv(make(), make)
    yield env
    env.close()


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(v, b[k]) for k, v in a.items())


def actions(t: int, n: int = N) -> np.ndarray:
    return np.random.default_rng(t).random((n, 3), dtype=np.float32)


def test_spaces_say_what_the_specs_say(env: GymnasiumVectorEnv) -> None:
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.num_envs == N
    assert set(env.single_observation_space.spaces) == {"state", "lidar", "direction", "dynamic_obstacle"}
    lidar = env.single_observation_space["lidar"]
    assert (lidar.shape, lidar.dtype) == ((1, 36, 4), np.float32)
    assert (lidar.low.min(), lidar.high.max()) == (0.0, 4.0)
    assert env.single_action_space == gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    assert env.action_space.shape == (N, 3)


def test_headings_are_a_discrete_space_and_its_samples_fly() -> None:
    env = GymnasiumVectorEnv(make(action_form=ActionForm.headings, num_headings=7, grid_map=True, grid_size=8))
    assert env.single_action_space == gymnasium.spaces.Discrete(7)
    assert env.single_observation_space["grid_map"] == gymnasium.spaces.Box(0, 1, (1, 8, 8), np.uint8)
    env.reset()
    env.action_space.seed(0)
    observations = env.step(env.action_space.sample())[0]
    assert env.observation_space.contains(observations)
    env.close()


def test_a_stock_loop_gets_legal_observations_and_the_same_numbers_as_the_env_itself(env: GymnasiumVectorEnv) -> None:
    plain = make()
    expected = plain.reset()
    observations, infos = env.reset()
    assert infos == {}
    for t in range(2 * LIMIT):
        assert env.observation_space.contains(observations)
        assert same(observations, {k: v.numpy() for k, v in expected["obs"].items()})
        expected = plain.step(torch.as_tensor(actions(t)))
        observations, rewards, terminations, truncations, infos = env.step(actions(t))
        for array, name in ((rewards, "reward"), (terminations, "terminated"), (truncations, "truncated")):
            assert np.array_equal(array, expected[name].numpy())
            assert array.shape == (N,)
    plain.close()


def test_same_step_infos_follow_gymnasiums_convention(env: GymnasiumVectorEnv) -> None:
    plain = make()
    plain.reset()
    env.reset()
    for t in range(LIMIT):
        expected = plain.step(torch.as_tensor(actions(t)))
        _, _, terminations, truncations, infos = env.step(actions(t))
        ended = terminations | truncations
        if not ended.any():
            assert infos == {}
    assert truncations.any()
    assert infos["final_obs"].dtype == object
    for key in ("_final_obs", "_final_info"):
        assert np.array_equal(infos[key], ended)
    for i, final in enumerate(infos["final_obs"]):
        if ended[i]:
            assert env.single_observation_space.contains(final)
            assert same(final, {k: v[i].numpy() for k, v in expected["final_obs"].items()})
        else:
            assert final is None
    info = infos["final_info"]
    assert np.array_equal(info["outcome_code"] == Outcome.TIMEOUT, truncations)
    assert np.array_equal(info["outcome"] == "timeout", truncations)
    assert np.array_equal(info["episode_length"][truncations], np.full(truncations.sum(), LIMIT))
    assert np.array_equal(info["_episode_return"], ended)
    plain.close()


def arrays_in(tree: Any) -> Iterator[np.ndarray]:
    """Every array of numbers in what reset or step returned."""
    if isinstance(tree, np.ndarray) and tree.dtype.kind != "O":
        yield tree
    elif isinstance(tree, dict | tuple | np.ndarray):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from arrays_in(part)


def test_what_was_returned_stays_as_it_was(env: GymnasiumVectorEnv) -> None:
    kept = list(arrays_in(env.reset()))
    copies = [array.copy() for array in kept]
    for t in range(2 * LIMIT + 1):
        fresh = list(arrays_in(env.step(actions(t))))
        assert not any(np.shares_memory(a, b) for a in fresh for b in kept[-20:])
        kept += fresh
        copies += [array.copy() for array in fresh]
    env.reset()
    assert len(kept) > 2 * LIMIT * 7  # final observations are among them
    for array, copy in zip(kept, copies, strict=True):
        assert np.array_equal(array, copy)


def test_writing_into_returned_arrays_does_not_reach_the_env(env: GymnasiumVectorEnv) -> None:
    other = GymnasiumVectorEnv(make())
    for e in (env, other):
        e.reset()
    for t in range(LIMIT + 2):
        mine, theirs = env.step(actions(t)), other.step(actions(t))
        assert same(mine[0], theirs[0])
        for array in (*mine[0].values(), *mine[1:4]):
            array[...] = 1
    other.close()


def test_the_same_seed_starts_over_and_another_makes_other_envs(env: GymnasiumVectorEnv) -> None:
    def fly(seed: int) -> list[dict[str, np.ndarray]]:
        return [env.reset(seed=seed)[0]] + [env.step(actions(t))[0] for t in range(LIMIT + 3)]

    first, repeated, other, again = fly(3), fly(3), fly(4), fly(3)
    assert all(same(a, b) for a, b in zip(first, repeated, strict=True))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not same(first[0], other[0])
    assert same(first[0], GymnasiumVectorEnv(make()).reset()[0])
    new = make(4)
    assert np.array_equal(other[0]["state"], new.reset()["obs"]["state"].numpy())
    new.close()


def test_another_seed_without_make_env_is_refused_but_the_own_seed_is_not() -> None:
    env = GymnasiumVectorEnv(make(seed=3))
    first = env.reset(seed=3)[0]
    env.step(actions(0))
    assert same(env.reset(seed=3)[0], first)
    with pytest.raises(InputError, match="built for seed 3"):
        env.reset(seed=4)
    assert not same(env.reset()[0], first)
    env.close()


def test_seeds_that_are_not_one_integer_are_refused(env: GymnasiumVectorEnv) -> None:
    with pytest.raises(InputError, match="one integer"):
        env.reset(seed=[1] * N)  # type: ignore[arg-type]


def test_a_make_env_that_makes_another_size_is_refused() -> None:
    env = GymnasiumVectorEnv(make(), lambda seed: make(seed, num_envs=4))
    with pytest.raises(InputError, match="another num_envs or other specs"):
        env.reset(seed=9)
    env.close()


def test_reset_mask_begins_episodes_only_where_it_is_true(env: GymnasiumVectorEnv) -> None:
    env.reset()
    for t in range(3):
        before = env.step(actions(t))[0]
    mask = np.arange(N) % 3 == 0
    options = {"reset_mask": mask}
    after, _ = env.reset(options=options)
    assert options == {"reset_mask": mask}  # Gymnasium's statistics wrapper reads it afterwards
    for key in before:
        assert np.array_equal(after[key][~mask], before[key][~mask])
    assert (after["state"][mask] != before["state"][mask]).any(axis=1).all()
    for t in range(LIMIT - 3):
        truncations = env.step(actions(t))[3]
    assert not truncations[mask].any()
    assert truncations[~mask].any()


@pytest.mark.parametrize(
    "options",
    [
        {"reset_mask": np.zeros(N, dtype=bool)},
        {"reset_mask": np.ones(N + 1, dtype=bool)},
        {"reset_mask": np.ones(N)},
        {"reset_mask": [True] * N},
        {"low": 1.0},
    ],
    ids=["nowhere", "length", "type", "list", "unknown"],
)
def test_bad_options_are_refused(env: GymnasiumVectorEnv, options: dict[str, Any]) -> None:
    env.reset()
    with pytest.raises(InputError, match="reset_mask"):
        env.reset(options=options)


def test_a_seed_with_a_mask_is_refused(env: GymnasiumVectorEnv) -> None:
    env.reset()
    with pytest.raises(InputError, match="a seed restarts every env"):
        env.reset(seed=3, options={"reset_mask": np.arange(N) == 0})


@pytest.mark.parametrize(
    "bad",
    [actions(0, N + 1), np.full((N, 3), np.nan, np.float32), np.zeros((N, 3), int), [[0.0], [0.0, 1.0]], "up"],
    ids=["shape", "nan", "integers", "ragged", "text"],
)
def test_bad_actions_are_refused(env: GymnasiumVectorEnv, bad: Any) -> None:
    env.reset()
    with pytest.raises(InputError, match="action"):
        env.step(bad)


def test_actions_of_double_precision_and_lists_fly_as_well(env: GymnasiumVectorEnv) -> None:
    env.reset(seed=3)
    single = env.step(actions(0))[0]
    env.reset(seed=3)
    double = env.step(actions(0).astype(np.float64))[0]
    env.reset(seed=3)
    listed = env.step(actions(0).tolist())[0]
    assert same(single, double)
    assert same(single, listed)


def test_gymnasiums_wrappers_run_on_it_and_count_the_same_episodes(env: GymnasiumVectorEnv) -> None:
    stats = RecordEpisodeStatistics(TransformReward(env, lambda r: r))
    stats.reset()
    ended = 0
    for t in range(2 * LIMIT):
        _, _, terminations, truncations, infos = stats.step(actions(t))
        done = terminations | truncations
        ended += done.sum()
        if done.any():
            info = infos["final_info"]
            assert np.array_equal(infos["episode"]["l"], info["episode_length"])
            np.testing.assert_allclose(infos["episode"]["r"], info["episode_return"], rtol=1e-4, atol=1e-4)
    assert stats.episode_count == ended > 0


def test_infos_turn_into_lists_by_gymnasiums_wrapper(env: GymnasiumVectorEnv) -> None:
    listed = DictInfoToList(env)
    listed.reset()
    for t in range(LIMIT):
        _, _, terminations, truncations, infos = listed.step(actions(t))
    ended = terminations | truncations
    assert ended.any()
    for i in range(N):
        assert ("final_obs" in infos[i]) == ended[i]
        if ended[i]:
            assert infos[i]["final_info"]["outcome_code"] > 0


def test_close_is_safe_to_repeat() -> None:
    env = GymnasiumVectorEnv(make())
    env.close()
    env.close()
    assert env.closed


def test_a_vector_of_choices_is_a_multidiscrete_space() -> None:
    from fledge.core.specs import TensorSpec

    space = space_of(TensorSpec((2,), torch.int64, 0, 4, num_values=5))
    assert space == gymnasium.spaces.MultiDiscrete([5, 5])
