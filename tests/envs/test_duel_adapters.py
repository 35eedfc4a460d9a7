"""Duels in other people's loops: actions that are a dict of numbers and choices, with a mask."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import fledge.gym
from fledge.core.errors import ConfigError, InputError
from fledge.tasks.registry import find_task

NAME = "fledge/Aircombat-v0"
SMALL: dict[str, Any] = {"spacetime": False, "num_threads": 1, "opponent": "random", "max_episode_s": 20.0}


def vector(num_envs: int = 4, **settings: Any) -> Any:
    return gymnasium.make_vec(NAME, num_envs=num_envs, **(SMALL | settings))


def single(**settings: Any) -> Any:
    return gymnasium.make(NAME, **(SMALL | settings)).unwrapped


def make_env(seed: int = 0, **settings: Any) -> Any:
    return fledge.gym.env_maker(find_task("aircombat"), {**SMALL, "num_envs": 8, **settings})(seed)


# ---- Gymnasium ---------------------------------------------------------------------------------------------------------


def test_a_script_that_imports_only_gymnasium_fights_a_chosen_opponent() -> None:
    script = f"""
import gymnasium
env = gymnasium.make("fledge.gym:{NAME}", opponent="random", spacetime=False, num_threads=1)
obs, info = env.reset(seed=3)
print(type(env.unwrapped.env.opponents[0]).__name__, len(env.step(env.action_space.sample(mask=info["action_mask"]))))
envs = gymnasium.make_vec("{NAME}", num_envs=8, opponent="placeholder", spacetime=False, num_threads=1)
obs, _ = envs.reset()
print(obs["state"].shape, envs.step(envs.action_space.sample())[1].shape)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.stdout.split("\n")[-3:-1] == ["RandomPilot 5", "(8, 15) (8,)"], done.stderr


@pytest.mark.parametrize("form", ["continuous", "discrete"])
def test_gymnasiums_own_checker_passes(form: str) -> None:
    env = single(action_form=form)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    env.close()


def test_with_the_space_time_graph_any_pilot_is_an_opponent_and_the_checker_passes_too() -> None:
    for opponent in ("pursuit", "crank(shot=0.8)", "envelope", "rule_based"):
        env = gymnasium.make(NAME, opponent=opponent, num_threads=1).unwrapped
        obs, _ = env.reset(seed=0)
        assert obs["spacetime"].any()
        env.step(env.action_space.sample())
        if opponent == "envelope":
            check_env(env)
        env.close()


def test_without_an_opponent_named_it_is_the_one_that_training_begins_with() -> None:
    assert fledge.gym.env_maker(find_task("aircombat"), {"num_envs": 1}).cfg.opponent == "pursuit"
    assert fledge.gym.env_maker(find_task("aircombat"), {"num_envs": 1, "opponent": "crank"}).cfg.opponent == "crank"


def test_a_vector_of_duels_gets_legal_observations_and_the_same_numbers_as_the_env_itself() -> None:
    env, truth = vector(8, seed=3), make_env(3)
    obs, _ = env.reset(seed=3)
    expected = truth.reset()
    env.action_space.seed(0)
    for _ in range(45):
        assert env.observation_space.contains(obs)
        assert all(np.array_equal(v, expected["obs"][k].numpy()) for k, v in obs.items())
        action = env.action_space.sample()
        obs, reward, terminated, truncated, infos = env.step(action)
        expected = truth.step({k: torch.as_tensor(v) for k, v in action.items()})
        assert np.array_equal(reward, expected["reward"].numpy())
        assert np.array_equal(terminated | truncated, infos.get("_final_obs", np.zeros(8, bool)))
    env.close()
    truth.close()


def test_the_mask_of_a_single_env_is_what_its_space_samples_by() -> None:
    env = single(**{"missile.interval_s": 9.0})
    _, info = env.reset(seed=0)
    assert info["action_mask"] == {"rudder": None, "throttle": None, "fire": pytest.approx([1, 1])}
    *_, info = env.step({"rudder": np.float32(0.0), "throttle": np.float32(1.0), "fire": True})
    assert info["action_mask"]["fire"].tolist() == [1, 0]
    assert {int(env.action_space.sample(mask=info["action_mask"])["fire"]) for _ in range(40)} == {0}
    env.close()
    env = single(action_form="discrete", **{"missile.interval_s": 9.0})
    env.reset(seed=0)
    *_, info = env.step(3)  # straight on, and fire
    assert info["action_mask"].tolist() == [1, 0, 1, 0, 1, 0]
    env.close()


def test_misuse_gets_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"env.opponent='ace' is not a known pilot"):
        vector(opponent="ace")
    with pytest.raises(ConfigError, match="two rows make a duel"):
        vector(3, opponent="")
    env = vector(2)
    env.reset()
    good = env.action_space.sample()
    with pytest.raises(InputError, match="has the keys rudder, but must have the keys rudder, throttle, fire"):
        env.step({"rudder": good["rudder"]})
    with pytest.raises(InputError, match="actions are a ndarray, but must be a dict"):
        env.step(np.zeros(2))
    with pytest.raises(InputError, match="fire of env 1 is 2, but must be 0 to 1"):
        env.step({**good, "fire": np.array([0, 2])})
    env.close()


# ---- TorchRL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["continuous", "discrete"])
def test_torchrls_own_checks_pass(form: str) -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs.utils import check_env_specs

    env = fledge.TorchRLEnv(make_env(action_form=form), lambda seed: make_env(seed, action_form=form))
    check_env_specs(env, seed=5)
    data = env.rollout(45, break_when_any_done=False)
    assert data["next", "done"].any()
    first = data[:, 0]
    assert env.action_spec.is_in(first["action"] if form == "discrete" else first.select("action"))
    env.close()


@pytest.mark.parametrize("form", ["continuous", "discrete"])
def test_torchrls_mask_keeps_samples_to_shots_that_are_possible(form: str) -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs import ActionMask, TransformedEnv

    base = fledge.TorchRLEnv(make_env(action_form=form, **{"missile.interval_s": 4.0}))
    key = "action" if form == "discrete" else ("action", "fire")
    env = TransformedEnv(base, ActionMask(action_key=key, mask_key="mask"))
    data = env.rollout(30, break_when_any_done=False)
    chosen = data["mask"].gather(-1, data[key].unsqueeze(-1)).squeeze(-1)
    assert chosen.all()
    assert not data["mask"].all()
    assert (data[key] % 2 == 1).any()
    env.close()


def test_self_play_is_a_torchrl_env_of_both_sides() -> None:
    pytest.importorskip("torchrl")
    env = fledge.TorchRLEnv(make_env(opponent=""))
    data = env.rollout(30, break_when_any_done=False)
    done = data["next", "done"][..., 0]
    assert done.any()
    assert torch.equal(done[0::2], done[1::2])
    env.close()


def test_whole_numbers_are_numbers() -> None:
    env = gymnasium.make("fledge/Aircombat-v0", opponent="random", spacetime=False)
    env.reset(seed=1)
    env.step({"rudder": 0, "throttle": 1, "fire": True})
    env.close()
