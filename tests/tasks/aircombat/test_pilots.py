"""Pilots do what their names say: each manoeuvre in a real fight, watched from outside."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.evaluation.matches import play
from fledge.tasks import policy_loader
from fledge.tasks.aircombat.config import ActionForm, AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.pilots import PILOTS, CrankPilot, DecodedObs, DragPilot, Pilot
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task

TASK = find_task("aircombat")


def make_pilot(name: str) -> Pilot:
    pilot = policy_loader.make_pilot(TASK, name)
    assert isinstance(pilot, Pilot)
    return pilot


def fight(
    first: Pilot, second: Pilot, seconds: int = 90, **settings: object
) -> Iterator[tuple[AircombatEnv, DecodedObs]]:
    """One head-on fight; yields the env and what the first pilot sees, decision by decision, until it is over."""
    chosen = {"num_envs": 2, "scenario": Scenario.head_on, **settings}
    env = AircombatEnv(AircombatConfig(**chosen), num_threads=1)  # type: ignore[arg-type]
    try:
        out = env.reset()
        for _ in range(seconds):
            yield env, DecodedObs({name: value[:1] for name, value in out["obs"].items()})
            seats = [
                pilot.act({k: v[i : i + 1] for k, v in out["obs"].items()}) for i, pilot in enumerate((first, second))
            ]
            out = env.step({name: torch.cat([seat[name] for seat in seats]) for name in ("rudder", "throttle", "fire")})
            if out["terminated"].any():
                return
    finally:
        env.close()


def degrees(angle: torch.Tensor) -> float:
    return math.degrees(float(angle))


def test_placeholder_flies_straight_and_never_shoots() -> None:
    for env, _ in fight(make_pilot("placeholder"), make_pilot("placeholder"), 30):
        assert env.state["fired"].tolist() == [0, 0]
        assert env.state["pos"][:, 1].abs().max() == 0


def test_random_does_anything_and_goes_on_with_its_draws() -> None:
    pilot = make_pilot("random")
    obs = AircombatEnv(AircombatConfig(num_envs=2, spacetime=False), num_threads=1).reset()["obs"]
    drawn = [pilot.act(obs)["rudder"] for _ in range(3)]  # type: ignore[index]
    assert not torch.equal(drawn[0], drawn[1])
    memory = pilot.episode_state()
    ahead = pilot.act(obs)["rudder"]  # type: ignore[index]
    pilot.load_episode_state(memory)
    assert torch.equal(ahead, pilot.act(obs)["rudder"])  # type: ignore[index]


def test_pursuit_keeps_its_nose_on_an_enemy_that_turns_and_shoots_inside_its_share_of_r_tr() -> None:
    seen, shots = [], []
    for env, sight in fight(make_pilot("pursuit(shot=0.8)"), make_pilot("drag(shot=0)"), 60):
        before = shots[-1][1] if shots else 0
        now = int(env.state["fired"][0])
        if now > before:
            shots.append((seen[-1][1], now))
        seen.append((degrees(sight.bearing), float(sight.over_tr)))
    assert max(abs(bearing) for bearing, _ in seen[5:]) < 15
    assert shots
    assert all(share < 0.8 for share, _ in shots)


@pytest.mark.parametrize("angle", [40.0, 60.0])
def test_crank_turns_to_its_angle_while_its_missile_flies(angle: float) -> None:
    held = []
    for _, sight in fight(CrankPilot(angle=angle, break_s=0.0), make_pilot("placeholder"), 60):
        if int(sight.guiding) > 0:
            held.append(abs(degrees(sight.bearing)))
    assert len(held) > 8
    assert abs(held[6] - angle) < 12  # after the turn


def test_crank_goes_cold_when_a_missile_is_near() -> None:
    turned = []
    for _, sight in fight(CrankPilot(shot=0.0, break_s=20.0), make_pilot("pursuit(shot=1.5)"), 90):
        if int(sight.threats) > 0 and float(sight.togo) < 20.0:
            turned.append(abs(degrees(sight.threat_bearing)))
    assert turned[-1] > 140  # it is behind


def test_drag_shows_its_tail_after_the_shot() -> None:
    aspects = []
    for _, sight in fight(DragPilot(), make_pilot("placeholder"), 60):
        if int(sight.guiding) > 0:
            aspects.append(abs(degrees(sight.bearing)))
    assert max(aspects[:25]) > 160


def test_notch_puts_the_missile_on_the_beam() -> None:
    beams = []
    for _, sight in fight(make_pilot("notch(shot=0)"), make_pilot("pursuit(shot=1.5)"), 90):
        if int(sight.threats) > 0:
            beams.append(abs(degrees(sight.threat_bearing)))
    assert any(abs(beam - 90) < 15 for beam in beams)
    assert sum(abs(beam - 90) < 30 for beam in beams) > 5


def test_envelope_shoots_inside_r_tr_and_leaves_in_time() -> None:
    """Against who shoots at R_tr and comes on: it survives every such shot, and its own shots are inside R_tr."""
    fired, last = 0, 9.0
    for env, sight in fight(make_pilot("envelope"), make_pilot("pursuit"), 240):
        if int(env.state["fired"][0]) > fired:
            fired = int(env.state["fired"][0])
            assert last < 1.0
        last = float(sight.over_tr)
        assert int(env.state["alive"][0]) == 1
    assert fired > 0


@pytest.mark.parametrize("name", PILOTS)
def test_every_pilot_flies_both_forms_of_actions_and_shoots_only_when_it_can(name: str) -> None:
    for form in ActionForm:
        cfg = AircombatConfig(num_envs=32, action_form=form, max_episode_s=30.0)
        env = AircombatEnv(cfg, num_threads=1)
        out, pilot = env.reset(), make_pilot(name)
        for _ in range(20):
            action = pilot.act(out["obs"])
            fire = action["fire"] if isinstance(action, dict) else action % 2
            assert not (fire.bool() & ~out["obs"]["mask"][:, 1]).any()
            out = env.step(action)
        env.close()


def test_each_rung_beats_the_one_below_and_not_by_avoiding_fights() -> None:
    cfg = AircombatConfig(scenario=Scenario.mixed)
    for better, worse in (("envelope", "crank"), ("crank", "pursuit"), ("pursuit", "placeholder")):
        row = play(make_pilot(better), make_pilot(worse), TASK, cfg, 256, 7, num_threads=1).as_dict()
        assert row["win_of_decided"] >= 0.6, (better, worse, row)
        assert row["decided"] >= 0.6, (better, worse, row)


def test_parameters_are_read_and_nonsense_is_refused() -> None:
    pilot = make_pilot("crank(shot=0.5, angle=30)")
    assert isinstance(pilot, CrankPilot)
    assert (pilot.shot, pilot.angle) == (0.5, math.radians(30))
    for name in ("crank(shot)", "crank(shot=os)", "crank(fame=1)"):
        with pytest.raises(ConfigError, match=r"parameter"):
            make_pilot(name)
    for name in ("ace", "crank("):
        with pytest.raises(ConfigError, match="no policy"):
            load_policy(name, TASK)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("crank(shot=-1)", "shot of the pilot crank is -1, but must be 0 to 100"),
        ("crank(shot=1e999)", "must be 0 to 100"),
        ("envelope(angle=400)", "must be 0 to 180"),
        ("crank(shot=1, shot=2)", "given twice"),
        ("crank(shot=true)", "must be a number"),
        ("drag(notch=2)", "must be true or false"),
        ("random(seed=1.5)", "whole"),
        ("crank(num_envs=3)", "no parameter num_envs"),
    ],
)
def test_a_parameter_beyond_its_limits_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_pilot(name)


def test_another_projects_name_takes_parameters_and_is_judged_too() -> None:
    pilot = make_pilot("rule_based(shot=0.8)")
    assert isinstance(pilot, CrankPilot)
    assert pilot.shot == 0.8
