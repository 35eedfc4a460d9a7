"""The reward terms of navigation, each declared once, by a function under `@term`.

The reward of a decision is the sum, in this order, of the `TERMS` whose kind is `env.reward.kind`. To add a term: write its
function, and give its weight a setting in `RewardConfig`. A term reads the weights and a `Step`, which `physics/episode.py`
fills. The docstring of a term names the quantity that its weight multiplies. The env keeps every term of the last step in
`reward_terms`.
"""

import enum
from dataclasses import dataclass, fields
from typing import Any

import warp as wp

from fledge.core.settings import setting


class RewardKind(enum.Enum):
    """Kinds of reward: NavRL's reward, or Fledge's own reward for progress to the goal."""

    navrl = "navrl"
    progress = "progress"


@dataclass
class RewardConfig:
    kind: RewardKind = RewardKind.progress
    """Reward. navrl: 1 + speed to the goal + log clearances - height penalty. progress: metres gained towards the goal,
    and the rewards and penalties success, crash, time, near and height."""
    height: float = setting(2.0, at_least=0, at_most=1_000_000)
    """Penalty per second for each squared metre outside the band of heights between start and goal; with kind=navrl, per
    decision (8 in NavRL)."""
    near: float = setting(0.4, at_least=0, at_most=1_000_000)
    """Penalty per second of flying within near_m of an obstacle; it grows linearly from 0 at near_m to this value 0.5 m
    closer (progress only)."""
    near_m: float = setting(0.8, at_least=0, at_most=1000)
    """Distance to an obstacle below which the penalty `near` applies, m."""
    crash: float = setting(20.0, at_least=0, at_most=1_000_000)
    """Penalty when an episode ends by a collision or out of bounds (progress only)."""
    success: float = setting(10.0, at_least=0, at_most=1_000_000)
    """Reward when an episode ends at the goal (progress only)."""
    time: float = setting(0.0, at_least=0, at_most=1_000_000)
    """Penalty per second of flight (progress only)."""


NUMBERS = tuple(field.name for field in fields(RewardConfig) if field.name != "kind")
Weights = wp.struct(type("Weights", (), {"__annotations__": dict.fromkeys(NUMBERS, float)}))
"""The numbers of `RewardConfig` by name, for kernels."""


@wp.struct
class Step:
    """Inputs of the reward terms: results of one decision of a drone."""

    seconds: float  # duration of the decision
    progress: float  # m nearer to the goal
    towards: float  # m/s towards the goal at the end
    outside: float  # m outside the height band at the end
    outside_m2s: float  # m² s: square of `outside`, integrated over the decision
    gap: float  # m to the nearest observed surface (progress only)
    column_logs: float  # mean log of the beams' distances (navrl only)
    mover_logs: float  # mean log of the distances to the nearest moving obstacles
    succeeded: bool  # the episode ended at the goal
    crashed: bool  # the episode ended by a collision or out of bounds


@dataclass(frozen=True)
class RewardTerm:
    """One summand of a reward: a function, and the setting and sign by which it is weighted."""

    name: str
    kind: RewardKind
    value: Any  # Warp function (Weights, Step) -> float; its docstring is the term's documentation
    weight: str  # setting in `RewardConfig` that scales the term; "" if it has none
    sign: str  # "+" for a reward, "-" for a penalty

    @property
    def doc(self) -> str:
        return str(self.value.func.__doc__)


TERMS: list[RewardTerm] = []


def term(kind: RewardKind, weight: str = "", sign: str = "+", name: str = "") -> Any:
    """Return a decorator that adds a function to `TERMS` as a `RewardTerm`, by default under the function's name."""
    return lambda f: TERMS.append(RewardTerm(name or f.__name__, kind, wp.func(f), weight, sign))


@term(RewardKind.navrl)
def alive(w: Weights, s: Step) -> float:
    """1 for each decision."""
    return 1.0


@term(RewardKind.navrl)
def speed_to_goal(w: Weights, s: Step) -> float:
    """Speed towards the goal, m/s."""
    return s.towards


@term(RewardKind.navrl)
def column_clearance(w: Weights, s: Step) -> float:
    """Mean logarithm of the LiDAR distances (m)."""
    return s.column_logs


@term(RewardKind.navrl)
def mover_clearance(w: Weights, s: Step) -> float:
    """Mean logarithm of the distances (m) to the five nearest moving obstacles."""
    return s.mover_logs


@term(RewardKind.navrl, "height", "-", name="height")
def height_now(w: Weights, s: Step) -> float:
    """Squared distance (m²) of the drone's height from the band between start and goal ± 0.2 m, 0 inside."""
    return -(w.height * s.outside * s.outside)


@term(RewardKind.progress)
def progress(w: Weights, s: Step) -> float:
    """Decrease of the distance to the goal in the decision, m."""
    return s.progress


@term(RewardKind.progress, "height", "-")
def height(w: Weights, s: Step) -> float:
    """Squared distance (m²) of the drone's height from the band between start and goal ± 0.2 m, integrated over time (s)."""
    return -(w.height * s.outside_m2s)


@term(RewardKind.progress, "time", "-")
def time(w: Weights, s: Step) -> float:
    """Duration of the decision, s."""
    return -(w.time * s.seconds)


@term(RewardKind.progress, "near", "-")
def near(w: Weights, s: Step) -> float:
    """Duration of the decision (s), times (near_m - distance to the nearest obstacle) / 0.5 m; 0 beyond near_m."""
    if s.gap < w.near_m:
        return -(w.near * s.seconds * (w.near_m - s.gap) / 0.5)
    return 0.0


@term(RewardKind.progress, "success")
def success(w: Weights, s: Step) -> float:
    """1 when the episode ends at the goal."""
    return wp.where(s.succeeded, w.success, 0.0)


@term(RewardKind.progress, "crash", "-")
def crash(w: Weights, s: Step) -> float:
    """1 when the episode ends by a collision or out of bounds."""
    return wp.where(s.crashed, -w.crash, 0.0)


KINDS = list(RewardKind)  # kernels identify a kind by its index


def make_weights(cfg: RewardConfig) -> Any:
    """Return the `Weights` of a config."""
    weights = Weights()
    for name in NUMBERS:
        setattr(weights, name, getattr(cfg, name))
    return weights


@wp.func
def total_reward(kind: int, w: Weights, s: Step, i: int, terms: wp.array2d(dtype=wp.float32)) -> float:
    """Return the sum of the terms of a reward kind; write each term to its column in row i of `terms`."""
    total = float(0.0)
    for k in range(wp.static(len(TERMS))):
        if kind == wp.static(KINDS.index(TERMS[k].kind)):
            value = wp.static(TERMS[k].value)(w, s)
            terms[i, k] = value
            total = total + value
    return total
