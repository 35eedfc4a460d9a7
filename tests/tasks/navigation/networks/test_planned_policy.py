"""The planned policy: it begins as the planner, stays near it, and flies from a file in any world."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.agents.policy_file import write_policy
from fledge.core.errors import ConfigError
from fledge.core.settings import flat_settings
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.export import export_policy
from fledge.tasks.navigation.networks.feature_policy import PlannedPolicy
from fledge.tasks.navigation.planner.kernel import PLAN_WIDTH
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.policy_loader import load_policy
from fledge.training.config import make_config

TASK = NavigationTask()


def saved(path: Path) -> Path:
    """A file of an untrained policy, with the world of its preset."""
    cfg = make_config(TASK, "planned", ["env.num_maps=2"])
    description = TASK.policy.describe(TASK, "ppo", cfg.env, cfg.policy)
    world = {"env": flat_settings(cfg.env), "decision_s": cfg.env.dt_s * cfg.env.decimation}
    model = TASK.policy.build(description).state_dict()
    write_policy({"model": model, "policy": description, "task": "navigation", "world": world}, path)
    return path


def test_untrained_it_flies_what_the_planner_would() -> None:
    policy = PlannedPolicy()
    obs = policy.example_inputs(64)
    action = policy.act(obs)
    assert isinstance(action, torch.Tensor)
    assert (2 * action - 1 - obs["plan"][:, :3]).abs().max() < 0.05


def test_a_correction_has_its_bound() -> None:
    policy = PlannedPolicy(correction=0.25)
    with torch.no_grad():
        policy.head.layer.bias.fill_(50.0)
    obs = policy.example_inputs(64)
    (mean, _), value = policy(policy.encode(obs))
    assert torch.allclose(mean - obs["plan"][:, :3], torch.tensor(0.25), atol=1e-5)
    assert value.shape == (64,)
    assert policy.inputs == policy.encode(obs).shape[1]


def test_from_a_file_it_flies_in_any_world_with_its_plan(tmp_path: Path) -> None:
    policy = load_policy(str(saved(tmp_path / "p.fledge")))
    for preset in ("crossing", "p2m", None):
        words = ["env.num_envs=4", "env.static_obstacles=20", "env.moving_obstacles=2", "env.max_episode_steps=40"]
        flight = eval_env(policy, preset, words)
        assert flight.cfg.plan
        assert not flight.cfg.pose
        assert evaluate(policy.agent, TASK, flight.cfg, 4, seed=1, num_threads=1).episodes == 4
    assert eval_env(load_policy("planner"), "crossing", home=policy.env).cfg.plan is False


def test_it_flies_behind_a_shield(tmp_path: Path) -> None:
    policy = load_policy(f"{saved(tmp_path / 'p.fledge')}+planner")
    words = ["env.num_envs=4", "env.num_maps=1", "env.max_episode_steps=40"]
    cfg = eval_env(policy, "crossing", words).cfg
    assert cfg.plan
    assert cfg.pose
    figures = evaluate(policy.agent, TASK, cfg, 4, seed=1, num_threads=1).as_dict()
    assert "shield_share" in figures


def test_an_exported_file_tells_of_the_plan(tmp_path: Path) -> None:
    result = export_policy(str(saved(tmp_path / "p.fledge")), tmp_path / "p.ts")
    assert result["max_difference"] < 1e-5
    plan = result["contract"]["observation"]["plan"]
    assert plan["shape"] == [PLAN_WIDTH]
    assert len(plan["columns"]) == PLAN_WIDTH
    assert plan["planner"]["headings"] == 32
    assert [column["name"] for column in plan["pose"]] == ["height", "yaw"]
    assert (plan["collision_radius_m"], plan["min_height_m"], plan["max_height_m"]) == (0.3, 0.2, 4.0)


def test_it_must_observe_the_plan() -> None:
    cfg = make_config(TASK, "planned", ["env.plan=false"])
    with pytest.raises(ConfigError, match=r"policy.kind=planned needs the observation plan: set env.plan=true"):
        TASK.policy.describe(TASK, "ppo", cfg.env, cfg.policy)
