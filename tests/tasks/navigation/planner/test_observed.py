"""The plan as an observation: it is the pilot's own, it belongs to the env's state, and it forgets with the episode."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fledge.core.errors import ConfigError, InputError
from fledge.tasks.navigation.compact_maps import pack
from fledge.tasks.navigation.config import ActionForm, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.orca.pilot import OrcaPilot
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.kernel import AROUND, HEADINGS, PLAN_WIDTH
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.planner.reader import PlanReader
from fledge.tasks.navigation.steering import OBSERVED

WORLD = NavigationConfig(
    num_envs=10, num_maps=2, decimation=4, plan=True, starts=Starts.mixed, inside_share=1.0, max_episode_steps=48
)


def actions(count: int, steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(count, 3, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("guard", [False, True])
def test_who_flies_the_plan_flies_as_the_pilot(guard: bool) -> None:
    cfg = PlannerConfig(guard=guard)
    world = dataclasses.replace(WORLD, pose=True, planner=cfg)
    env, pilot = NavigationEnv(world, seed=3, num_threads=1), PlannerPilot(cfg, world)
    out, ended = env.reset(), 0
    for _ in range(30):
        action = 0.5 * out["obs"]["plan"][:, :3] + 0.5
        assert torch.equal(action, pilot.act(out["obs"]))
        out = env.step(action)
        over = out["terminated"] | out["truncated"]
        pilot.reset(over)
        ended += int(over.sum())
    assert ended > 10
    env.close()


def test_guarded_the_command_is_turned_as_the_orca_shield_turns_it_and_nothing_else_changes() -> None:
    plain = dataclasses.replace(WORLD, pose=True, num_envs=32, moving_obstacles=120, num_maps=4)
    guarded = dataclasses.replace(plain, planner=PlannerConfig(guard=True))
    envs = [NavigationEnv(world, seed=5, num_threads=1) for world in (plain, guarded)]
    shield, turned = OrcaPilot(plain), 0
    outs = [env.reset() for env in envs]
    for action in actions(32, 40):
        free, kept = (out["obs"]["plan"] for out in outs)
        wanted = plain.speed_limit * free[:, :3]
        expected = (shield.command(outs[0]["obs"], wanted) / plain.speed_limit).clamp(-1.0, 1.0)
        assert torch.allclose(kept[:, :3], expected, atol=1e-5)
        assert torch.equal(kept[:, 3:], free[:, 3:])
        turned += int((kept[:, :3] - free[:, :3]).abs().amax(dim=1).gt(1e-3).sum())
        outs = [env.step(action) for env in envs]
    assert turned > 10
    for env in envs:
        env.close()


def test_in_the_open_nothing_lies_ahead_and_the_goal_is_gained_on() -> None:
    world = dataclasses.replace(WORLD, static_obstacles=0, moving_obstacles=0, starts=Starts.edges)
    env = NavigationEnv(world, seed=1, num_threads=1)
    plan = env.reset()["obs"]["plan"]
    around = plan[:, AROUND:].view(10, HEADINGS, 4)
    far = env.state["start"].sub(env.state["goal"])[:, :2].norm(dim=-1) > 10.0
    assert far.any()
    assert (plan[:, 5] == 1).all()
    assert (plan[:, 6] == 0).all()
    assert (around[..., :2] == 1).all()
    assert (around[..., 2] == 0).all()
    assert (around[far, 0, 3] > 0.9).all()
    assert (around[far, HEADINGS // 2, 3] < -0.9).all()
    assert (around[far, HEADINGS // 4, 3].abs() < 0.2).all()
    assert (plan[far, 0] == 1).all()
    assert (plan[far, 1].abs() < 1e-3).all()
    env.close()


def test_a_saved_env_goes_on_with_the_same_plans_for_any_number_of_threads() -> None:
    env, other = NavigationEnv(WORLD, seed=2, num_threads=1), NavigationEnv(WORLD, seed=2, num_threads=3)
    env.reset()
    for action in actions(10, 9):
        env.step(action)
    state = env.state_dict()
    other.load_state_dict(state)
    for action in actions(10, 20):
        ours, theirs = env.step(action), other.step(action)
        for root in ("obs", "final_obs"):
            assert torch.equal(ours[root]["plan"], theirs[root]["plan"])
    plain = NavigationEnv(dataclasses.replace(WORLD, plan=False), seed=2, num_threads=1)
    plain.load_state_dict(state)  # who does not plan does not mind
    with pytest.raises(InputError, match="nothing for plan_cells"):
        env.load_state_dict(plain.state_dict())
    for e in (env, other, plain):
        e.close()


def test_a_masked_reset_leaves_the_plans_of_others_as_they_were() -> None:
    env, other = NavigationEnv(WORLD, seed=2, num_threads=1), NavigationEnv(WORLD, seed=2, num_threads=1)
    for e in (env, other):
        e.reset()
    for action in actions(10, 5):
        before = env.step(action)["obs"]["plan"].clone()
        other.step(action)
    mask = torch.arange(10) % 2 == 0
    seen = env.reset(mask)["obs"]["plan"]
    assert torch.equal(seen[~mask], before[~mask])
    assert not torch.equal(seen[mask], before[mask])
    action = actions(10, 1)[0]
    assert torch.equal(env.step(action)["obs"]["plan"][~mask], other.step(action)["obs"]["plan"][~mask])
    env.close()
    other.close()


def test_a_new_episode_remembers_nothing_and_the_last_plan_is_in_final_obs() -> None:
    env = NavigationEnv(WORLD, seed=4, num_threads=1)
    out = env.reset()
    for action in actions(10, 40):
        out = env.step(action)
        over = out["terminated"] | out["truncated"]
        if over.any():
            break
    assert over.any()
    assert out["obs"]["plan"].shape == (10, PLAN_WIDTH)
    assert not torch.equal(out["final_obs"]["plan"][over], out["obs"]["plan"][over])
    again = NavigationEnv(WORLD, seed=4, num_threads=1)
    again.reset()
    state = env.state_dict()
    for name in ("plan_length", "plan_kept"):  # what was remembered before plays no part
        state["drones"][name] = torch.zeros_like(state["drones"][name])
    assert env.plan is not None
    state["drones"] |= pack("plan_cells", torch.zeros_like(env.plan.state["cells"]), env.plan.planner.map)
    again.load_state_dict(state)
    assert torch.equal(again.reset(over)["obs"]["plan"][over], env.reset(over)["obs"]["plan"][over])
    env.close()
    again.close()


def test_a_plan_is_of_velocities() -> None:
    with pytest.raises(ConfigError, match=r"needs env\.action_form=velocity"):
        NavigationEnv(dataclasses.replace(WORLD, action_form=ActionForm.headings))


def test_a_reader_elsewhere_reads_the_same_plans() -> None:
    world = dataclasses.replace(WORLD, pose=True, max_episode_steps=400)
    env, reader = NavigationEnv(world, seed=5, num_threads=1), PlanReader(world, 10)
    out, flown, goes_on = env.reset(), None, torch.ones(10, dtype=torch.bool)
    for action in actions(10, 12):
        plan = reader.read(out["obs"], flown)
        assert torch.equal(plan[goes_on], out["obs"]["plan"][goes_on])
        out, flown = env.step(action), action
        goes_on &= ~(out["terminated"] | out["truncated"])
    assert goes_on.any()
    arrays = {name: out["obs"][name].double().numpy() for name in OBSERVED}
    assert torch.equal(reader.read(arrays), PlanReader(world, 10).read(out["obs"]))
    with pytest.raises(InputError, match="pose must have 20 numbers"):
        reader.read({name: out["obs"][name] for name in ("state", "lidar", "dynamic_obstacle")})
    env.close()


@pytest.mark.parametrize("name", [*OBSERVED, "flown"])
def test_a_reading_that_is_not_finite_is_refused_and_the_flight_goes_on_as_without_it(name: str) -> None:
    world = dataclasses.replace(WORLD, pose=True, num_envs=1)
    env = NavigationEnv(world, seed=5, num_threads=1)
    first = {key: value.clone() for key, value in env.reset()["obs"].items()}
    flown = torch.tensor([[0.9, 0.4, 0.5]])
    after = {key: value.clone() for key, value in env.step(flown)["obs"].items()}
    env.close()
    reader, other = PlanReader(world), PlanReader(world)
    for each in (reader, other):
        each.read(first)
    bad = {**after, "flown": flown}
    bad[name] = torch.full_like(bad[name], float("nan"))
    with pytest.raises(InputError, match=f"{name} must be finite"):
        reader.read(bad, bad["flown"])
    assert torch.equal(reader.read(after, flown), other.read(after, flown))


def test_a_reader_refuses_no_drones_a_wrong_number_of_actions_and_a_world_that_is_none() -> None:
    with pytest.raises(InputError, match="count must be at least 1"):
        PlanReader(WORLD, 0)
    with pytest.raises(ConfigError, match="decimation is 0"):
        PlanReader(dataclasses.replace(WORLD, decimation=0))
    obs = {"state": torch.zeros(2, 8), "lidar": torch.zeros(2, 144), "dynamic_obstacle": torch.zeros(2, 50)}
    with pytest.raises(InputError, match="flown must have 6 numbers"):
        PlanReader(WORLD, 2).read({**obs, "pose": torch.zeros(2, 2)}, torch.zeros(1, 3))


def test_a_state_that_was_saved_before_the_planner_remembered_movers_can_be_loaded() -> None:
    world = NavigationConfig(num_envs=4, num_maps=1, decimation=4, plan=True, static_obstacles=50, moving_obstacles=8)
    env, other = NavigationEnv(world, seed=1), NavigationEnv(world, seed=1)
    env.reset()
    flown = torch.full((4, 3), 0.6)
    env.step(flown)
    state = env.state_dict()
    for name in ("drawn", "stay", "stay_pos", "place", "motion", "unseen"):
        del state["drones"][f"plan_{name}"]
    other.load_state_dict(state)
    assert torch.equal(other.step(flown)["obs"]["state"], env.step(flown)["obs"]["state"])
    del state["drones"]["plan_cells_hits_at"]  # the map itself must be there
    with pytest.raises(InputError, match="plan_cells"):
        other.load_state_dict(state)
    env.close()
    other.close()
