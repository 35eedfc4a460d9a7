"""The Stable-Baselines3 adapter: its own learners run on it, and see every end as it was."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from fledge.core.errors import InputError
from fledge.core.specs import TensorSpec
from fledge.envs.adapters.from_gymnasium import FromGymnasium
from fledge.envs.adapters.stable_baselines3 import StableBaselinesVecEnv
from fledge.envs.reward_wrapper import RewardWrapper
from fledge.tasks.navigation.config import Dynamics, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv

N = 8
LIMIT = 9


def make(seed: int = 3, **options: Any) -> NavigationEnv:
    small: dict[str, Any] = {"num_envs": N, "num_maps": 2, "static_obstacles": 60, "moving_obstacles": 16}
    small |= {"max_episode_steps": LIMIT, "dynamics": Dynamics.first_order, "speed_limit": 100.0}
    return NavigationEnv(NavigationConfig(**(small | options)), seed=seed, num_threads=1)


def actions(t: int) -> np.ndarray:
    return np.random.default_rng(t // 4).random((N, 3), dtype=np.float32)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(v, b[k]) for k, v in a.items())


def test_it_flies_what_the_env_flies_and_tells_every_end() -> None:
    env, plain = StableBaselinesVecEnv(make(), scale_actions=False), make()
    assert isinstance(env, VecEnv)
    observed, expected = env.reset(), plain.reset()
    ends: set[str] = set()
    for t in range(4 * LIMIT):
        assert same(observed, {k: v.numpy() for k, v in expected["obs"].items()})
        assert env.observation_space.contains({k: v[0] for k, v in observed.items()})
        observed, reward, done, infos = env.step(actions(t))
        expected = plain.step(torch.as_tensor(actions(t)))
        assert np.array_equal(reward, expected["reward"].numpy())
        assert np.array_equal(done, (expected["terminated"] | expected["truncated"]).numpy())
        for i, info in enumerate(infos):
            assert bool(info) == bool(done[i])
            if info:
                final = {k: v[i].numpy() for k, v in expected["final_obs"].items()}
                assert same(info["terminal_observation"], final)
                assert info["TimeLimit.truncated"] == bool(expected["truncated"][i])
                assert info["episode"]["r"] == pytest.approx(float(expected["episode_return"][i]))
                assert info["episode"]["l"] == int(expected["episode_length"][i])
                ends.add(info["outcome"])
    assert "timeout" in ends
    assert len(ends) > 1
    env.close()
    plain.close()


def test_bounded_actions_are_scaled_to_where_its_policies_begin() -> None:
    scaled, plain = StableBaselinesVecEnv(make()), StableBaselinesVecEnv(make(), scale_actions=False)
    assert (scaled.action_space.low.min(), scaled.action_space.high.max()) == (-1.0, 1.0)  # type: ignore[attr-defined]
    assert (plain.action_space.low.min(), plain.action_space.high.max()) == (0.0, 1.0)  # type: ignore[attr-defined]
    scaled.reset()
    plain.reset()
    quarters = np.tile(np.float32([0.0, 0.25, 1.0]), (N, 1))
    a, b = scaled.step(2 * quarters - 1), plain.step(quarters)
    assert same(a[0], b[0])
    assert np.array_equal(a[1], b[1])
    scaled.close()
    plain.close()


def test_arrays_belong_to_the_caller() -> None:
    env = StableBaselinesVecEnv(make())
    kept = [env.reset()]
    copies = [{k: v.copy() for k, v in kept[0].items()}]
    for t in range(3):
        kept.append(env.step(actions(t))[0])
        copies.append({k: v.copy() for k, v in kept[-1].items()})
    assert all(same(a, b) for a, b in zip(kept, copies, strict=True))
    env.close()


def test_a_seed_starts_over_and_another_one_needs_make_env() -> None:
    env = StableBaselinesVecEnv(make(), make)
    first = env.reset()
    env.step(actions(0))
    assert not same(env.reset(), first)
    env.seed(3)
    assert same(env.reset(), first)
    env.seed(4)
    assert not same(env.reset(), first)
    env.close()
    alone = StableBaselinesVecEnv(make())
    alone.seed(4)
    with pytest.raises(InputError, match="built for seed 3"):
        alone.reset()
    alone.close()


def test_its_ppo_and_wrappers_learn_on_it() -> None:
    env = VecNormalize(VecMonitor(StableBaselinesVecEnv(make(), make)), norm_obs_keys=["state"])
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=32, n_epochs=1, seed=5, device="cpu")
    model.learn(2 * 8 * N)
    assert model.num_timesteps == 2 * 8 * N
    assert len(model.ep_info_buffer) > 0  # type: ignore[arg-type]
    env.close()


def test_one_observation_stays_a_dict_which_the_documented_policy_takes() -> None:
    env = StableBaselinesVecEnv(FromGymnasium("CartPole-v1", 4))
    assert isinstance(env.observation_space, spaces.Dict)
    assert env.reset()["obs"].shape == (4, 4)
    PPO("MultiInputPolicy", env, n_steps=8, batch_size=16, n_epochs=1, device="cpu").learn(32)
    env.close()


def test_one_observation_is_an_array_where_the_caller_says_so_and_discrete_actions_fly() -> None:
    env = StableBaselinesVecEnv(FromGymnasium("CartPole-v1", 4), dict_obs=False)
    assert env.reset().shape == (4, 4)
    model = DQN("MlpPolicy", env, learning_starts=20, train_freq=1, batch_size=8, device="cpu")
    model.learn(100)
    env.close()


def test_what_it_cannot_do_it_says() -> None:
    env = StableBaselinesVecEnv(make())
    assert env.get_attr("num_envs", [0, 1]) == [N, N]
    assert env.get_attr("decision_s") == [env.env.decision_s] * N
    with pytest.raises(InputError, match="all envs are one object"):
        env.set_attr("cfg", None)
    with pytest.raises(InputError, match="cannot be called on single envs"):
        env.env_method("reset")
    with pytest.raises(
        InputError, match=r'needs an env with one observation, but this env has state, .*"MultiInputPolicy"'
    ):
        StableBaselinesVecEnv(env.env, dict_obs=False)
    env.close()

    class TwoActions(NavigationEnv):
        @property
        def action_spec(self) -> Any:
            return {"go": TensorSpec((), torch.int64, num_values=2), "turn": TensorSpec((1,), torch.float32)}

    odd = TwoActions(dataclasses.replace(env.env.cfg), num_threads=1)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"dict of actions \(go, turn\)"):
        StableBaselinesVecEnv(odd)
    odd.close()


def test_an_env_that_is_pickled_says_to_make_it_in_the_other_process() -> None:
    with closing(StableBaselinesVecEnv(make())) as vec:
        for thing in (vec, vec.env, RewardWrapper(vec.env, lambda out: out["reward"])):
            for send in (pickle.dumps, copy.deepcopy):
                with pytest.raises(InputError, match=r"NavigationEnv cannot be pickled.*make the env there"):
                    send(thing)
