"""The `metrics` part of a task: how its episodes are measured, classified, labelled and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.agents.base import Action
from fledge.envs.base import TensorEnv

if TYPE_CHECKING:
    from fledge.tasks.base import Task


class EpisodeMetrics:
    """Measures the episodes of an evaluation, decision by decision. This base class measures nothing."""

    def begin(self, env: TensorEnv) -> None:
        """Start to measure this env, whose episodes have just begun; keep earlier measurements."""

    def before_step(self, obs: Mapping[str, Tensor], action: Action, counted: Tensor) -> None:
        """Measure a decision; `counted` [N] marks the envs whose episode belongs to the evaluation."""

    def after_step(self, outcome: Tensor, counted: Tensor) -> None:
        """Measure how episodes ended: `outcome` [N] is 0 where the episode goes on."""

    def figures(self) -> dict[str, float]:
        """Return the metrics of all episodes measured so far, by name."""
        return {}


@dataclass
class Benchmark:
    """A published evaluation protocol: envs to fly in, reference policies, and published results."""

    title: str
    worlds: Mapping[str, Sequence[str]]
    """Column heading -> `env.key=value` overrides."""
    preset: str | None = None
    """Env preset that all columns start from."""
    rules: Sequence[str] = ()
    """`env.key=value` overrides of all columns, also of policies that were trained with other values."""
    policies: Sequence[str] = ()
    """Policies that are evaluated besides the ones that the user names."""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Method -> published success rate by column heading."""
    source: str = ""
    """Where the published results come from, and how far they can be compared."""
    reported: Mapping[str, str] = field(default_factory=dict)
    """Metric in `EpisodeMetrics.figures` -> its explanation; listed below the table for every policy and column."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Column heading -> optional package that it needs; without it the column is left out, unless it is named."""
    endings: Sequence[str] = ()
    """Outcomes whose shares stand in every cell of the table, below the interval."""


class TaskMetrics:
    """How the episodes of a task are measured and shown in tables. Every default works for any env.

    Args:
        labels: Name of an outcome -> short heading.
        unit: What the envs are called in the plural: "drones", "duels".
    """

    labels: Mapping[str, str] = {}
    unit: str = "envs"
    classes: Sequence[str] = ()
    """Classes of episodes that are reported separately, the hardest first."""
    columns: Mapping[str, str] = {}
    """Name of a metric in `EpisodeMetrics.figures` -> its heading in a table."""
    legend: str = ""
    """Explanation below the table of `columns`."""
    outcome_legend: str = ""
    """Explanation below a table of outcomes: what each heading of `labels` and the env's label mean."""
    class_legend: str = ""
    """Explanation of `classes`."""
    eval_preset: str | None = None
    """Env preset in which a report also evaluates a run, after the env that the run was trained in."""
    benchmarks: Mapping[str, Benchmark] = {}
    """Published protocols by name, for `fledge benchmark`."""

    def __init__(self, labels: Mapping[str, str] | None = None, unit: str | None = None) -> None:
        self.labels, self.unit = labels or self.labels, unit or self.unit

    def episode_metrics(self) -> EpisodeMetrics:
        """Return a new object that measures the episodes of one evaluation."""
        return EpisodeMetrics()

    def classify(self, env: TensorEnv) -> Tensor:
        """Return the index into `classes` of each env's present episode, [N] int64 on the CPU."""
        return torch.zeros(env.num_envs, dtype=torch.int64)

    def env_facts(self, cfg: Any) -> dict[str, Any]:
        """Return the facts about the env that every row of results holds, as JSON-able values."""
        return {}

    def env_label(self, cfg: Any) -> str:
        """Return a short label of the env for tables and pictures; "" stands for the task's name."""
        return ""

    def queries(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Return by name the task's own calculations that need no episode, for commands such as `fledge envelope`."""
        return {}

    def reference_rows(self) -> list[dict[str, Any]]:
        """Return recorded results of other projects' policies, so that they can be compared without their files."""
        return []


def env_label(task: Task, cfg: Any) -> str:
    """Return a short label of an env: the label that the task gives it, else the task's name."""
    return task.metrics.env_label(cfg) or task.name
