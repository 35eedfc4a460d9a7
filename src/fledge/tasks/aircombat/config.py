"""Configuration of the duel. The string under a field is its help text. Every constant of the physics is here."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fledge.core.errors import ConfigError
from fledge.core.settings import setting

GRAVITY = 9.8  # m/s²
MAX_MISSILES = 16


class Scenario(enum.Enum):
    """How a fight begins."""

    head_on = "head_on"
    random = "random"
    defensive = "defensive"
    chase = "chase"
    reference = "reference"
    mixed = "mixed"


class ActionForm(enum.Enum):
    """What an action is."""

    continuous = "continuous"
    discrete = "discrete"


@dataclass
class FighterConfig:
    terminal_speed: float = setting(400.0, above=0)
    """Speed at which drag equals gravity, m/s: it sets the drag without lift."""
    min_turn_radius_m: float = setting(1000.0, above=0)
    """Radius of the tightest turn, m."""
    thrust_g: float = setting(1.5, above=0)
    """Thrust at full throttle, g."""
    lift_drag: float = setting(5.0, above=0)
    """Best ratio of lift to drag."""
    load_limit_g: float = setting(9.0, above=0)
    """Largest normal acceleration, g (with env.load_limits)."""


@dataclass
class MissileConfig:
    terminal_speed: float = setting(400.0, above=0)
    """Speed at which drag equals gravity, m/s: it sets the drag without lift."""
    min_turn_radius_m: float = setting(1000.0, above=0)
    """Radius of the tightest turn, m."""
    thrust_g: float = setting(15.0, above=0)
    """Thrust of the motor, g."""
    burn_s: float = setting(10.0, at_least=0)
    """Time that the motor burns, s."""
    lift_drag: float = setting(2.0, above=0)
    """Best ratio of lift to drag."""
    load_limit_g: float = setting(40.0, above=0)
    """Largest normal acceleration, g (with env.load_limits)."""
    navigation: float = setting(4.0, above=1)
    """Gain of proportional navigation: turn rate over the rate of the line of sight."""
    kill_radius_m: float = setting(100.0, above=0)
    """Closest approach that kills, m."""
    min_speed: float = setting(200.0, at_least=0)
    """Speed below which a missile whose motor is out is spent, m/s."""
    carried: int = setting(6, at_least=1, at_most=MAX_MISSILES, resume="weights", shapes="missiles")
    """Missiles of each side."""
    interval_s: float = setting(0.5, at_least=0)
    """Least time between two shots of one side, s."""


@dataclass
class AircombatConfig:
    num_envs: int = setting(1024, at_least=1, at_most=2**24, resume="restart")
    """Rows that policies act for: one a duel against an opponent, two a duel in self-play."""
    opponent: str = setting("", resume="restart")
    """Who flies the other side: a pilot such as crank, a policy, a run; empty: self-play, the policy flies both."""
    scenario: Scenario = Scenario.head_on
    """head_on: 30 km, nose to nose. random: any geometry. defensive: a missile is on its way. chase: one behind the other.
    reference: midrangeRL's places. mixed: one of the first four, drawn for each fight."""
    action_form: ActionForm = setting(ActionForm.continuous, resume="weights")
    """continuous: rudder, throttle, fire. discrete: one of six, rudder left, none, right times fire, at full throttle."""
    dt_s: float = setting(0.1, above=0, at_most=0.2)
    """Physics step, s; results change by less than 2 % from 1/120 to 0.2."""
    decimation: int = setting(10, at_least=1, at_most=10000, resume="restart")
    """Physics steps per decision, at time_scale 1."""
    time_scale: float = setting(1.0, above=0, at_most=100, resume="restart")
    """Stretches the simulated time of a decision; physics steps stay as fine as they were."""
    max_episode_s: float = setting(240.0, above=0, resume="restart")
    """Simulated time after which a fight is truncated, s."""
    load_limits: bool = True
    """Airframes bear only their load_limit_g."""
    rudder_rate: float = setting(0.0, at_least=0)
    """Rudder travel per second (full left to full right is 2); 0: at once."""
    start_speed: float = setting(300.0, above=0)
    """Speed at the start, m/s."""
    start_range_m: float = setting(30_000.0, above=0)
    """Distance at the start of head_on, m."""
    min_range_m: float = setting(15_000.0, above=0)
    """Least distance at the start of random, m."""
    max_range_m: float = setting(60_000.0, above=0)
    """Largest distance at the start of random, m."""
    spacetime: bool = setting(True, resume="weights", shapes="spacetime")
    """Observe the reach of both sides' missiles: the space-time graph."""
    reward: str = setting("win_loss", code=True)
    """Terms of the reward with their weights, as in win_loss+0.5*shaped; module:Class is a term of your own."""
    fighter: FighterConfig = field(default_factory=FighterConfig)
    missile: MissileConfig = field(default_factory=MissileConfig)
    nan_guard: bool = setting(False, resume="same")
    """Check state and observations after every step; on NaN write a dump that can be replayed, and stop."""
    nan_dump_dir: str = setting(".", resume="same")
    """Folder for the dumps of nan_guard."""

    def validate(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        if self.min_range_m > self.max_range_m:
            raise ConfigError(
                f"env.min_range_m is {self.min_range_m:g}, but env.max_range_m is {self.max_range_m:g}: swap them."
            )
        if not self.opponent and self.num_envs % 2:
            raise ConfigError(
                f"env.num_envs is {self.num_envs}, but in self-play two rows make a duel: take an even number, or name an "
                "env.opponent."
            )
        if self.missile.carried and self.max_episode_s < self.decision_s:
            raise ConfigError(
                f"env.max_episode_s is {self.max_episode_s:g}, but one decision lasts {self.decision_s:g} s: make it longer."
            )

    @property
    def decision_s(self) -> float:
        """Simulated seconds of a decision."""
        return self.dt_s * self.decimation * self.time_scale


@dataclass
class AircombatPolicyConfig:
    hidden: list[int] = setting([256, 128], at_least=1, items=(1, None), resume="weights")
    """Widths of the network's layers."""
    tokens: int = setting(32, at_least=1, at_most=1024, resume="weights")
    """Width of what is read off each missile (ppo only)."""
    spacetime: bool = setting(True, resume="weights")
    """Read the space-time graph, where env.spacetime observes it; false: opponents alone see it (ppo only)."""
    pool: str = setting("max", choices=("max", "attention"), resume="weights")
    """How missiles are taken together (ppo only)."""
    within_r_max: bool = setting(False, resume="weights")
    """Never fire where a target outlasts the missile by keeping its course, as the space-time graph has it (ppo only)."""
