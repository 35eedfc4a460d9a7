"""The `match` part of a task in which two agents compete: how matches are set up, measured and shown.

`MatchStats` records numbers by name, each an array [matches, 2] in the order of the env's rows; NaN where an event did not
happen.
Statistics can then be computed for any group of matches. Two of the names have the same meaning in every task:

    start        index into `starts`, as seen by this side
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
    """Records the matches of an env, in which two rows make one match. This base class records nothing."""

    starts: Sequence[str] = ()
    """Names of the kinds of starts as a side sees them; a finer division than the classes of `TaskMetrics`."""
    random_starts: Sequence[str] = ()
    """Names in `starts` that subdivide the random starts."""

    def before_step(self, obs: Mapping[str, Tensor], action: Any, active: Tensor) -> None:
        """Record the observations and actions of all rows; `active` [matches] marks the matches that have not ended."""

    def after_step(self, outcome: Tensor, active: Tensor) -> None:
        """Record the outcomes of matches: `outcome` [rows] is 0 where a match goes on."""

    def notes(self) -> Notes:
        """Return the recorded numbers by name, each an array of shape [matches, 2]."""
        return {}


class MatchRules:
    """Rules of matches between agents. The default is for tasks in which every agent acts alone."""

    sides: int = 1
    """Number of agents that compete in an episode. With 2, agents are compared in a cross-table instead of one by one."""
    columns: Mapping[str, str] = {}
    """Name of a statistic of `summarize` -> its heading in a table; headings of shares contain a %."""
    key_metrics: Sequence[str] = ()
    """Names in `columns` that a report shows first."""
    legend: str = ""
    """Explanation below the table of `columns`."""

    def rows(self, cfg: Any) -> int:
        """Return the number of rows that share an episode with these settings; num_envs must be a multiple of it."""
        return self.sides

    def match_config(self, cfg: Any, count: int) -> Any:
        """Return the env config for `count` parallel matches, `TensorEnv.group` rows each; the caller controls both sides."""
        return dataclasses.replace(cfg, num_envs=self.rows(cfg) * count)

    def match_stats(self, env: TensorEnv) -> MatchStats:
        """Return a new recorder for the matches of an env; call this when all its matches have just begun."""
        return MatchStats()

    def summarize(self, notes: Mapping[str, np.ndarray]) -> dict[str, float | None]:
        """Return statistics, by name, of how a side fought.

        `notes` holds the side's recorded numbers by name, each an array of shape [matches].
        """
        return {}
