"""Elo ratings: 400 points more mean ten times the odds of winning; a draw counts as half a win.

`fit_ratings` finds the ratings that make all results of a cross-table most likely (Bradley and Terry 1952), with intervals
from the curvature of the likelihood. `Ratings` updates the ratings of a learner and its opponents after each
batch of fights, as in chess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

SCALE = 400.0 / math.log(10.0)  # points per unit of log odds
ANCHOR = 1000.0
PRIOR_FIGHTS = (
    1.0  # virtual draws added to each pair that fought, so that the rating of an agent that never lost is finite
)


def expected_score(rating: float, other: float) -> float:
    """Return the expected score of one fight against a player with the rating `other`: a win is 1, a draw one half."""
    return 1.0 / (1.0 + 10.0 ** ((other - rating) / 400.0))


def arena_rating(score: float, fights: int) -> float:
    """Return the rating whose expected score against opponents rated 1000 is `score`.

    A score of 0 or 1, whose rating would be infinite, is first moved inwards by half a fight, 0.5 / `fights`.
    """
    s = min(max(score, 0.5 / fights), 1.0 - 0.5 / fights)
    return ANCHOR + 400.0 * math.log10(s / (1.0 - s))


def fit_ratings(scores: np.ndarray, fights: np.ndarray, anchor: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely ratings [K], and half the widths of their 95 % intervals [K].

    Args:
        scores: [K, K] wins plus half of the draws of agent i against agent j.
        fights: [K, K] number of fights between agents i and j, symmetric; the diagonal is ignored.
        anchor: Index of the agent whose rating is 1000; if None, the mean of all ratings is 1000.
    """
    count = len(scores)
    n = np.where(np.eye(count, dtype=bool), 0.0, np.asarray(fights, float))
    s = np.where(np.eye(count, dtype=bool), 0.0, np.asarray(scores, float))
    n, s = n + PRIOR_FIGHTS * (n > 0), s + 0.5 * PRIOR_FIGHTS * (n > 0)
    x = np.zeros(count)  # ratings in units of log odds
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(x[None, :] - x[:, None]))
        slope = (s - n * p).sum(1)
        weight = n * p * (1.0 - p)
        curvature = np.diag(weight.sum(1)) - weight
        step = np.linalg.lstsq(curvature, slope, rcond=None)[0]
        x = x + np.clip(step, -2.0, 2.0)
        x -= x.mean()
        if np.abs(step).max() < 1e-10:
            break
    spread = np.linalg.pinv(curvature)
    if anchor is None:
        variance = np.diag(spread)
    else:
        x = x - x[anchor]
        variance = np.diag(spread) + spread[anchor, anchor] - 2.0 * spread[anchor]
    return ANCHOR + SCALE * x, 1.96 * SCALE * np.sqrt(np.maximum(variance, 0.0))


@dataclass
class Ratings:
    """Ratings that are updated with each batch of results; the first is the learner's, the others its opponents'."""

    values: list[float] = field(default_factory=lambda: [ANCHOR])
    rate: float = 8.0  # largest change of a rating by one fight, points

    def add(self) -> None:
        """Add an opponent with the learner's present rating."""
        self.values.append(self.values[0])

    def update(self, scores: Sequence[float], fights: Sequence[float], fixed: int = 1) -> None:
        """Update all ratings with results of the learner against each opponent.

        Args:
            scores: Wins plus half of the draws of the learner against each opponent.
            fights: Number of fights against each opponent.
            fixed: Number of the opponent, counted from 1, whose rating never changes, so that the scale does not drift.
        """
        for number, (score, count) in enumerate(zip(scores, fights, strict=True), 1):
            if count <= 0:
                continue
            share = score / count - expected_score(self.values[0], self.values[number])
            step = (
                self.rate * share * math.sqrt(count)
            )  # fights in one call are correlated: count the root of their number
            self.values[0] += step
            if number != fixed:
                self.values[number] -= step
