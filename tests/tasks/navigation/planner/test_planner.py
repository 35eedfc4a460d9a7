"""The planner: it does what its plain reference does, for any split of drones and threads, and remembers per drone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fledge.core.errors import ConfigError, InputError
from fledge.core.specs import TensorSpec
from fledge.tasks.navigation.config import NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.policy_loader import load_policy
from tests.reference.plain_planner import PlainPlanner

TASK = NavigationTask()
WORLD = NavigationConfig(
    num_envs=12, num_maps=2, decimation=4, pose=True, starts=Starts.mixed, inside_share=1.0, max_episode_steps=72
)


def fly(pilot: PlannerPilot, steps: int, seed: int = 3, threads: int = 1) -> list[dict[str, Tensor]]:
    """Observations and actions of a flight."""
    env = NavigationEnv(pilot.env_cfg, seed=seed, num_threads=threads)
    out, seen = env.reset(), []
    for _ in range(steps):
        obs = {name: out["obs"][name].clone() for name in pilot.observes}
        action = pilot.act(obs)
        seen.append({**obs, "action": action.clone()})
        out = env.step(action)
        over = out["terminated"] | out["truncated"]
        pilot.reset(over)
        seen[-1]["over"] = over.clone()
    env.close()
    return seen


@pytest.mark.parametrize(
    "changes",
    [
        {"brief_s": 0.0, "lag_s": 0.0, "skin_m": 0.0},
        {"lag_s": 0.15, "skin_m": 0.07, "standing": False},
        {"memory": False, "fast": 1.5, "mover_margin_m": 1.5},
        {"patience_s": 0.0, "margin_cost": 3.0},
    ],
    ids=str,
)
def test_it_chooses_what_the_plain_planner_chooses(changes: dict[str, Any]) -> None:
    cfg = PlannerConfig(ways_every=0, horizon_s=1.2, brief_s=0.5, headings=6)
    cfg = dataclasses.replace(cfg, **changes)
    world = dataclasses.replace(WORLD, num_envs=3)
    seen = fly(PlannerPilot(cfg, world), 8)
    assert any(step["dynamic_obstacle"].any() for step in seen)
    differ = 0
    for i in range(3):
        plain = PlainPlanner(cfg, world)
        for step in seen:
            command, costs = plain.act({k: step[k][i].numpy() for k in PlannerPilot.observes})
            ours = (step["action"][i].numpy() * 2 - 1) * world.speed_limit
            if np.abs(ours - command).max() > 1e-3:
                differ += 1  # a look may fall on the border of a cell: another choice must be about as good
                found = [c for c in all_commands(plain) if np.abs(c - ours).max() < 1e-3]
                assert found, "not a candidate"
                kinds = [plain.costs(np.array(found[:1]), held_s)[0] for held_s in (9.0, cfg.brief_s or 9.0)]
                assert min(kinds) < costs.min() + 0.4
            if step["over"][i]:
                plain.forget()
    assert differ <= 3  # of 24


def all_commands(plain: PlainPlanner) -> list[np.ndarray]:
    ahead = -plain.pos[:2] / np.hypot(*plain.pos[:2])
    turn = np.array([[ahead[0], -ahead[1], 0], [ahead[1], ahead[0], 0], [0, 0, 1.0]])
    return [turn @ c for c in plain.candidates()]


def test_no_command_is_tried_that_the_speed_limit_would_bend() -> None:
    world = dataclasses.replace(WORLD, speed_limit=0.6, plan=True)
    for pilot in (
        PlannerPilot(env_cfg=world),
        PlannerPilot(PlannerConfig(fast=0.6, middle=0.6, slow=0.6, climb=0.6), world),
    ):
        seen = fly(pilot, 6)
        command = torch.stack([step["action"] for step in seen]) * 1.2 - 0.6
        assert (command[..., :2].norm(dim=-1) < 0.6 + 1e-5).all()
        assert command.norm(dim=-1).max() > 0.59
    env = NavigationEnv(world, seed=3, num_threads=1)
    plan = env.reset()["obs"]["plan"]
    assert plan.abs().max() <= 1.0
    assert torch.equal(0.5 * plan[:, :3] + 0.5, seen[0]["action"])
    env.close()


@pytest.mark.parametrize("height", [1.5, 3.9, 4.3, 7.0])
def test_it_sees_a_wall_at_any_height(height: float) -> None:
    world = NavigationConfig(pose=True, decimation=4, max_height_m=9.0)
    lidar = torch.zeros(1, 1, 36, 4)
    lidar[0, 0, [34, 35, 0, 1, 2], :] = 4.0 - 1.2
    obs = {
        "state": torch.tensor([[1.0, 0, 0, 20.0, 0, 1.8, 0, 0]]),
        "lidar": lidar,
        "dynamic_obstacle": torch.zeros(1, 1, 5, 10),
        "pose": torch.tensor([[height, 0.0]]),
    }
    for standing in (True, False):
        straight_on = torch.tensor([1.0, 0.5, 0.5])
        assert not torch.equal(PlannerPilot(PlannerConfig(standing=standing), world).act(obs)[0], straight_on)


def test_results_depend_neither_on_threads_nor_on_the_split_of_drones() -> None:
    seen = fly(PlannerPilot(env_cfg=WORLD), 40)
    old = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = fly(PlannerPilot(env_cfg=WORLD), 40, threads=3)
    finally:
        torch.set_num_threads(old)
    halves = [PlannerPilot(env_cfg=WORLD), PlannerPilot(env_cfg=WORLD)]
    assert any(step["over"].any() for step in seen)
    for step, other in zip(seen, again, strict=True):
        assert torch.equal(step["action"], other["action"])
        rows = [slice(0, 5), slice(5, 12)]
        parts = [p.act({k: step[k][r] for k in p.observes}) for p, r in zip(halves, rows, strict=True)]
        assert torch.equal(torch.cat(parts), step["action"])
        for pilot, r in zip(halves, rows, strict=True):
            pilot.reset(step["over"][r])


def test_a_masked_reset_forgets_where_it_says_and_nowhere_else() -> None:
    seen = fly(PlannerPilot(env_cfg=WORLD), 12)
    pilot, last = PlannerPilot(env_cfg=WORLD), seen[-1]
    for step in seen:
        pilot.act(step)
        pilot.reset(step["over"])
    kept = pilot.episode_state()
    mask = torch.arange(12) % 2 == 0
    pilot.reset(mask)
    pilot.act(last)
    forgot, new = pilot.episode_state(), PlannerPilot(env_cfg=WORLD)
    new.act(last)
    assert torch.equal(forgot["cells"][mask], new.episode_state()["cells"][mask])
    pilot.load_episode_state(kept)
    pilot.act(last)
    assert torch.equal(forgot["cells"][~mask], pilot.episode_state()["cells"][~mask])
    assert not torch.equal(forgot["cells"][mask], pilot.episode_state()["cells"][mask])


def test_memory_and_recall_go_on_as_if_never_stopped() -> None:
    seen = fly(PlannerPilot(env_cfg=WORLD), 16)
    pilot, other = PlannerPilot(env_cfg=WORLD), PlannerPilot(env_cfg=WORLD)
    for step in seen[:8]:
        pilot.act(step)
        pilot.reset(step["over"])
    other.load_episode_state(pilot.episode_state())
    for step in seen[8:]:
        assert torch.equal(other.act(step), step["action"])
        other.reset(step["over"])
    with pytest.raises(InputError, match="this env needs"):
        other.load_episode_state({**pilot.episode_state(), "cells": torch.zeros((12, 2), dtype=torch.int64)})
    other.load_episode_state({})
    assert other.episode_state() == {}


def test_it_crosses_where_flying_straight_does_not() -> None:
    from fledge.evaluation.env_config import eval_env
    from fledge.evaluation.episodes import evaluate
    from fledge.tasks.policy_loader import load_policy

    words = ["env.num_envs=24", "env.num_maps=4", "env.moving_obstacles=0", "env.static_obstacles=200"]
    rates = {}
    for name in ("straight", "planner"):
        policy = load_policy(name)
        flight = eval_env(policy, "crossing", words)
        assert flight.cfg.pose == (name == "planner")
        rates[name] = evaluate(policy.agent, TASK, flight.cfg, 24, seed=1, num_threads=1).rate("success")
    assert rates["straight"] < 0.2
    assert rates["planner"] > 0.8


def test_the_pose_is_the_height_and_the_yaw_against_the_goal_frame() -> None:
    env = NavigationEnv(dataclasses.replace(WORLD, starts=Starts.edges), seed=2, num_threads=1)
    assert env.observation_spec["pose"] == TensorSpec((2,), torch.float32, doc=env.observation_spec["pose"].doc)
    out = env.reset()
    assert torch.allclose(out["obs"]["pose"][:, 0], env.state["pos"][:, 2])
    assert out["obs"]["pose"][:, 1].abs().max() < 1e-5  # yaw towards the goal
    for _ in range(30):
        out = env.step(torch.tensor([1.0, 0.0, 0.8]).expand(12, 3))
    q, d = env.state["quat"], out["obs"]["direction"][:, 0]
    yaw = torch.atan2(2 * (q[:, 3] * q[:, 2] + q[:, 0] * q[:, 1]), 1 - 2 * (q[:, 1] ** 2 + q[:, 2] ** 2))
    turned = yaw - torch.atan2(d[:, 1], d[:, 0])
    assert torch.allclose(out["obs"]["pose"][:, 1], torch.atan2(turned.sin(), turned.cos()), atol=1e-5)
    assert out["obs"]["pose"][:, 1].abs().max() > 1e-3
    contract = TASK.contract(WORLD)["observation"]["pose"]
    assert [column["name"] for column in contract["columns"]] == ["height", "yaw"]
    env.close()


def test_it_is_named_with_settings_or_without_and_refuses_what_it_does_not_know() -> None:
    pilot = load_policy("planner(horizon_s=2, fast=1.5)").agent
    assert isinstance(pilot, PlannerPilot)
    assert (pilot.cfg.horizon_s, pilot.cfg.fast) == (2.0, 1.5)
    assert pilot.get_name() == "planner"
    for name, message in (
        ("planner(speed=2)", "speed"),
        ("planner(fast=-1)", "greater than 0"),
        ("gap(x=1)", "no parameter x"),
        ("planner(fast=1", "no policy"),
        ("planner(horizon_s=0.04)", "0 prediction steps, but the planner needs 2 to 1,000"),
        ("planner(step_s=0.000001)", "3,000,000 prediction steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_policy(name)
