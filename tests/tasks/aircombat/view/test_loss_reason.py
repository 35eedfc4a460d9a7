"""Why a fight was lost: checked by flying it again with the defence that the sentence names."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fledge.core.errors import FormatError
from fledge.tasks.aircombat.config import AircombatConfig, MissileConfig
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.spacetime.recorded import config_of, physics_settings
from fledge.tasks.registry import find_task
from fledge.tasks.view.trajectory import Trajectory

TASK = find_task("aircombat")


def record(rudder: Callable[[int, AircombatEnv], float], start_range_m: float = 30_000.0) -> Trajectory:
    """A fight in which row 0 fires at once and then turns away, while row 1 flies by `rudder(decision, env)`."""
    env = AircombatEnv(AircombatConfig(num_envs=2, spacetime=False, start_range_m=start_range_m), seed=1)
    out, frames = env.reset(), list[dict[str, np.ndarray]]()
    for step in range(240):
        frames.append(TASK.view.snapshot(env, [1]))
        turns = torch.tensor([1.0 if step else 0.0, rudder(step, env)])
        out = env.step({"rudder": turns, "throttle": torch.ones(2), "fire": torch.tensor([int(step == 0), 0])})
        if out["terminated"][0] or out["truncated"][0]:
            break
    scene, outcome = TASK.view.scene(env, [1])[0], env.outcomes[int(out["outcome"][1])]
    env.close()
    return Trajectory({k: np.stack([f[k][0] for f in frames]) for k in frames[0]}, scene, outcome)


def turn_away_at(decision: int) -> Callable[[int, AircombatEnv], float]:
    """Straight on, and from a decision on away from the missile."""

    def rudder(step: int, env: AircombatEnv) -> float:
        if step < decision:
            return 0.0
        away = env.state["pos"][1] - env.state["m_pos"][0, 0]
        nose = env.state["dir"][1]
        angle = torch.atan2(nose[0] * away[1] - nose[1] * away[0], (nose * away).sum())
        return float((angle * 1000.0 / env.state["speed"][1]).clamp(-1.0, 1.0))

    return rudder


def test_turning_away_saves_until_the_moment_that_is_told_and_not_later() -> None:
    track = record(turn_away_at(999))
    assert track.outcome == "loss"
    told = TASK.view.explain(track)
    assert told is not None
    assert told.kind == "turned away too late"
    found = re.search(r"Killed (\d+) s in .* at 30\.0 km, inside R_max .* turning away saved until (\d+) s", told.why)
    assert found, told.why
    assert "It had not fired; it had 6 of its 6 missiles left." in told.why
    last = int(found[1]) - int(found[2])
    assert record(turn_away_at(last)).outcome != "loss"
    assert record(turn_away_at(last + 1)).outcome == "loss"


def test_who_was_not_killed_has_nothing_to_explain() -> None:
    track = record(turn_away_at(999))
    assert TASK.view.explain(track, 1) is None
    assert TASK.view.explain(Trajectory(track.frames, track.scene, "timeout")) is None


def test_a_shot_from_nearby_leaves_no_way_out() -> None:
    told = TASK.view.explain(record(turn_away_at(1), start_range_m=8_000.0))
    assert told is not None
    assert told.kind == "began inside R_tr"
    assert "no defence helped any more" in told.why


def test_a_recording_from_before_burn_times_were_kept_says_what_is_known() -> None:
    track = record(turn_away_at(999))
    told = TASK.view.explain(
        Trajectory({k: v for k, v in track.frames.items() if k != "missile_motor_s"}, track.scene, "loss")
    )
    assert told is not None
    assert told.kind == "not known"
    assert "at 30.0 km" in told.why


def test_a_fight_is_drawn_closely() -> None:
    figure = TASK.view.draw_closely(record(turn_away_at(999)), "a title")
    above, blue, red = figure.axes
    assert "red wins" in above.get_title()
    assert "blue's missile" in blue.get_title()
    assert "red's missile" in red.get_title()


def test_a_scene_says_what_is_not_usual_in_its_physics() -> None:
    cfg = AircombatConfig(missile=MissileConfig(burn_s=8.0), load_limits=False, num_envs=64)
    changed = physics_settings(cfg)
    assert changed == {"missile.burn_s": 8.0, "load_limits": False}
    again = config_of({"physics": changed})
    assert (again.missile.burn_s, again.load_limits) == (8.0, False)
    assert physics_settings(AircombatConfig(num_envs=8)) == {}
    with pytest.raises(FormatError, match="dict of settings"):
        config_of({"physics": {"num_envs": 3}})
