"""The table against brute force, and its symmetry."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.physics.structs import physics_of
from fledge.tasks.aircombat.spacetime import store
from fledge.tasks.aircombat.spacetime.build import SHAPE, farthest_ranges, grid, solve_geometries
from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.query import check_table, draw


def test_the_shipped_table_is_what_fly_outs_give_now() -> None:
    with Envelope() as envelope:
        physics, launcher = envelope.physics, envelope.launcher
        largest, smallest = store.find_ranges(physics, quiet=True)
        chosen = np.random.default_rng(3).choice(int(np.prod(SHAPE)), 100, replace=False)
        fresh = solve_geometries(
            physics, grid().reshape(-1, 4)[chosen], launcher, farthest_ranges(physics, launcher), both_ends=True
        )
    for kept, solved in zip((largest, smallest), fresh, strict=True):
        np.testing.assert_allclose(kept.reshape(-1, 4)[chosen], solved, rtol=1e-3)


def test_few_geometries_are_false_safe_and_ranges_are_right() -> None:
    with Envelope() as envelope:
        found = check_table(envelope, 400, seed=5)
    for kind, name in (("hold", "r_max_m"), ("turn_away", "r_tr_m")):
        assert found[f"false_safe_{kind}"] <= 0.005  # two of 400
        assert found[name]["error_p50"] < 0.01
        assert found[name]["error_p95"] < 0.04


@pytest.mark.slow
def test_over_ten_thousand_geometries_the_table_keeps_its_promise() -> None:
    with Envelope() as envelope:
        found = check_table(envelope, 10_000)
    for kind, name in (("hold", "r_max_m"), ("turn_away", "r_tr_m")):
        assert found[f"false_safe_{kind}"] <= 0.001
        assert found[name]["error_p95"] <= 0.02


def test_lookups_are_mirror_images() -> None:
    g = draw(5_000, 1)
    mirrored = {**g, "off_boresight_deg": -g["off_boresight_deg"], "aspect_deg": -g["aspect_deg"]}
    with Envelope() as envelope:
        one, two = envelope.lookup(**g), envelope.lookup(**mirrored)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1.0)


def test_ranges_are_in_order_and_go_round_the_circle() -> None:
    g = draw(5_000, 2)
    turned = {**g, "off_boresight_deg": g["off_boresight_deg"] + 360, "aspect_deg": g["aspect_deg"] - 360}
    with Envelope() as envelope:
        one, two = envelope.lookup(**g), envelope.lookup(**turned)
    assert bool((one["r_ne_m"] <= one["r_tr_m"]).all())
    assert float(one["r_ne_m"].min()) >= 1_000
    for name in one:
        assert float(((one[name] - two[name]).abs() > 1e-3 * one[name]).float().mean()) < 0.01


def test_lookups_keep_the_shape_they_were_asked_in() -> None:
    with Envelope() as envelope:
        found = envelope.lookup(300.0, torch.full((2, 3), 300.0), 0.0, torch.zeros(3))
    assert all(value.shape == (2, 3) for value in found.values())


def test_speeds_outside_the_table_count_as_the_nearest() -> None:
    with Envelope() as envelope:
        slow, least = envelope.lookup(20.0, 300.0), envelope.lookup(150.0, 300.0)
        fast, most = envelope.lookup(300.0, 900.0), envelope.lookup(300.0, 550.0)
    assert slow == least
    assert fast == most


def test_time_to_decide_is_when_the_range_is_down_to_r_tr() -> None:
    cfg = AircombatConfig()
    with Envelope(cfg) as envelope:
        seconds = envelope.time_to_decide(torch.tensor([30_000.0, 15_000.0, 30_000.0]), 300.0, 300.0, 0.0,
                                          torch.tensor([0.0, 0.0, 180.0]))  # fmt: skip
        speed, away = 300.0, 30_000.0
        drag = physics_of(cfg).fighter.cd0
        for _ in range(int(100 * float(seconds[0]))):
            speed += 0.01 * (1.5 * 9.8 - drag * speed**2)
            away -= 2 * 0.01 * speed
        then = float(envelope.solve(speed, speed)["r_tr_m"])
    assert away == pytest.approx(then, rel=0.02)
    assert float(seconds[1]) == 0
    assert torch.isinf(seconds[2])
