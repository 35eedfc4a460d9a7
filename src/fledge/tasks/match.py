"""Umpires: what follows the fights of a match and tells how each side fought. A world with two sides has one of its own.

An umpire notes numbers by name, [fights, 2] each, in the order of the env's rows; NaN where a thing did not happen. So a
figure can be made of any group of fights: of one pair of agents, of one kind of start, of everybody. Some names mean the same
in every world:

    start        which of `starts` the fight was for this side
    survived     1 if the side was there at the end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

Notes = dict[str, np.ndarray]


class MatchStats:
    """Follows one fight of every pair of an env's rows. This one notes nothing."""

    starts: Sequence[str] = ()
    """Kinds of starts, as a side sees them, in more detail than the task's classes."""
    random_starts: Sequence[str] = ()
    """Those of them that are cells of one kind: where all geometries come up."""

    def before_step(self, obs: Mapping[str, Tensor], action: Any, active: Tensor) -> None:
        """Note what is seen and commanded, row by row; `active` [fights] tells which fights are under way."""

    def after_step(self, outcome: Tensor, active: Tensor) -> None:
        """Note who ended, and how: `outcome` [rows], 0 where it goes on."""

    def notes(self) -> Notes:
        """All that was noted, [fights, 2] each."""
        return {}
