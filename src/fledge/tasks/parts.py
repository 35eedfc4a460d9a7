"""What the Task contract is told in: settings that worlds may lack, a recorded episode and why it was lost, a world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fledge.agents.base import Action
from fledge.core.settings import setting
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.base import TensorEnv


@dataclass
class PolicyConfig:
    """Settings of the general networks."""

    hidden: list[int] = setting([64, 64], at_least=1, items=(1, None), resume="weights")
    """Widths of the network's layers."""
    normalize: bool = setting(True, resume="weights")
    """Read observations in units of their running mean and deviation (ppo only)."""
    beta: bool = setting(False, resume="weights")
    """Beta instead of normal distributions for actions with bounds (ppo only)."""


@dataclass
class NoCurriculum:
    """A world without a curriculum has no settings for one."""


@dataclass
class Trajectory:
    """One recorded episode: what moved, step by step, and what stood still."""

    frames: dict[str, np.ndarray]  # [steps, ...] per entry of `Task.snapshot`
    scene: dict[str, Any]
    outcome: str
    facts: dict[str, Any] = field(default_factory=dict)
    """What else is known of it: its number in the evaluation, return, seconds per frame."""


@dataclass
class LossReason:
    """Why an episode was lost."""

    kind: str  # in a few words, the same for all that are alike
    why: str  # in a sentence


class EpisodeMetrics:
    """Follows the episodes of an evaluation, decision by decision. This one measures nothing."""

    def begin(self, env: TensorEnv) -> None:
        """Follow this env from here on; its episodes have just begun. What was measured before is kept."""

    def before_step(self, obs: Mapping[str, Tensor], action: Action, counted: Tensor) -> None:
        """Note what is observed and commanded; `counted` [N] tells whose episode belongs to the evaluation."""

    def after_step(self, outcome: Tensor, counted: Tensor) -> None:
        """Note whose episode ended, and how: `outcome` [N], 0 where it goes on."""

    def figures(self) -> dict[str, float]:
        """The figures so far, by name."""
        return {}


@dataclass
class World:
    """What a policy file says about where its policy flies: settings of the env, and seconds per decision."""

    env: dict[str, Any] = field(default_factory=dict)  # by dotted key, without "env."
    decision_s: float | None = None


def shapes_of(spec: ActionSpec) -> dict[str, tuple[Any, ...]]:
    """What must agree between the action of a policy and of an env: shape and number of values of each entry."""
    parts = {"action": spec} if isinstance(spec, TensorSpec) else dict(spec)
    return {name: (part.shape, part.num_values) for name, part in parts.items()}


@dataclass
class Benchmark:
    """A protocol of the field: worlds to fly in, who else was flown there, and what others published."""

    title: str
    worlds: Mapping[str, Sequence[str]]
    """Heading of a column -> `env.key=value` words."""
    preset: str | None = None
    """Env preset that all of them start from."""
    rules: Sequence[str] = ()
    """`env.key=value` words that hold in all of them, whatever rules a policy was trained by."""
    policies: Sequence[str] = ()
    """Who is flown beside those that the user names."""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Who -> success by column, as others report it."""
    source: str = ""
    """Where those figures come from, and how far they can be compared."""
