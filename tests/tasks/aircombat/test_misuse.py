"""Env configs that cannot be simulated are refused in one sentence."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError, InputError
from fledge.tasks.aircombat.config import ActionForm, FighterConfig, MissileConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from tests.tasks.aircombat.duels import PLAIN, action, make


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 0}, r"^env\.num_envs is 0, but must be "),
        (
            {"num_envs": 7},
            r"^env\.num_envs is 7, but must be even while env\.opponent is empty, as two rows make a duel: set an even",
        ),
        ({"missile": MissileConfig(carried=17)}, r"^env\.missile\.carried is 17, but must be "),
        ({"missile": MissileConfig(carried=0)}, r"^env\.missile\.carried is 0, but must be "),
        ({"dt_s": 0.0}, r"^env\.dt_s is 0\.0, but must be "),
        ({"dt_s": float("nan")}, r"^env\.dt_s is nan, but must be finite"),
        ({"max_episode_s": 0.5}, r"^env\.max_episode_s is 0\.5, but must be at least the 1 s of one decision"),
        (
            {"min_range_m": 70_000.0},
            r"^env\.min_range_m is 70000, but must be at most env\.max_range_m, which is 60000",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_flown_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AircombatEnv(dataclasses.replace(PLAIN, **changes))


def test_odd_rows_against_an_opponent_are_refused_by_the_env_that_flies_both_sides() -> None:
    with pytest.raises(InputError, match=r"^num_envs is 3, but must be even: two rows make a duel\.$"):
        AircombatEnv(dataclasses.replace(PLAIN, num_envs=3, opponent="crank"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"rudder": torch.tensor([0, 0, torch.nan, 0])},
            r"^The action's rudder of env 2 is nan, but must be finite\.$",
        ),
        ({"throttle": torch.full((4,), torch.inf)}, r"^The action's throttle of env 0 is inf, but must be finite\.$"),
        ({"rudder": torch.zeros(3)}, r"^The action's rudder has shape \(3,\), but must have \(4,\)\.$"),
        ({"rudder": torch.zeros(4, 1)}, r"^The action's rudder has shape \(4, 1\), but must have \(4,\)\.$"),
        ({"fire": torch.full((4,), 2)}, r"^The action's fire of env 0 is 2, but must be 0 to 1\.$"),
        (
            {"fire": torch.zeros(4)},
            r"^The action's fire has dtype torch\.float32, but must have torch\.int64, with values from 0 to 1\.$",
        ),
        ({"rudder": [0, 0, 0, 0]}, r"^The action's rudder is a list, but must be a torch\.Tensor of shape \(4,\)\.$"),
    ],
)
def test_actions_that_are_none_are_refused_and_nothing_moves(given: dict[str, Any], message: str) -> None:
    env = make(2)
    before = env.state["pos"].clone()
    with pytest.raises(InputError, match=message):
        env.step(action(4) | given)
    assert torch.equal(env.state["pos"], before)


def test_an_action_that_is_no_dict_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^The action is a Tensor, but must be a dict with the keys rudder, throttle, fire\.$"
    ):
        make(2).step(torch.zeros(4, 3))


def test_a_discrete_action_beyond_six_is_refused() -> None:
    env = make(2, action_form=ActionForm.discrete)
    with pytest.raises(InputError, match=r"^The action of env \d is \d+, but must be 0 to 5\.$"):
        env.step(torch.tensor([0, 1, 6, 0]))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1001.0])
def test_a_decision_of_no_length_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match=r"^dt is .*, but must be more than 0 and at most 1000 s\.$"):
        make(2).step(action(4), dt=seconds)


@pytest.mark.parametrize("fired", [-1, 7])
def test_a_state_with_more_missiles_than_slots_is_refused_and_nothing_is_taken_over(fired: int) -> None:
    env = make(2)
    state, before = env.state_dict(), env.state["pos"].clone()
    state["duels"]["fired"][1] = fired
    state["duels"]["pos"] += 1.0
    with pytest.raises(InputError, match=r"missiles, but in this env a side carries 6: set env\.missile\.carried"):
        env.load_state_dict(state)
    assert torch.equal(env.state["pos"], before)


def test_a_state_of_another_rack_is_refused() -> None:
    saved = make(2, missile=MissileConfig(carried=8)).state_dict()
    with pytest.raises(
        InputError,
        match=r"^The saved state has shape \(4, 8, 2\) for m_pos, but this env needs shape \(4, 6, 2\): make",
    ):
        make(2).load_state_dict(saved)


@pytest.mark.parametrize("word", ["env.opponent=pursuit", "league.ladder=[placeholder,pursuit]"])
def test_a_pilot_that_cannot_see_what_it_needs_is_refused_before_anything_is_flown(word: str, tmp_path: Path) -> None:
    words = [
        "train",
        "aircombat",
        "env.spacetime=false",
        word,
        "env.num_envs=4",
        "ranks=1",
        "--folder",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "reads spacetime, which this env does not observe" in done.output


@pytest.mark.parametrize("spacetime", [True, False])
def test_a_policy_reads_the_graph_or_not_while_its_opponents_do(spacetime: bool) -> None:
    cfg = make_config("aircombat", None, ["env.opponent=pursuit", f"policy.spacetime={spacetime}".lower()])
    task = find_task("aircombat")
    policy = task.policy.build(task.policy.describe(task, "ppo", cfg.env, cfg.policy))
    assert ("spacetime" in policy.observes) is spacetime
    assert cfg.env.spacetime


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_choices_may_be_integers_of_any_size(kind: torch.dtype) -> None:
    given = torch.tensor([0, 5, 3, 4])
    envs = [make(2, action_form=ActionForm.discrete) for _ in range(2)]
    states = [env.step(chosen)["obs"]["state"] for env, chosen in zip(envs, (given, given.to(kind)), strict=True)]
    assert torch.equal(*states)


def test_masks_times_and_actions_of_other_kinds_are_refused_in_a_sentence() -> None:
    env = make(2)
    with pytest.raises(InputError, match=r"^env_mask must be a bool tensor of shape \(4,\) on cpu, not a list\.$"):
        env.reset([True] * 4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^dt is '1', but must be"):
        env.step(action(4), "1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dense"):
        env.step({**action(4), "rudder": torch.zeros(4).to_sparse()})
    env.step(action(4), np.float32(0.5))  # type: ignore[arg-type]
    env.close()
    with pytest.raises(InputError, match=r"^reset\(\) was called after close\(\)"):
        env.reset()


EXTREMES = [
    {"fighter": FighterConfig(terminal_speed=1e6)},
    {"fighter": FighterConfig(min_turn_radius_m=1e-3, thrust_g=1e6)},
    {"missile": MissileConfig(terminal_speed=1e6)},
    {"missile": MissileConfig(lift_drag=1e-3, thrust_g=1e6)},
    {"start_speed": 2000.0},
    {"fighter": FighterConfig(thrust_g=1e-3)},
]


@pytest.mark.parametrize("changes", EXTREMES, ids=str)
def test_whatever_the_settings_observations_are_finite_and_within_their_bounds(changes: dict[str, Any]) -> None:
    env = make(32, scenario=Scenario.mixed, nan_guard=True, **changes)
    for k in range(20):
        out = env.step(action(64, rudder=np.linspace(-1, 1, 64), fire=int(k % 3 == 0)))
        for name, spec in env.observation_spec.items():
            assert (out["obs"][name] <= spec.high).all(), name
            assert (out["obs"][name] >= spec.low).all(), name
    env.close()
