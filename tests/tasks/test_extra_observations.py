"""A subclass of a task whose env observes more: it keeps the task's network, presets, shipped policies and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fledge import check_tensor_env
from fledge.cli import main
from fledge.envs.placement import EnvPlacement
from fledge.storage import CheckpointHistory
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task
from fledge.training.config import make_config

NAVIGATION = """
import torch
from fledge.core.specs import TensorSpec
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.task import NavigationTask

class HeightEnv(NavigationEnv):
    @property
    def observation_spec(self):
        return {**super().observation_spec, "height": TensorSpec((1,), torch.float32)}

    def observe_more(self, obs):
        obs["height"].copy_(self.state["pos"][:, 2:3])

class HeightTask(NavigationTask):
    name = "height"
    env = HeightEnv
"""
DUEL = """
import torch
from fledge.core.specs import TensorSpec
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.task import AircombatTask

class ClockEnv(AircombatEnv):
    @property
    def observation_spec(self):
        return {**super().observation_spec, "clock": TensorSpec((), torch.float32)}

    def observe_more(self, obs):
        obs["clock"].copy_(self.state["time"].repeat_interleave(2))

class ClockTask(AircombatTask):
    name = "clock"
    env = ClockEnv
"""
TASKS = {"height": NAVIGATION, "clock": DUEL}
SMALL = ["env.num_envs=4", "ppo.rollout_steps=2", "ppo.minibatch=8", "total_frames=8", "ranks=1", "tensorboard=false"]
FEW = ["env.num_maps=1", "env.static_obstacles=5", "env.moving_obstacles=0", "env.max_episode_steps=40"]
FEWER = {"height": FEW, "clock": ["env.max_episode_s=20"]}
SHIPPED = {"height": "fledge-reflex", "clock": "fledge-duel"}


@pytest.fixture(scope="module", params=list(TASKS))
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("own") / f"{request.param}.py"
    path.write_text(TASKS[request.param])
    return find_task(str(path))


def call(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_env_keeps_its_contract_and_final_observations(task: Any) -> None:
    words = [word for word in FEWER[task.name] if "steps" not in word]
    cfg = make_config(task, None, words).env
    cfg.num_envs = 4
    length = {"max_episode_steps": 6} if task.name == "height" else {"max_episode_s": 6.0, "opponent": ""}
    for key, value in length.items():
        setattr(cfg, key, value)
    check_tensor_env(lambda num_envs, seed: task.make_env(cfg, EnvPlacement(seed=seed)), 14, num_envs=4)
    env = task.make_env(cfg)
    out, ended = env.reset(), 0
    for _ in range(14):
        before = out["obs"][task.name].clone()
        action = {"rudder": torch.zeros(4), "throttle": torch.ones(4), "fire": torch.zeros(4, dtype=torch.int64)}
        out = env.step(action if task.name == "clock" else torch.full((4, 3), 0.7))
        over = out["terminated"] | out["truncated"]
        ended += int(over.sum())
        if over.any() and task.name == "clock":
            assert (out["final_obs"]["clock"][over] == before[over] + 1.0).all()
            assert (out["obs"]["clock"][over] == 0.0).all()
        if over.any() and task.name == "height":
            assert (out["final_obs"]["height"][over] > 0.0).all()
    assert ended
    env.close()


def test_it_trains_the_tasks_network_and_is_resumed_evaluated_and_drawn(task: Any, tmp_path: Path) -> None:
    run, picture, few = tmp_path / "run", tmp_path / "picture.png", FEWER[task.name]
    call("train", task.reference, *SMALL, *few, "--folder", str(run))
    state, _ = CheckpointHistory(run / "checkpoints").load_latest()
    assert state["policy"]["kind"] == {"height": "features", "clock": "duel"}[task.name]
    assert "extra" in state["policy"]
    policy = load_policy(str(run), task).agent
    assert task.name in policy.observes
    assert set(policy.example_inputs(2)) == set(policy.observes)
    assert "Resumed at iteration 1/2" in call("train", task.reference, "--resume", str(run), "total_frames=16")
    flight = ["--task", task.reference, "--episodes", "2", "--picture", str(picture), *few]
    assert SHIPPED[task.name] in call("eval", str(run), SHIPPED[task.name], *flight)
    assert list(tmp_path.glob("picture*.png"))


def test_its_presets_are_those_of_the_task_it_derives_from(task: Any) -> None:
    base = find_task({"height": "navigation", "clock": "aircombat"}[task.name])
    assert task.presets.names("train") == base.presets.names("train")
    algo = {"height": "sac", "clock": "dqn"}[task.name]
    cfg = make_config(task, algo)
    described = task.policy.describe(task, algo, cfg.env, cfg.policy)
    assert task.name in task.policy.build(described).observes
