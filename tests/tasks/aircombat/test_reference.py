"""The simulator beside a duel in float64 NumPy that was written from docs/worlds/aircombat.md alone."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.baselines.aircombat.behaviour import Action, Pilots
from benchmarks.baselines.aircombat.numpy_duel import (
    DRAW,
    FIRST_WON,
    GOING_ON,
    NO_MISSILES,
    SECOND_WON,
    TIME_OUT,
    NumpyDuel,
)
from benchmarks.baselines.aircombat.parity import Comparison, fights_of, fly_together
from fledge.tasks.aircombat.config import AircombatConfig, MissileConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.physics.structs import Outcome

PLAIN = AircombatConfig(spacetime=False)


def fight_both(cfg: AircombatConfig, fights: int, seed: int) -> Comparison:
    """Whole fights, with the same controls into both."""
    env = AircombatEnv(dataclasses.replace(cfg, num_envs=2 * fights), seed=seed)
    try:
        out = env.make_buffers()
        env.reset(out=out)
        pilots = Pilots(2 * fights, seed)

        def actions() -> Iterator[Action]:
            for _ in range(int(cfg.max_episode_s / cfg.decision_s) + 1):
                yield pilots.act(env)

        return fly_together(env, out, NumpyDuel(cfg, fights_of(env)), actions())
    finally:
        env.close()


def check(found: Comparison, dt_s: float, share: float = 1.0) -> None:
    assert (found.plain_outcome != GOING_ON).all()
    assert found.fighter_gap.max() < 1.0
    assert found.same_outcome >= share
    assert (
        found.end_gap.max() < 1.5 * dt_s
    )  # one step earlier or later, where the closest approach is 100 m to the millimetre


def test_outcomes_have_the_same_numbers_in_both() -> None:
    theirs = [Outcome.RUNNING, Outcome.WIN, Outcome.LOSS, Outcome.DRAW, Outcome.SPENT, Outcome.TIMEOUT]
    assert [int(o) for o in theirs] == [GOING_ON, FIRST_WON, SECOND_WON, DRAW, NO_MISSILES, TIME_OUT]


def test_500_mixed_fights_go_the_same_way_to_a_metre() -> None:
    found = fight_both(dataclasses.replace(PLAIN, scenario=Scenario.mixed), 500, seed=0)
    check(found, PLAIN.dt_s)
    assert {FIRST_WON, SECOND_WON, TIME_OUT} <= set(found.outcome.tolist())
    assert np.quantile(found.missile_gap, 0.99) < 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"dt_s": 0.2, "decimation": 5},
        {"dt_s": 1 / 30, "decimation": 10, "time_scale": 2.0, "max_episode_s": 60.0},
        pytest.param({"dt_s": 1 / 30, "decimation": 10, "time_scale": 2.0}, marks=pytest.mark.slow),
        {"load_limits": False},
        {"rudder_rate": 1.5},
        {"decimation": 3, "time_scale": 1.25},  # 3.75 steps: four shorter ones
        {"missile": MissileConfig(carried=1, burn_s=4.03, navigation=3.0, kill_radius_m=250.0)},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_fights_under_other_settings_go_the_same_way(changes: dict) -> None:
    cfg = dataclasses.replace(PLAIN, scenario=Scenario.mixed, **{"max_episode_s": 120.0} | changes)
    check(fight_both(cfg, 60, seed=1), cfg.dt_s)


def test_the_reference_notices_a_percent_of_thrust() -> None:
    env = AircombatEnv(dataclasses.replace(PLAIN, num_envs=40, scenario=Scenario.random), seed=2)
    out = env.make_buffers()
    env.reset(out=out)
    wrong = dataclasses.replace(PLAIN, fighter=dataclasses.replace(PLAIN.fighter, thrust_g=1.515))
    duel, pilots = NumpyDuel(wrong, fights_of(env)), Pilots(40, 2)
    found = fly_together(env, out, duel, (pilots.act(env) for _ in range(20)))
    env.close()
    assert found.fighter_gap.min() > 1.0


def test_a_plain_duel_stands_where_the_env_stands() -> None:
    env = AircombatEnv(dataclasses.replace(PLAIN, num_envs=20, scenario=Scenario.defensive), seed=4)
    env.reset()
    fights = fights_of(env)
    rows = torch.view_as_real(torch.from_numpy(fights.pos)).reshape(-1, 2)
    assert torch.equal(rows.float(), env.state["pos"])
    assert fights.flying.sum() == 10
    assert (fights.left.sum(1) == 11).all()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [Scenario.random, Scenario.mixed])
def test_10000_fights_go_the_same_way_to_a_metre_with_the_same_outcome_in_999_of_1000(scenario: Scenario) -> None:
    found = fight_both(dataclasses.replace(PLAIN, scenario=scenario), 5000, seed=7)
    check(found, PLAIN.dt_s, share=0.999)
