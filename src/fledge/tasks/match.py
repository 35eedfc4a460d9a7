"""The `match` part of a task in which two agents meet: how matches are set up, measured and shown.

`MatchStats` records numbers by name, [matches, 2] each, in the order of the env's rows; NaN where an event did not happen.
Statistics can then be computed for any group of matches. Two names mean the same in every task:

    start        index into `starts`, as this side saw the start
    survived     1 if the side was alive at the end
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fledge.envs.base import TensorEnv

Notes = dict[str, np.ndarray]


class MatchStats:
    """Records one match of every pair of an env's rows. This base class records nothing."""

    starts: Sequence[str] = ()
    """Kinds of starts as a side sees them, finer than the task's classes."""
    random_starts: Sequence[str] = ()
    """Those of `starts` that divide one random class of starts into cells."""

    def before_step(self, obs: Mapping[str, Tensor], action: Any, active: Tensor) -> None:
        """Read observations and actions, row by row; `active` [matches] marks the matches under way."""

    def after_step(self, outcome: Tensor, active: Tensor) -> None:
        """Read which sides ended, and how: `outcome` [rows], 0 where the match goes on."""

    def notes(self) -> Notes:
        """Return everything recorded, [matches, 2] each."""
        return {}


class MatchRules:
    """Rules of matches between agents. The default is for tasks in which every agent acts alone."""

    sides: int = 1
    """Agents that meet in an episode. With 2, agents are compared in a cross-table instead of one by one."""
    columns: Mapping[str, str] = {}
    """Figure of `summarize` -> its heading in a table; headings of shares contain a %."""
    key_metrics: Sequence[str] = ()
    """Those of `columns` that a report shows first."""
    legend: str = ""
    """Explanation below that table."""

    def match_config(self, cfg: Any, count: int) -> Any:
        """Return settings of `count` matches at once, both sides controlled by the caller (`TensorEnv.group` rows each)."""
        return dataclasses.replace(cfg, num_envs=self.sides * count)

    def match_stats(self, env: TensorEnv) -> MatchStats:
        """Return a new recorder of the matches of an env, which have just begun."""
        return MatchStats()

    def summarize(self, notes: Mapping[str, np.ndarray]) -> dict[str, float | None]:
        """Return figures of how a side fought, from its records of some matches, [matches] each."""
        return {}
