"""A pilot in the simulator: what it makes of readings is what Fledge's policy sees and commands, and it flies as well."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fledge_runtime
from benchmarks.runtime import EQUAL_M_S, fly
from fledge.evaluation.env_config import eval_env
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge_runtime import InputError, Inputs
from tests.runtime.folders import SMALL, with_memory

DRONES = 6


def flights(policy: LoadedPolicy, folder: Path, decisions: int = 120) -> dict[str, Any]:
    """Fly drones by pilots; return outcomes and differences of all commands from the policy's."""
    settings = {**SMALL, "starts": "crossing", "inside_share": 0.5}
    words = [f"env.{key}={str(value).lower()}" for key, value in settings.items()]
    cfg = dataclasses.replace(eval_env(policy, overrides=words).cfg, max_episode_steps=decisions * 4)
    deployment = fledge_runtime.load(folder)
    pilots = [deployment.pilot() for _ in range(DRONES)]
    flown = fly(policy, policy.task.policy.robot.recording_config(cfg), DRONES, 5, pilots)
    return {**flown, "own": fly(policy, policy.task.policy.robot.recording_config(cfg), DRONES, 5, [])["outcomes"]}


@pytest.mark.parametrize("name", ["reflex", "nav"])
def test_a_pilot_commands_what_the_policy_does_in_the_env(name: str, request: pytest.FixtureRequest) -> None:
    flown = flights(load_policy(f"fledge-{name}"), request.getfixturevalue(name))
    assert len(flown["gaps"]) > 200
    # a hit may fall on the border of a cell of the planner's map, as straight ahead of a drone at its start
    assert (flown["gaps"] <= EQUAL_M_S).mean() > 0.99
    assert np.median(flown["gaps"]) < 3e-6
    assert (flown["outcomes"] == flown["own"]).all()


def test_a_pilot_hands_a_recurrent_policy_its_memory(memory: Path) -> None:
    flown = flights(with_memory(), memory, decisions=60)
    assert flown["gaps"].max() < 1e-3  # whose weights are a hundred times those of a trained network
    assert (flown["outcomes"] == flown["own"]).all()


def reading(time_s: float = 0.0, x: float = 0.0, y: float = 0.0, seed: int = 0) -> Inputs:
    points = np.random.default_rng(seed).normal(size=(500, 3)) * [2.0, 2.0, 0.5] + [x, y, 1.5]
    return Inputs(time_s, (x, y, 1.5), (1.0, 0.2, 0.0), (1.0, 0.0, 0.0, 0.0), points_w=points)


@pytest.mark.parametrize("name", ["memory", "nav"])
def test_reset_clears_all_memories(name: str, request: pytest.FixtureRequest) -> None:
    pilot, commands = fledge_runtime.load(request.getfixturevalue(name)).pilot(), []
    for _ in range(2):
        pilot.reset((0, 0, 1.5), (20, 5, 1.5))
        commands.append([pilot.step(reading(0.1 * k, 0.1 * k, seed=k)).velocity_w for k in range(5)])
    np.testing.assert_array_equal(commands[0], commands[1])
    pilot.reset((0, 0, 1.5), (20, 5, 1.5))
    fresh = pilot.step(reading(0.4, 0.4, seed=4)).velocity_w
    assert np.abs(fresh - commands[0][4]).max() > 1e-4  # it remembered something


def test_the_whole_world_may_be_turned(reflex: Path) -> None:
    pilot, turn = fledge_runtime.load(reflex).pilot(), np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
    given = reading()
    pilot.reset((0, 0, 1.5), (20, 5, 1.5))
    straight = pilot.step(given).velocity_w
    half = np.sqrt(0.5)
    turned = Inputs(
        0.0, given.position_w, turn @ given.velocity_w, (half, 0, 0, half), points_w=given.points_w @ turn.T
    )
    pilot.reset((0, 0, 1.5), (-5, 20, 1.5))
    np.testing.assert_allclose(pilot.step(turned).velocity_w, turn @ straight, atol=1e-4)


def test_a_command_says_what_it_saw(nav: Path) -> None:
    pilot = fledge_runtime.load(nav).pilot()
    pilot.reset((0, 0, 1.5), (20, 0, 1.5))
    near = ((2.0, 0.0, 1.5), (0.0, 0.0, 0.0), 0.5)
    given = Inputs(3.0, (0, 0, 1.5), (0, 0, 0), (1, 0, 0, 0), points_w=np.array([[1.5, 0, 1.5]]), movers=[near])
    command = pilot.step(given)
    assert command.time_s == 3.0
    assert (np.abs(command.velocity_w) <= 2.0 + 1e-6).all()
    info = command.info
    assert (info["arrived"], info["rays_hit"], info["goal_m"]) == (False, 1, pytest.approx(20.0))
    assert (info["nearest_m"], info["nearest_mover_m"]) == (pytest.approx(1.5), pytest.approx(2.0))
    assert -1.0 <= info["plan_cost"] <= 1.0
    assert {*info["ms"]} == {"observe", "plan", "network", "total"}
    arrived = pilot.step(Inputs(4.0, (19.8, 0, 1.5), (0, 0, 0), (1, 0, 0, 0), points_w=np.zeros((0, 3))))
    assert arrived.info["arrived"]
    assert arrived.info["nearest_m"] == np.inf


def test_a_reading_that_is_refused_leaves_no_trace(nav: Path) -> None:
    pilots = [fledge_runtime.load(nav).pilot() for _ in range(2)]
    for pilot in pilots:
        pilot.reset((0, 0, 1.5), (20, 5, 1.5))
        pilot.step(reading(0.0))
    broken = reading(0.05, seed=9)
    broken.velocity_w = (np.nan, 0, 0)
    with pytest.raises(InputError, match="velocity_w has NaN"):
        pilots[0].step(broken)
    ours, theirs = (pilot.step(reading(0.1, 0.1, seed=1)).velocity_w for pilot in pilots)
    np.testing.assert_array_equal(ours, theirs)


def test_movers_are_refused_by_a_policy_that_tracks_its_own(nav: Path) -> None:
    pilot = fledge_runtime.load(nav).pilot()
    pilot.reset((0, 0, 1.5), (20, 5, 1.5))
    given = reading(0.0)
    given.movers = []
    pilot.planner.tracks = True
    with pytest.raises(InputError, match="leave movers out"):
        pilot.step(given)


def test_time_must_grow_and_a_flight_must_begin(reflex: Path) -> None:
    pilot = fledge_runtime.load(reflex).pilot()
    with pytest.raises(InputError, match="Call reset"):
        pilot.step(reading())
    pilot.reset((0, 0, 1.5), (20, 5, 1.5))
    pilot.step(reading(1.0))
    for when in (1.0, 0.5, float("nan"), None, "later"):
        with pytest.raises(InputError, match=r"time_s is .* must grow"):
            pilot.step(reading(when))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="goal_w must be 3 numbers"):
        pilot.reset((0, 0, 1.5), (20, 5))


def test_the_network_alone_gives_the_action_for_golden_observations(memory: Path) -> None:
    deployment = fledge_runtime.load(memory)
    policy, agent = deployment.policy(), with_memory().agent
    rng = np.random.default_rng(0)
    for _ in range(4):
        obs = {name: rng.normal(size=shape).astype(np.float32) for name, (shape, _) in policy.shapes.items()}
        obs["lidar"] = np.abs(obs["lidar"]).clip(0, 4)
        expected = agent.act({name: torch.as_tensor(value[None]) for name, value in obs.items()})
        assert isinstance(expected, torch.Tensor)
        np.testing.assert_allclose(policy.act(obs)["action"], expected[0].numpy(), atol=1e-4)
    with pytest.raises(InputError, match="obs lacks lidar"):
        policy.act({"state": obs["state"]})
    with pytest.raises(InputError, match="has shape"):
        policy.act({**obs, "state": np.zeros(7)})
    with pytest.raises(InputError, match="NaN"):
        policy.act({**obs, "state": np.full(8, np.nan)})
