"""Fly-outs: known kill ranges, whatever the step; mirror images; missiles that are already in flight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fledge.core.errors import InputError
from fledge.tasks.aircombat.config import AircombatConfig, MissileConfig
from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre


def kill_range(envelope: Envelope, manoeuvre: Manoeuvre, aspect_deg: float, low: float, high: float) -> float:
    """By bisection between a range that kills and one that does not."""
    while high - low > 10:
        middle = (low + high) / 2
        killed = bool(envelope.fly(middle, manoeuvre, 300.0, 300.0, 0.0, aspect_deg)["killed"])
        low, high = (middle, high) if killed else (low, middle)
    return low


def no_limits(navigation: float, dt_s: float) -> Envelope:
    missile = MissileConfig(navigation=navigation)
    return Envelope(AircombatConfig(load_limits=False, dt_s=dt_s, missile=missile))


@pytest.mark.parametrize(
    ("manoeuvre", "aspect_deg", "known"),
    [
        (Manoeuvre.HOLD, 0.0, 73_900),
        (Manoeuvre.AWAY, 0.0, 16_900),
        (Manoeuvre.HOLD, 180.0, 12_300),
        (Manoeuvre.BEAM_LEFT, 0.0, 21_400),
    ],
)
def test_ideal_guidance_gives_the_known_kill_ranges(manoeuvre: Manoeuvre, aspect_deg: float, known: float) -> None:
    with no_limits(60.0, 1 / 480) as envelope:
        assert kill_range(envelope, manoeuvre, aspect_deg, 5_000, 90_000) == pytest.approx(known, rel=0.005)


@pytest.mark.parametrize(
    ("manoeuvre", "aspect_deg", "ours"),
    [
        (Manoeuvre.HOLD, 0.0, 73_900),
        (Manoeuvre.AWAY, 0.0, 17_380),
        (Manoeuvre.HOLD, 180.0, 12_240),
        (Manoeuvre.BEAM_RIGHT, 0.0, 21_700),
    ],
)
@pytest.mark.parametrize("dt_s", [1 / 120, 0.05, 0.1, 0.2])
def test_kill_ranges_hardly_depend_on_the_step(
    manoeuvre: Manoeuvre, aspect_deg: float, ours: float, dt_s: float
) -> None:
    with no_limits(4.0, dt_s) as envelope:
        assert kill_range(envelope, manoeuvre, aspect_deg, 5_000, 90_000) == pytest.approx(ours, rel=0.01)


MIRROR = {m: m for m in Manoeuvre} | {
    Manoeuvre[f"{kind}_{side}"]: Manoeuvre[f"{kind}_{other}"]
    for kind in ("AWAY", "HARD", "BEAM", "BREAK", "LATE")
    for side, other in (("LEFT", "RIGHT"), ("RIGHT", "LEFT"))
}


@pytest.mark.parametrize("manoeuvre", list(Manoeuvre))
def test_a_mirrored_shot_is_the_same_shot(manoeuvre: Manoeuvre) -> None:
    numbers = torch.rand(5, 200, generator=torch.Generator().manual_seed(int(manoeuvre)))
    own, target, away = 150 + 400 * numbers[0], 150 + 400 * numbers[1], 2_000 + 30_000 * numbers[2]
    off, aspect = 340 * numbers[3] - 170, 340 * numbers[4] - 170
    with Envelope() as envelope:
        one = envelope.fly(away, manoeuvre, own, target, off, aspect)
        two = envelope.fly(away, MIRROR[manoeuvre], own, target, -off, -aspect)
    assert (one["killed"] == two["killed"]).float().mean() > 0.98  # rounding decides those on the border
    torch.testing.assert_close(one["miss_m"].quantile(0.5), two["miss_m"].quantile(0.5), rtol=1e-3, atol=1.0)


def test_each_manoeuvre_leads_where_its_name_says() -> None:
    with Envelope() as envelope:
        place = {
            m: envelope.target_path(m, 20_000.0, 300.0, 300.0, 0.0, 0.0, duration_s=30.0)[-1].numpy() for m in Manoeuvre
        }
    # the target starts 20 km east of the shooter and flies west, so its left is south
    assert place[Manoeuvre.HOLD][0] < 9_000
    assert abs(place[Manoeuvre.HOLD][1]) < 1
    assert place[Manoeuvre.AWAY][0] > 22_000
    assert place[Manoeuvre.AWAY_LEFT][1] < -500 < 500 < place[Manoeuvre.AWAY_RIGHT][1]
    assert np.linalg.norm(place[Manoeuvre.HARD_LEFT] - [20_000, 0]) < 3_500
    assert abs(place[Manoeuvre.BEAM_LEFT][1]) > 8_000
    assert np.sign(place[Manoeuvre.BEAM_LEFT][1]) == -np.sign(place[Manoeuvre.BEAM_RIGHT][1])


def test_the_reach_of_a_missile_is_its_flight_in_closed_form_ahead_and_less_to_the_side() -> None:
    drag, thrust = 9.8 / 400**2, 15 * 9.8
    top, rate = math.sqrt(thrust / drag), math.sqrt(thrust * drag)
    burnt = math.log(math.cosh(10 * rate) + 300 / top * math.sinh(10 * rate)) / drag
    peak = top * (300 + top * math.tanh(10 * rate)) / (top + 300 * math.tanh(10 * rate))
    with Envelope(AircombatConfig(load_limits=False)) as envelope:
        reach = envelope.missile_reach(300.0, torch.tensor([0.0, 90.0, -90.0, 180.0]), 200.0, 0.5)
    ahead = reach[0] - 100  # without the kill radius
    assert float(ahead[20]) == pytest.approx(burnt, rel=1e-3)
    for seconds in (5, 20, 60):  # coasting
        known = burnt + math.log(1 + drag * peak * seconds) / drag
        assert float(ahead[20 + 2 * seconds]) == pytest.approx(known, rel=1e-3)
    assert bool((reach[0, 20:100] > reach[1, 20:100]).all())
    assert bool((reach[1, 20:100] > reach[3, 20:100]).all())
    torch.testing.assert_close(reach[1, :100], reach[2, :100])
    assert math.isnan(reach[0, -1])


def test_what_is_not_a_geometry_is_refused_in_one_sentence() -> None:
    with Envelope() as envelope:
        with pytest.raises(InputError, match="finite"):
            envelope.fly(1_000.0, Manoeuvre.HOLD, float("nan"), 300.0)
        with pytest.raises(InputError, match="do not match"):
            envelope.lookup(torch.zeros(3), torch.zeros(2))
