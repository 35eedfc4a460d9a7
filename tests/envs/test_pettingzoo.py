"""The PettingZoo adapter: its own tests pass, and a duel's two sides fly what the env itself flies."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test, parallel_seed_test

from fledge.core.errors import ConfigError, InputError
from fledge.envs.adapters.pettingzoo import PettingZooEnv
from fledge.pettingzoo import parallel_env
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv

SMALL: dict[str, Any] = {"spacetime": False, "num_threads": 1, "scenario": "mixed", "max_episode_s": 20.0}


def duel(**changed: Any) -> PettingZooEnv:
    return parallel_env(**(SMALL | changed))


def hold(fire: bool | int = 0, rudder: float = 0.0) -> dict[str, Any]:
    return {"rudder": np.array(rudder, np.float32), "throttle": np.array(1.0, np.float32), "fire": fire}


@pytest.mark.parametrize("form", ["continuous", "discrete"])
def test_pettingzoos_own_api_test_passes(form: str) -> None:
    env = duel(action_form=form)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=60)
    env.close()


@pytest.mark.parametrize("form", ["continuous", "discrete"])
def test_pettingzoos_own_seed_test_passes(form: str) -> None:
    parallel_seed_test(lambda: duel(action_form=form), num_cycles=40)


def test_two_agents_see_legal_observations_and_act() -> None:
    env = duel()
    obs, infos = env.reset(seed=1)
    assert env.agents == env.possible_agents == ["p1", "p2"]
    for agent in env.agents:
        assert env.observation_space(agent).contains(obs[agent])
        assert env.action_space(agent).contains(hold())
        assert infos[agent]["action_mask"]["fire"].tolist() == [1, 1]
    env.close()


def test_what_the_two_agents_get_is_what_the_env_gives_its_two_rows() -> None:
    env = duel(scenario="random")
    cfg = AircombatConfig(num_envs=2, spacetime=False, scenario=Scenario.random, max_episode_s=20.0)
    truth = AircombatEnv(cfg, seed=4, num_threads=1)
    obs, _ = env.reset(seed=4)
    expected = truth.reset()
    for t in range(25):
        for row, agent in enumerate(env.possible_agents):
            for name, value in obs[agent].items():
                assert np.array_equal(value, expected["obs"][name][row].numpy()), (t, agent, name)
        turn = {"p1": 0.3, "p2": -0.8}
        obs, rewards, terminated, truncated, _ = env.step({a: hold(t == 3, turn[a]) for a in turn})
        fire = torch.tensor([t == 3, t == 3]).long()
        expected = truth.step({"rudder": torch.tensor([0.3, -0.8]), "throttle": torch.ones(2), "fire": fire})
        assert rewards == {"p1": expected["reward"][0].item(), "p2": expected["reward"][1].item()}
        assert list(terminated.values()) == expected["terminated"].tolist()
        if truncated["p1"]:
            assert env.agents == []
            assert np.array_equal(obs["p2"]["state"], expected["final_obs"]["state"][1].numpy())
            obs, _ = env.reset()
    env.close()
    truth.close()


def test_a_mask_forbids_the_shot_that_is_not_possible_yet_and_samples_keep_to_it() -> None:
    env = duel(**{"missile.interval_s": 5.0})
    env.reset(seed=0)
    _, _, _, _, infos = env.step({"p1": hold(fire=1), "p2": hold()})
    assert infos["p1"]["action_mask"]["fire"].tolist() == [1, 0]
    assert infos["p2"]["action_mask"]["fire"].tolist() == [1, 1]
    space = env.action_space("p1")
    assert {int(space.sample(mask=infos["p1"]["action_mask"])["fire"]) for _ in range(50)} == {0}
    env.close()


def test_the_end_says_how_it_came_and_empties_the_agents() -> None:
    env = duel(scenario="head_on", max_episode_s=3.0)
    env.reset()
    for _ in range(3):
        _, _, terminated, truncated, infos = env.step({"p1": hold(), "p2": hold()})
    assert truncated == {"p1": True, "p2": True}
    assert terminated == {"p1": False, "p2": False}
    assert env.agents == []
    for agent in ("p1", "p2"):
        assert infos[agent]["outcome"] == "timeout"
        assert env.env.outcomes[infos[agent]["outcome_code"]] == "timeout"
        assert infos[agent]["episode_length"] == 3
    assert env.step({}) == ({}, {}, {}, {}, {})
    with pytest.raises(InputError, match=r"The episode is over: call reset\(\)"):
        env.step({"p1": hold(), "p2": hold()})
    assert env.reset()[0]["p1"]["state"][12] == 0.0
    assert env.agents == ["p1", "p2"]
    env.close()


def test_misuse_gets_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"num_envs=.* cannot be set: .*use fledge\.gym"):
        parallel_env(num_envs=4)
    with pytest.raises(ConfigError, match=r"opponent=.* cannot be set"):
        parallel_env(opponent="crank")
    with pytest.raises(ConfigError, match="Task 'navigation' has one agent per episode"):
        parallel_env("navigation")
    with pytest.raises(ConfigError, match=r"no setting scenrio\. Did you mean scenario"):
        parallel_env(scenrio="random")
    many = AircombatEnv(AircombatConfig(num_envs=4, spacetime=False), num_threads=1)
    with pytest.raises(InputError, match="4 rows and 2 per episode"):
        PettingZooEnv(many)
    many.close()
    env = duel()
    with pytest.raises(InputError, match="must be 2 different names"):
        PettingZooEnv(env.env, agents=("a", "a"))
    env.reset()
    with pytest.raises(InputError, match="step got actions for p1: pass a dict with an action for each of p1, p2"):
        env.step({"p1": hold()})
    with pytest.raises(InputError, match="must be dicts with the same keys"):
        env.step({"p1": hold(), "p2": 3})
    with pytest.raises(InputError, match=r"rudder of env 1 is .*, but must be finite"):
        env.step({"p1": hold(), "p2": hold(rudder=float("nan"))})
    env.close()
