"""Whole duels: kill ranges that do not depend on the step, ends of fights, and shots."""

from typing import Any

import numpy as np
import pytest
import torch

from fledge.tasks.aircombat.config import FighterConfig, MissileConfig, Scenario
from fledge.tasks.aircombat.physics.structs import Outcome
from tests.tasks.aircombat.duels import action, fight_out, make, place

RANGES = np.geomspace(8_000, 100_000, 320)  # m, 0.8 % apart
# direction of the target, and seconds of full rudder from the launch on
MANOEUVRES = {
    "coming": ((-1.0, 0.0), 0.0),
    "turning away": ((-1.0, 0.0), 8.0),
    "beaming": ((0.0, 1.0), 0.0),
    "fleeing": ((1.0, 0.0), 0.0),
}


def kill_range(manoeuvre: str, **changes: Any) -> float:
    """Largest distance from which one missile, fired at 300 m/s along the nose, kills a target at full throttle."""
    direction, turning_s = MANOEUVRES[manoeuvre]
    env = make(len(RANGES), **changes)
    pos, nose = np.zeros((2 * len(RANGES), 2)), np.tile([[1.0, 0.0], direction], (len(RANGES), 1))
    pos[1::2, 0] = RANGES
    place(env, pos=pos, dir=nose, speed=300.0)
    side = np.arange(env.num_envs) % 2

    def control(k: int) -> dict[str, torch.Tensor]:
        turns = 1.0 * (k * env.decision_s < turning_s - 1e-6)
        return action(env.num_envs, rudder=turns * side, fire=(1 - side) * (k == 0))

    outcome, _ = fight_out(env, control)
    killed = outcome[::2] == Outcome.WIN
    env.close()
    assert killed.any()
    assert not killed.all()
    assert killed[: killed.sum()].all(), "a nearer target got away"
    return float(RANGES[killed].max())


@pytest.mark.parametrize("name", MANOEUVRES)
def test_kill_ranges_stay_within_2_percent_from_120_steps_a_second_to_5(name: str) -> None:
    found = [kill_range(name, dt_s=dt, decimation=round(1 / dt)) for dt in (1 / 120, 1 / 30, 0.1, 0.2)]
    assert max(found) <= 1.02 * min(found)


@pytest.mark.parametrize(("name", "km"), [("coming", 73.9), ("fleeing", 12.3)])
def test_kill_ranges_are_those_of_the_spec_with_ideal_guidance(name: str, km: float) -> None:
    assert kill_range(name) / 1000 == pytest.approx(km, rel=0.02)


@pytest.mark.parametrize("name", ["turning away", "beaming"])
def test_kill_ranges_do_not_depend_on_time_scale(name: str) -> None:
    found = [kill_range(name, time_scale=scale) for scale in (1.0, 2.0, 4.0, 8.0)]
    assert max(found) <= 1.02 * min(found)


def test_a_decision_of_8_seconds_flies_as_eight_of_one() -> None:
    short, long = make(50, scenario=Scenario.mixed), make(50, scenario=Scenario.mixed, time_scale=8.0)
    given = action(100, rudder=np.linspace(-1, 1, 100), throttle=0.7)
    for _ in range(8):
        short.step(given)
    long.step(given)
    torch.testing.assert_close(short.state["pos"], long.state["pos"], rtol=0, atol=0.1)
    torch.testing.assert_close(short.state["time"], long.state["time"])


def test_load_limits_hold_for_fighters_and_for_missiles_that_turn_back() -> None:
    env = make(40, dt_s=0.1, decimation=1)
    place(env, speed=np.linspace(240, 490, 80), fired=1, m_flying=[1, 0, 0, 0, 0, 0], m_burn=2.0)
    place(
        env,
        m_speed=np.linspace(400, 1400, 80)[:, None],
        m_dir=-env.state["dir"][:, None],
        m_pos=env.state["pos"][:, None],
    )
    loads: dict[str, list[torch.Tensor]] = {"dir": [], "m_dir": []}
    for _ in range(50):
        before = {name: tensor.clone() for name, tensor in env.state.items()}
        env.step(action(80, rudder=1.0))
        for name, speed in (("dir", "speed"), ("m_dir", "m_speed")):
            a, b = before[name], env.state[name]
            angle = torch.atan2(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0], (a * b).sum(-1)).abs()
            load = angle / 0.1 * 0.5 * (before[speed] + env.state[speed]) / 9.8
            loads[name].append(load if name == "dir" else load[:, 0])
    env.close()
    assert 8.95 < torch.stack(loads["dir"]).max() < 9.02
    assert 39.5 < torch.stack(loads["m_dir"]).max() < 40.1


# ---- ends --------------------------------------------------------------------------------------------------------------


def test_shots_at_the_same_moment_from_nose_to_nose_kill_both_and_that_is_a_draw() -> None:
    env = make(8)
    outcome, ended = fight_out(env, lambda k: action(16, fire=int(k == 0)))
    assert (outcome == Outcome.DRAW).all()
    assert len(set(ended.tolist())) == 1


def test_a_shot_a_second_later_comes_too_late() -> None:
    env = make(8)
    first = np.arange(16) % 2 == np.arange(16) // 2 % 2  # by turns the first side and the second
    outcome, _ = fight_out(env, lambda k: action(16, fire=(k == np.where(first, 0, 1)).astype(int)))
    assert (outcome == np.where(first, Outcome.WIN, Outcome.LOSS)).all()


def test_a_fight_is_over_when_neither_side_has_a_missile_left() -> None:
    env = make(4, missile=MissileConfig(carried=1))
    nose = np.tile([[-1.0, 0.0], [1.0, 0.0]], (4, 1))
    place(env, dir=nose)  # back to back
    outcome, ended = fight_out(env, lambda k: action(8, fire=1))
    assert (outcome == Outcome.SPENT).all()
    assert (ended > 30).all()


@pytest.mark.parametrize(("dt_s", "decimation"), [(0.1, 10), (1 / 30, 30), (1 / 120, 120), (0.07, 3), (0.1, 1)])
def test_a_fight_without_shots_is_truncated_after_240_seconds(dt_s: float, decimation: int) -> None:
    env = make(1, scenario=Scenario.random, dt_s=dt_s, decimation=decimation)
    out, decisions = env.make_buffers(), 0
    while not out["truncated"].any():
        env.step(action(2), out=out)
        decisions += 1
    assert not out["terminated"].any()
    assert (out["outcome"] == Outcome.TIMEOUT).all()
    assert decisions == np.ceil(240 / (dt_s * decimation) - 1e-6)


# ---- shots -------------------------------------------------------------------------------------------------------------


def test_a_missile_leaves_with_its_fighters_place_direction_and_speed() -> None:
    env = make(3, scenario=Scenario.random, decimation=1, dt_s=0.001)
    fighter = {name: env.state[name].clone() for name in ("pos", "dir", "speed")}
    env.step(action(6, fire=[1, 0, 1, 0, 0, 0]))
    assert env.state["fired"].tolist() == [1, 0, 1, 0, 0, 0]
    assert env.state["m_flying"].sum() == 2
    for row in (0, 2):
        torch.testing.assert_close(env.state["m_pos"][row, 0], fighter["pos"][row], rtol=0, atol=1.0)
        torch.testing.assert_close(env.state["m_dir"][row, 0], fighter["dir"][row], rtol=0, atol=1e-3)
        torch.testing.assert_close(env.state["m_speed"][row, 0], fighter["speed"][row], rtol=0, atol=0.5)


def test_shots_keep_half_a_second_between_them_and_end_with_the_rack() -> None:
    env = make(1, decimation=1)
    place(env, dir=[[-1.0, 0.0], [1.0, 0.0]])
    fired = []
    for _ in range(40):
        env.step(action(2, fire=[1, 0]))
        fired.append(int(env.state["fired"][0]))
    assert fired == [min(1 + k // 5, 6) for k in range(40)]


def test_a_slow_rudder_travels_at_its_rate() -> None:
    env = make(1, rudder_rate=0.5)
    env.step(action(2, rudder=[1.0, -1.0]))
    torch.testing.assert_close(env.state["rudder"], torch.tensor([0.5, -0.5]))


def test_a_spent_missile_is_gone_below_200_metres_a_second_once_its_motor_is_out() -> None:
    env = make(1, fighter=FighterConfig(terminal_speed=150.0))
    place(env, dir=[[-1.0, 0.0], [1.0, 0.0]], speed=150.0)
    env.step(action(2, throttle=0.0, fire=[1, 0]))
    assert env.state["m_flying"][0, 0] == 1  # slow, but its motor burns
    speeds = []
    while env.state["m_flying"][0, 0] == 1:
        env.step(action(2))
        speeds.append(float(env.state["m_speed"][0, 0]))
    assert speeds[-2] >= 200 > speeds[-1]


def test_the_missile_of_a_defensive_start_has_flown_all_the_seconds_since_its_launch() -> None:
    env = make(200, scenario=Scenario.defensive)
    rows = env.state["fired"].nonzero()[:, 0]
    seconds = (10.0 - env.state["m_burn"][rows, 0]).double()
    start = env.state["speed"][rows].double()
    assert len(rows) == 200
    assert seconds.min() >= 2.0
    cd0, thrust = 9.8 / 400**2, 15 * 9.8
    a, top = (thrust * cd0) ** 0.5, (thrust / cd0) ** 0.5
    swift = torch.tanh(a * seconds)
    speed = top * (start + top * swift) / (top + start * swift)
    torch.testing.assert_close(env.state["m_speed"][rows, 0].double(), speed, rtol=1e-5, atol=0)
    path = torch.log(torch.cosh(a * seconds) * (1 + start / top * swift)) / cd0
    ahead = (env.state["m_pos"][rows, 0] - env.state["pos"][rows])[:, 0].double()
    torch.testing.assert_close(ahead, path - start * seconds, rtol=0, atol=1.0)
    env.close()
