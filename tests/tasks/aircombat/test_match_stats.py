"""The stats: shots, reach, merges and starts, by hand."""

import numpy as np
import pytest
import torch

from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.match_stats import MERGE_M, DuelMatch, DuelStats


def fly(env: AircombatEnv, fire: dict[int, set[int]], decisions: int = 300) -> DuelStats:
    """Straight ahead at full throttle; `fire` has the decisions at which a row shoots."""
    out = env.reset()
    stats, active = DuelStats(env), torch.ones(env.num_duels, dtype=torch.bool)
    for step in range(decisions):
        rows = torch.tensor([int(step in fire.get(row, ())) for row in range(env.num_envs)])
        action = {"rudder": torch.zeros(env.num_envs), "throttle": torch.ones(env.num_envs), "fire": rows}
        stats.before_step(out["obs"], action, active)
        out = env.step(action)
        stats.after_step(out["outcome"], active)
        active &= ~(out["terminated"] | out["truncated"])[::2]
        if not active.any():
            break
    return stats


def test_a_head_on_fight_by_hand() -> None:
    env = AircombatEnv(AircombatConfig(num_envs=2, spacetime=False), seed=1)
    notes = fly(env, {0: {3, 4}}).notes()
    assert notes["shots"].tolist() == [[2, 0]]
    assert notes["outside"].tolist() == [[0, 0]]
    assert notes["first_shot_s"][0, 0] == pytest.approx(3.0)
    assert np.isnan(notes["first_shot_s"][0, 1])
    assert (notes["won"].tolist(), notes["survived"].tolist()) == ([[1, 0]], [[1, 0]])
    env.close()


def test_the_merge_is_where_ten_kilometres_are_crossed() -> None:
    env = AircombatEnv(AircombatConfig(num_envs=2, spacetime=False, max_episode_s=60.0), seed=1)
    stats = fly(env, {})
    energy = stats.notes()["merge_energy"][0]
    # 20 km together, each from 300 m/s towards 489.9: 10 km each take about 27 s
    assert energy[0] == pytest.approx(energy[1], rel=1e-4)
    assert 400.0 < np.sqrt(2000.0 * energy[0]) < 480.0
    assert stats.notes()["merge_lead"][0] == pytest.approx([0.0, 0.0], abs=1e-2)
    env.close()


def test_a_shot_beyond_r_max_is_outside_and_one_within_is_not() -> None:
    far = AircombatConfig(num_envs=2, spacetime=False, start_range_m=90_000.0, max_episode_s=20.0)
    env = AircombatEnv(far, seed=1)  # head-on, R_max is about 74 km
    assert fly(env, {0: {0}}).notes()["outside"].tolist() == [[1, 0]]
    env.close()
    near = AircombatEnv(
        AircombatConfig(num_envs=2, spacetime=False, start_range_m=60_000.0, max_episode_s=20.0), seed=1
    )
    assert fly(near, {1: {0}}).notes()["outside"].tolist() == [[0, 0]]
    near.close()


def test_a_shot_that_is_asked_for_but_impossible_is_no_shot() -> None:
    env = AircombatEnv(AircombatConfig(num_envs=2, spacetime=False, max_episode_s=20.0), seed=1)
    notes = fly(env, {0: set(range(20))}).notes()
    assert notes["shots"][0, 0] == env.cfg.missile.carried
    env.close()


def test_each_side_knows_how_it_began() -> None:
    env = AircombatEnv(AircombatConfig(num_envs=512, spacetime=False, scenario=Scenario.mixed), seed=3)
    env.reset()
    stats = DuelStats(env)
    notes, names = stats.notes(), np.array(stats.starts)
    began = names[notes["start"]]
    kinds = np.array([kind.value for kind in Scenario])[env.state["kind"].numpy()]
    assert (np.sort(began[kinds == "defensive"], axis=1) == ["attacking", "defending"]).all()
    assert (np.sort(began[kinds == "chase"], axis=1) == ["chased", "chasing"]).all()
    assert (began[kinds == "head_on"] == "head_on").all()
    pairs = {
        "nose to nose": "nose to nose",
        "behind it": "it behind",
        "it behind": "behind it",
        "tail to tail": "tail to tail",
    }
    for one, two in began[kinds == "random"]:
        (band, way), (other_band, other_way) = one.split(", "), two.split(", ")
        assert band == other_band
        assert pairs[way] == other_way
    given = env.state["fired"].view(-1, 2).numpy() > 0
    assert ((began == "attacking") == given).all()
    env.close()


def test_figures_of_notes_by_hand() -> None:
    nan = float("nan")
    notes = {
        "shots": np.array([2.0, 0.0, 4.0, 1.0]),
        "outside": np.array([1.0, 0.0, 0.0, 0.0]),
        "won": np.array([1.0, 0.0, 1.0, 1.0]),
        "survived": np.array([1.0, 0.0, 1.0, 0.0]),
        "given": np.array([0.0, 0.0, 0.0, 1.0]),
        "first_shot_s": np.array([10.0, nan, 20.0, 0.0]),
        "merge_energy": np.array([45.0, nan, nan, nan]),
        "merge_lead": np.array([5.0, nan, nan, nan]),
    }
    told = DuelMatch().summarize(notes)
    assert told["shots"] == 1.75
    assert told["outside_r_max"] == pytest.approx(1 / 7)
    assert told["shots_per_kill"] == 3.0  # 6 shots and 2 kills without a missile given
    assert told["first_shot_s"] == 10.0
    assert told["fired"] == 0.75
    assert (told["merged"], told["merge_speed"], told["merge_lead"]) == (0.25, pytest.approx(300.0), 5.0)
    assert told["survived"] == 0.5
    silent = DuelMatch().summarize(
        {k: v * 0 if k in ("shots", "won") else v * nan if k == "first_shot_s" else v for k, v in notes.items()}
    )
    assert silent["shots_per_kill"] is silent["outside_r_max"] is silent["first_shot_s"] is None
    assert MERGE_M == 10_000.0
