"""Elo by hand: the scale, the direction, draws, intervals."""

import math

import numpy as np
import pytest

from fledge.league.elo import Ratings, arena_rating, expected_score, fit_ratings


def test_four_hundred_points_are_ten_to_one() -> None:
    assert expected_score(1400, 1000) == pytest.approx(10 / 11)
    assert expected_score(1000, 1400) == pytest.approx(1 / 11)
    assert expected_score(1234, 1234) == 0.5


def test_who_wins_is_rated_higher() -> None:
    scores, fights = np.array([[0, 80.0], [20.0, 0]]), np.array([[0, 100.0], [100.0, 0]])
    ratings, half = fit_ratings(scores, fights)
    assert ratings[0] > 1000 > ratings[1]
    assert ratings[0] - ratings[1] == pytest.approx(400 * math.log10(80.5 / 20.5), abs=1e-6)  # one virtual draw
    # the log odds of 101 fights have variance 1 / (n p q); each of two ratings around their mean has half the deviation
    p = 80.5 / 101
    assert half[0] == pytest.approx(1.96 * 400 / math.log(10) * math.sqrt(1 / (101 * p * (1 - p))) / 2)


def test_draws_count_as_half_a_win() -> None:
    fights = np.array([[0, 100.0], [100.0, 0]])
    drawn, _ = fit_ratings(np.array([[0, 50.0], [50.0, 0]]), fights)
    assert drawn.tolist() == pytest.approx([1000, 1000])
    half_wins, _ = fit_ratings(np.array([[0, 50 + 30.0], [50 - 30.0, 0]]), fights)
    wins, _ = fit_ratings(np.array([[0, 80.0], [20.0, 0]]), fights)
    assert half_wins.tolist() == pytest.approx(wins.tolist())


def test_known_strengths_are_found_again_and_the_anchor_is_1000() -> None:
    true = np.array([1000.0, 1150.0, 1300.0, 900.0])
    chance = 1 / (1 + 10 ** ((true[None] - true[:, None]) / 400))
    fights = np.full((4, 4), 1e6)
    ratings, half = fit_ratings(chance * fights, fights, anchor=0)
    assert ratings.tolist() == pytest.approx(true.tolist(), abs=0.5)
    assert half[0] == pytest.approx(0, abs=1e-6)
    assert (half[1:] < 1).all()


def test_who_never_lost_has_a_finite_rating_and_a_wide_interval() -> None:
    fights = np.array([[0, 20.0], [20.0, 0]])
    ratings, half = fit_ratings(np.array([[0, 20.0], [0.0, 0]]), fights)
    assert np.isfinite(ratings).all()
    assert half[0] > 100


def test_more_fights_narrow_the_interval() -> None:
    share = np.array([[0, 0.7], [0.3, 0]])
    widths = [fit_ratings(share * n, np.array([[0, n], [n, 0]]))[1][0] for n in (100.0, 400.0)]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.05)


def test_the_arena_s_figure() -> None:
    assert arena_rating(0.5, 100) == 1000
    assert arena_rating(10 / 11, 100) == pytest.approx(1400)
    assert arena_rating(1.0, 100) == pytest.approx(1000 + 400 * math.log10(0.995 / 0.005))


def test_a_learner_that_wins_rises_and_the_fixed_one_stays() -> None:
    ratings = Ratings()
    ratings.add()
    ratings.add()
    for _ in range(50):
        ratings.update([8, 8], [10, 10])
    assert ratings.values[1] == 1000
    assert ratings.values[0] > 1100
    assert ratings.values[0] - ratings.values[2] == pytest.approx(400 * math.log10(4), abs=60)
    ratings.add()
    assert ratings.values[3] == ratings.values[0]
