"""Settings of the planner. The string under a field is its help text."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.core.errors import ConfigError
from fledge.core.settings import setting

LOOKS = (2, 1000)  # fewest and most of a candidate


@dataclass
class PlannerConfig:
    """Candidates, horizon and costs of the planner."""

    headings: int = setting(32, at_least=1, at_most=360)
    """Directions tried, evenly around from straight to the goal."""
    slow: float = setting(0.7, above=0)
    """Speeds tried, m/s: this one,"""
    middle: float = setting(1.4, above=0)
    """this one,"""
    fast: float = setting(2.0, above=0)
    """and this one; none of them, nor `climb`, above env.speed_limit."""
    climb: float = setting(1.0, at_least=0)
    """Each of them is tried level, sinking and climbing at this many m/s; 0: level alone."""
    horizon_s: float = setting(3.0, above=0, at_most=20)
    """How far every candidate is followed, s."""
    brief_s: float = setting(1.0, at_least=0)
    """Every command is also tried for this time alone, after which the drone stops, s; 0: not."""
    step_s: float = setting(0.1, above=0, at_most=1)
    """Time between two looks at it, s."""
    skin_m: float = setting(0.07, at_least=0, at_most=0.5)
    """Added to the drone's radius: nearer than that counts as a collision, m."""
    margin_m: float = setting(0.43, above=0, at_most=0.5)
    """Room to leave between the drone's body and anything, m."""
    margin_cost: float = setting(0.6, at_least=0)
    """Price of a metre too near, per look."""
    mover_margin_m: float = setting(1.0, at_least=0)
    """Room to leave to movers, which may turn, m."""
    mover_cost: float = setting(1.5, at_least=0)
    """Price of a metre too near to one, per look."""
    fading_s: float = setting(2.0, above=0)
    """That price falls to 1/e in this time, since the future is less sure, s."""
    crash_cost: float = setting(100.0, above=0)
    """Price of a collision now, m of way;"""
    crash_relief: float = setting(20.0, at_least=0)
    """it is less by this much for every second that it lies ahead."""
    lag_s: float = setting(0.15, at_least=0, at_most=1)
    """Time in which the drone tilts: acceleration follows its command with this lag; 0: velocity lags alone."""
    ways_every: int = setting(5, at_least=0)
    """Decisions between two searches for the shortest way through what is remembered; 0: distances are straight."""
    narrow: float = setting(1.0, at_least=0)
    """How much longer a way counts that leaves less than 0.1 m to a hit."""
    alarm_s: float = setting(1.5, above=0)
    """As a shield: a command that leads into something within this time is not flown, s."""
    guard: bool = False
    """Turn the command that is flown out of all velocity obstacles, as the shield `orca` does."""
    memory: bool = True
    """Keep past LiDAR hits; without, the last scan alone."""
    standing: bool = True
    """Take for granted that whatever is hit stands on the ground; false where there is room beneath things."""

    def validate(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        looks, (fewest, most) = round(self.horizon_s / self.step_s), LOOKS
        if not fewest <= looks <= most:
            raise ConfigError(
                f"horizon_s={self.horizon_s:g} in steps of step_s={self.step_s:g} are {looks:,} looks ahead, but the "
                f"planner takes {fewest} to {most:,}: change one of them."
            )
