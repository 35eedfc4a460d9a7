"""Every registered task is a Gymnasium ID, found by scripts that import nothing but Gymnasium."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import fledge.gym
from fledge.core.errors import ConfigError, InputError
from fledge.envs.adapters.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task, task_names

NAME = "fledge/Navigation-v0"
SMALL: dict[str, Any] = {"num_maps": 2, "static_obstacles": 40, "moving_obstacles": 8, "num_threads": 1}
FIGURES = ("outcome", "outcome_code", "episode_return", "episode_length")
QUICK = SMALL | {"max_episode_steps": 5, "dynamics": "first_order"}


def vector(num_envs: int = 4, **settings: Any) -> Any:
    return gymnasium.make_vec(NAME, num_envs=num_envs, **(SMALL | settings))


def single(**settings: Any) -> Any:
    return gymnasium.make(NAME, **(SMALL | settings)).unwrapped


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(v, b[k]) for k, v in a.items())


def test_a_script_that_imports_only_gymnasium_makes_both_kinds() -> None:
    script = f"""
import gymnasium
small = dict(num_maps=2, static_obstacles=40, moving_obstacles=8, num_threads=1)
envs = gymnasium.make_vec("fledge.gym:{NAME}", num_envs=8, seed=3, **small)
obs, _ = envs.reset()
obs, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
print(envs.num_envs, obs["lidar"].shape, reward.shape)
env = gymnasium.make("{NAME}", **small)  # registered by now
obs, _ = env.reset(seed=3)
print(obs["lidar"].shape, len(env.step(env.action_space.sample())))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["8 (8, 1, 36, 4) (8,)", "(1, 36, 4) 5"], done.stderr


def test_gymnasium_finds_ids_of_other_packages_by_import_alone() -> None:
    # Gymnasium 1.0 removed its entry-point group gymnasium.envs. If it returns, register the IDs there too.
    assert not hasattr(gymnasium.envs.registration, "load_plugin_envs")
    assert not hasattr(gymnasium.envs.registration, "load_env_plugins")


def test_importing_the_ids_loads_no_simulator_before_an_env_is_made() -> None:
    script = "import sys, fledge.gym; print('warp' in sys.modules, 'fledge.tasks.navigation' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_every_registered_task_has_an_id() -> None:
    for name in task_names():
        assert gymnasium.spec(fledge.gym.env_id(name)).kwargs == {"task": name}
    assert fledge.gym.env_id("air_combat") == "fledge/AirCombat-v0"


def test_the_package_registers_its_tasks_as_entry_points() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["fledge.tasks"]
    assert "navigation" in points
    for name, value in points.items():
        found = find_task(value)
        assert isinstance(found, Task)
        assert found.name == name


def test_keywords_are_settings_dotted_or_nested_with_enums_by_name() -> None:
    env = vector(seed=7, dynamics="first_order", reward={"crash": 5.0}, **{"reward.success": 1.0})
    assert isinstance(env, GymnasiumVectorEnv)
    cfg = env.env.cfg
    assert (cfg.num_envs, cfg.static_obstacles, cfg.dynamics.name) == (4, 40, "first_order")
    assert (cfg.reward.crash, cfg.reward.success, env.env.seed) == (5.0, 1.0, 7)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.close()


def test_a_preset_can_be_named_and_keywords_go_on_top() -> None:
    env = gymnasium.make_vec(NAME, num_envs=2, preset="empty", num_maps=1, num_threads=1)
    expected = find_task("navigation").presets.load("env", "empty")
    assert env.env.cfg.static_obstacles == expected["static_obstacles"]  # type: ignore[attr-defined]
    assert env.env.cfg.num_maps == 1  # type: ignore[attr-defined]
    env.close()


def test_misuse_gets_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"no setting static_obstacle\. Did you mean static_obstacles\?"):
        vector(static_obstacle=3)
    with pytest.raises(ConfigError, match="static_obstacles is -1, but must be 0 to 4000"):
        vector(static_obstacles=-1)
    with pytest.raises(ConfigError, match="static_obstacles=many does not fit"):
        vector(static_obstacles="many")
    with pytest.raises(ConfigError, match="There is no env preset 'x'"):
        vector(preset="x")
    with pytest.raises(ConfigError, match=r"leave num_envs out, or use gymnasium.make_vec"):
        single(num_envs=3)


def test_another_seed_is_another_world_and_the_same_seed_the_same() -> None:
    env = vector()
    first, _ = env.reset(seed=5)
    env.step(env.action_space.sample())
    other, _ = env.reset(seed=6)
    again, _ = env.reset(seed=5)
    assert same(first, again)
    assert not same(first, other)
    env.close()


def test_the_single_env_passes_gymnasiums_own_checker() -> None:
    env = single()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Box observation space m.*")  # no bounds, and it says so
        check_env(env)
    env.close()


def test_the_single_env_flies_what_a_vector_of_one_flies_episode_by_episode() -> None:
    one, many = single(seed=3, **QUICK), vector(1, seed=3, **QUICK)
    obs, info = one.reset()
    others, _ = many.reset()
    assert info == {}
    ends = 0
    for t in range(23):
        assert same({k: v[None] for k, v in obs.items()}, others)
        action = np.random.default_rng(t).random(3, dtype=np.float32)
        obs, reward, terminated, truncated, info = one.step(action)
        others, rewards, terminations, truncations, infos = many.step(action[None])
        assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
        if terminated or truncated:
            ends += 1
            assert same(obs, infos["final_obs"][0])
            assert info == {k: infos["final_info"][k][0] for k in FIGURES}
            obs, _ = one.reset()
    assert ends >= 4
    one.close()
    many.close()


@pytest.mark.parametrize("form", ["make", "spec", "direct", "sync", "vector"])
def test_the_time_limit_is_the_tasks_own_however_the_env_is_made(form: str) -> None:
    limit: Any = {"max_episode_steps": 10, "decimation": 5, **SMALL}
    if form == "sync":
        env = gymnasium.make_vec(NAME, num_envs=1, vectorization_mode="sync", **limit)
    elif form == "vector":
        env = gymnasium.make_vec(NAME, num_envs=1, **limit)
    elif form == "direct":
        env = fledge.gym.make_single("navigation", **limit)
    else:
        env = gymnasium.make(NAME, **limit)
        env = gymnasium.make(env.spec) if form == "spec" else env
    env.reset(seed=0)
    action = np.full(env.action_space.shape, 0.5, np.float32)
    assert not env.step(action)[3]
    *_, truncated, info = env.step(action)
    assert truncated
    info = info["final_info"] if form == "vector" else info
    assert np.all(info["outcome"] == "timeout")
    assert np.all(info["episode_length"] == 2)
    env.close()


def test_a_task_without_the_setting_gets_gymnasiums_time_limit() -> None:
    duel: Any = {"opponent": "random", "spacetime": False, "num_threads": 1}
    env = gymnasium.make("fledge/Aircombat-v0", max_episode_steps=2, **duel)
    env.reset(seed=0)
    action = {"rudder": np.zeros(1, np.float32)[0], "throttle": np.ones(1, np.float32)[0], "fire": 0}
    assert [env.step(action)[3] for _ in range(2)] == [False, True]
    env.close()


def test_a_reset_in_the_middle_begins_another_episode() -> None:
    env = single()
    first, _ = env.reset(seed=0)
    env.step(env.action_space.sample())
    assert not same(env.reset()[0], first)
    env.close()


def test_the_single_env_refuses_steps_after_an_end_and_what_it_does_not_know() -> None:
    env = single(**QUICK)
    env.reset()
    while not any(env.step(np.zeros(3, np.float32))[2:4]):
        pass
    with pytest.raises(InputError, match=r"The episode is over: call reset\(\)"):
        env.step(np.zeros(3, np.float32))
    with pytest.raises(InputError, match="options has where, but no option is allowed"):
        env.reset(options={"where": 1})
    env.reset()
    with pytest.raises(InputError, match=r"has shape \(1, 2\), but must have \(1, 3\)"):
        env.step(np.zeros(2, np.float32))
    env.close()
    many = vector(2)
    with pytest.raises(InputError, match="The env holds 2 envs"):
        GymnasiumEnv(many.env)
    many.close()
