"""Settings of the planner. The string under a field is its help text."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.core.errors import ConfigError
from fledge.core.settings import setting

STEPS = (2, 1000)  # fewest and most prediction steps


@dataclass
class PlannerConfig:
    """Candidates, horizon and costs of the planner."""

    headings: int = setting(32, at_least=1, at_most=360)
    """Number of candidate directions, evenly spaced, starting with the direction to the goal."""
    slow: float = setting(0.7, above=0, at_most=1000)
    """Lowest candidate speed, m/s; at most env.speed_limit."""
    middle: float = setting(1.4, above=0, at_most=1000)
    """Middle candidate speed, m/s; at most env.speed_limit."""
    fast: float = setting(2.0, above=0, at_most=1000)
    """Highest candidate speed, m/s; at most env.speed_limit."""
    climb: float = setting(1.0, at_least=0, at_most=1000)
    """Vertical speed of climbing and descending candidates, m/s; at most env.speed_limit. 0: level candidates only."""
    horizon_s: float = setting(3.0, above=0, at_most=20)
    """Time over which every candidate is predicted, s."""
    brief_s: float = setting(1.0, at_least=0, at_most=20)
    """Each command is also a candidate for this time only, followed by a stop, s; 0: no such candidates."""
    step_s: float = setting(0.1, above=0, at_most=1)
    """Time step of the prediction, s."""
    skin_m: float = setting(0.07, at_least=0, at_most=0.5)
    """Safety distance that is added to the drone's radius, m; coming nearer counts as a collision."""
    margin_m: float = setting(0.43, above=0, at_most=0.5)
    """Desired clearance from static obstacles, m."""
    margin_cost: float = setting(0.6, at_least=0, at_most=1_000_000)
    """Cost per metre of clearance from static obstacles that is missing to margin_m, at each prediction step."""
    mover_margin_m: float = setting(1.0, at_least=0, at_most=1000)
    """Desired clearance from moving obstacles, m; larger, since they may turn."""
    fast_mover_s: float = setting(0.5, at_least=0, at_most=1000)
    """Further desired clearance from movers faster than 1.5 m/s, for each m/s above, s."""
    mover_cost: float = setting(1.5, at_least=0, at_most=1_000_000)
    """Cost per metre of clearance from moving obstacles that is missing to mover_margin_m, at each prediction step."""
    coast_s: float = setting(0.8, at_least=0, at_most=100)
    """Time for which a moving obstacle that is no longer seen is expected to fly on at its last velocity, s; 0: it is
    forgotten at once."""
    fading_s: float = setting(2.0, above=0, at_most=1_000_000)
    """Time in which both clearance costs decay to 1/e, since predictions get less certain, s."""
    crash_cost: float = setting(100.0, above=0, at_most=1_000_000)
    """Cost of an immediate collision, in metres of path."""
    crash_relief: float = setting(20.0, at_least=0, at_most=1_000_000)
    """Decrease of the collision cost per second until the collision, m/s."""
    depth_cost: float = setting(0.0, at_least=0, at_most=1_000_000)
    """Cost of a collision per metre by which the drone comes too near, instead of the metres of path that it loses: where no
    command is safe, the drone turns away instead of flying on; 0: off."""
    patience_s: float = setting(2.0, at_least=0, at_most=1_000_000)
    """Time after which a drone that stays in its place accepts less clearance from static obstacles, s: from then on
    margin_cost and skin_m fall to 1/e every 2 s, until the drone has moved on by 0.5 m."""
    identify: bool = False
    """Estimate how the drone responds to commands from its last seconds of flight; false: as gain, damping, lag_s,
    climb_gain, climb_lag_s and delay_s say. These come from a step test; flights begin with them in both cases."""
    hasten: bool = False
    """Exaggerate commands to drones that respond slowly (needs identify)."""
    gain: float = setting(2.2, above=0, at_most=100)
    """Response: horizontal acceleration per error of velocity, 1/s."""
    damping: float = setting(0.2, at_least=0, at_most=10)
    """Response: air damping of velocity, 1/s; 0 if the controller removes it, so that the drone reaches its command."""
    lag_s: float = setting(0.15, at_least=0, at_most=1)
    """Response: lag of the horizontal acceleration, because the drone must tilt first, s; 0: only velocity lags."""
    climb_gain: float = setting(2.2, above=0, at_most=100)
    """Response: vertical acceleration per error of velocity, 1/s."""
    climb_lag_s: float = setting(0.03, at_least=0, at_most=1)
    """Response: lag of the vertical acceleration, at most lag_s, s; thrust responds at once, tilt does not."""
    delay_s: float = setting(0.0, at_least=0, at_most=1)
    """Response: time until a command takes effect, s, rounded to whole decisions."""
    ways_every: int = setting(5, at_least=0, at_most=1_000_000)
    """Decisions between two searches for the shortest path on the remembered map; 0: distances are straight lines."""
    narrow: float = setting(1.0, at_least=0, at_most=1000)
    """Share by which path segments count as longer at 0.3 to 0.4 m from a LiDAR hit; half of it at 0.4 to 0.5 m."""
    alarm_s: float = setting(1.5, above=0, at_most=1000)
    """When the planner is a shield (safety filter): replace commands that lead to a collision within this time, s."""
    guard: bool = False
    """Replace the chosen command by the nearest one outside all velocity obstacles, as the safety filter `orca` does."""
    memory: bool = True
    """Remember past LiDAR hits; false uses the last scan only."""
    standing: bool = True
    """Assume that obstacles reach down to the ground; false if drones can fly beneath some."""

    def validate(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        steps, (fewest, most) = round(self.horizon_s / self.step_s), STEPS
        if not fewest <= steps <= most:
            raise ConfigError(
                f"horizon_s={self.horizon_s:g} with step_s={self.step_s:g} gives {steps:,} prediction steps, but the "
                f"planner needs {fewest} to {most:,}: change horizon_s or step_s."
            )
