"""Data classes of a recorded episode, and of the reason why it was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Trajectory:
    """One recorded episode."""

    frames: dict[str, np.ndarray]  # [steps, ...] per entry of `TaskView.snapshot`
    scene: dict[str, Any]  # static part of the episode (`TaskView.scene`)
    outcome: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Index in the evaluation, return, seconds per frame, and other plain values."""


@dataclass
class LossReason:
    """Why an episode was lost."""

    kind: str  # short name of the reason, the same for all episodes that were lost for it
    why: str  # one sentence about this episode
