"""The observations of the duel, each declared once.

The env's specs, kernels, policies, scripted pilots, rewards, the description in exported policies, and
docs/worlds/aircombat.md use these tables.
To add a column: add a line to its table here, and write its value in the kernel: `physics/observe.py` for `state`, `missiles`,
`spacetime/observe.py` for `spacetime`. Kernels write values in the column's unit; `value / scale`, clipped to `low` and
`high`, is what a policy observes. All observations are egocentric: both sides have the same columns, and angles are
measured from the observing fighter's nose, positive to the left.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fledge.core.specs import TensorSpec
from fledge.tasks.aircombat.config import ActionForm, AircombatConfig


class Columns(enum.IntEnum):
    """Columns of one observation. The value of a member is the column's index; its attributes are
    the column's unit, scale, limits and documentation."""

    unit: str
    scale: float
    low: float
    high: float
    doc: str

    def __new__(cls, unit: str, scale: float, low: float, high: float, doc: str) -> Self:
        column = int.__new__(cls, len(cls.__members__))
        column._value_ = int(column)
        column.unit, column.scale, column.low, column.high, column.doc = unit, scale, low, high, doc
        return column

    def read(self, values: Tensor) -> Tensor:
        """Return this column of an observation [..., columns] in the column's unit, shape [...]."""
        return values[..., self] * self.scale


class State(Columns):
    """Columns of the observation `state`: the two fighters."""

    RANGE = "m", 50_000.0, 0.0, 4.0, "distance to the enemy"
    CLOSING_SPEED = "m/s", 1000.0, -2.0, 2.0, "rate at which the distance shrinks"
    BEARING_SIN = "1", 1.0, -1.0, 1.0, "sine of the angle from the own nose to the enemy"
    BEARING_COS = "1", 1.0, -1.0, 1.0, "cosine of the angle from the own nose to the enemy"
    ASPECT_SIN = "1", 1.0, -1.0, 1.0, "sine of the angle from the enemy's nose to the own fighter"
    ASPECT_COS = "1", 1.0, -1.0, 1.0, "cosine of the angle from the enemy's nose to the own fighter"
    SPEED = "m/s", 500.0, 0.0, 4.0, "own speed"
    ENEMY_SPEED = "m/s", 500.0, 0.0, 4.0, "the enemy's speed"
    ENERGY = "1", 1.0, 0.0, 4.0, "own (speed / top speed)²"
    ENEMY_ENERGY = "1", 1.0, 0.0, 4.0, "the enemy's (speed / top speed)²"
    MISSILES_LEFT = "1", 1.0, 0.0, 1.0, "share of the own missiles that are not fired yet"
    CAN_FIRE = "1", 1.0, 0.0, 1.0, "1: a shot is possible now"
    TIME = "s", 240.0, 0.0, 4.0, "time since the start of the fight"
    RUDDER = "1", 1.0, -1.0, 1.0, "position of the own rudder"
    CROSSING_SPEED = "m/s", 1000.0, -2.0, 2.0, "relative speed across the line of sight"


class Missile(Columns):
    """Columns of a row of the observation `missiles`: one missile; all zeros if it is not in flight."""

    FLYING = "1", 1.0, 0.0, 1.0, "1: in flight"
    INCOMING = "1", 1.0, 0.0, 1.0, "1: fired by the enemy"
    RANGE = "m", 30_000.0, 0.0, 4.0, "distance to its target"
    CLOSING_SPEED = "m/s", 1500.0, -2.0, 2.0, "rate at which that distance shrinks"
    TIME_TO_GO = "s", 60.0, 0.0, 2.0, "distance over closing speed"
    MOTOR_LEFT = "1", 1.0, 0.0, 1.0, "share of the motor's burn time that is left"
    SPEED = "m/s", 1500.0, 0.0, 4.0, "speed"
    BEARING_SIN = "1", 1.0, -1.0, 1.0, "sine of the angle from the own nose to it"
    BEARING_COS = "1", 1.0, -1.0, 1.0, "cosine of the angle from the own nose to it"
    LEAD_COS = "1", 1.0, -1.0, 1.0, "cosine of the angle from its nose to its target"


class Spacetime(Columns):
    """Columns of the observation `spacetime`: both sides' missile ranges, and the incoming missile that arrives first."""

    OVER_R_MAX = "1", 1.0, 0.0, 4.0, "distance over R_max of an own shot"
    OVER_R_TR = "1", 1.0, 0.0, 4.0, "distance over R_tr of an own shot"
    OVER_R_NE = "1", 1.0, 0.0, 4.0, "distance over R_ne of an own shot"
    ENEMY_OVER_R_MAX = "1", 1.0, 0.0, 4.0, "distance over R_max of the enemy's shot"
    ENEMY_OVER_R_TR = "1", 1.0, 0.0, 4.0, "distance over R_tr of the enemy's shot"
    ENEMY_OVER_R_NE = "1", 1.0, 0.0, 4.0, "distance over R_ne of the enemy's shot"
    TIME_TO_DECIDE = "s", 60.0, 0.0, 2.0, "time until turning away no longer saves the own fighter"
    ENEMY_TIME_TO_DECIDE = "s", 60.0, 0.0, 2.0, "time until turning away no longer saves the enemy"
    MISS_HOLD = "m", 1000.0, 0.0, 4.0, "closest approach of the missile that arrives first, if the course is held"
    MISS_AWAY = "m", 1000.0, 0.0, 4.0, "closest approach of the missile that arrives first, after turning away now"


@dataclass(frozen=True)
class Observation:
    """An observation: its name, the columns of its last axis, and what it describes."""

    name: str
    columns: type[Columns]
    doc: str

    def spec(self, *rows: int) -> TensorSpec:
        """Return the observation's spec; `rows` are the sizes of the axes before the last axis, which has the columns."""
        bound = max(max(-column.low, column.high) for column in self.columns)
        names = ", ".join(column.name.lower() for column in self.columns)
        return TensorSpec((*rows, len(self.columns)), torch.float32, -bound, bound, doc=f"{self.doc}; columns: {names}")


STATE = Observation("state", State, "the two fighters")
MISSILES = Observation("missiles", Missile, "own missiles, then the enemy's, a row each; zeros where none flies")
SPACETIME = Observation("spacetime", Spacetime, "both sides' missile ranges and the most dangerous incoming missile")
OBSERVATIONS = (STATE, MISSILES, SPACETIME)


def observation_spec(cfg: AircombatConfig) -> dict[str, TensorSpec]:
    """Return the specs of all observations that an env of these settings has."""
    specs = {"state": STATE.spec(), "missiles": MISSILES.spec(2 * cfg.missile.carried)}
    if cfg.spacetime:
        specs["spacetime"] = SPACETIME.spec()
    values = 6 if cfg.action_form is ActionForm.discrete else 2
    specs["mask"] = TensorSpec((values,), torch.bool, 0, 1, doc="actions that are possible: a shot needs CAN_FIRE")
    return specs
