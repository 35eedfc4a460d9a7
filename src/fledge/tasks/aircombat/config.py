"""Settings of the duel, with every constant of the physics. The string under a field is its help text."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fledge.agents.recurrent import RecurrentConfig
from fledge.core.errors import ConfigError
from fledge.core.settings import setting

GRAVITY = 9.8  # m/s²
MAX_MISSILES = 16
MAX_DECISION_S = 1000.0


class Scenario(enum.Enum):
    """How a fight starts."""

    head_on = "head_on"
    random = "random"
    defensive = "defensive"
    chase = "chase"
    reference = "reference"
    mixed = "mixed"


class ActionForm(enum.Enum):
    """How an action is encoded: rudder, throttle and fire as separate values, or one of six pairs of rudder and fire."""

    continuous = "continuous"
    discrete = "discrete"


@dataclass
class FighterConfig:
    """Performance of the fighters."""

    terminal_speed: float = setting(400.0, above=0, at_most=1_000_000)
    """Speed of a free fall, at which drag equals weight, m/s; it determines the drag without lift."""
    min_turn_radius_m: float = setting(1000.0, above=0, at_most=1_000_000)
    """Radius of the tightest turn, m."""
    thrust_g: float = setting(1.5, above=0, at_most=1_000_000)
    """Acceleration by thrust at full throttle, in units of g."""
    lift_drag: float = setting(5.0, above=0, at_most=1000)
    """Best ratio of lift to drag."""
    load_limit_g: float = setting(9.0, above=0, at_most=1_000_000)
    """Largest normal acceleration, in units of g (if env.load_limits is true)."""


@dataclass
class MissileConfig:
    """Performance, guidance and number of the missiles."""

    terminal_speed: float = setting(400.0, above=0, at_most=1_000_000)
    """Speed of a free fall, at which drag equals weight, m/s; it determines the drag without lift."""
    min_turn_radius_m: float = setting(1000.0, above=0, at_most=1_000_000)
    """Radius of the tightest turn, m."""
    thrust_g: float = setting(15.0, above=0, at_most=1_000_000)
    """Acceleration by the motor's thrust, in units of g."""
    burn_s: float = setting(10.0, at_least=0, at_most=1000)
    """Burn time of the motor, s."""
    lift_drag: float = setting(2.0, above=0, at_most=1000)
    """Best ratio of lift to drag."""
    load_limit_g: float = setting(40.0, above=0, at_most=1_000_000)
    """Largest normal acceleration, in units of g (if env.load_limits is true)."""
    navigation: float = setting(4.0, above=1, at_most=1000)
    """Gain of proportional navigation: turn rate over line-of-sight rate."""
    kill_radius_m: float = setting(100.0, above=0, at_most=1_000_000)
    """Closest approach that kills, m."""
    min_speed: float = setting(200.0, at_least=0, at_most=1_000_000)
    """Speed below which a missile with a burnt-out motor is spent, m/s."""
    carried: int = setting(6, at_least=1, at_most=MAX_MISSILES, resume="weights", shapes="missiles")
    """Number of missiles that each side carries."""
    interval_s: float = setting(0.5, at_least=0, at_most=1_000_000)
    """Shortest time between two shots of one side, s."""


@dataclass
class AircombatConfig:
    """Settings of the air-combat env."""

    num_envs: int = setting(1024, at_least=1, at_most=2**24, resume="restart")
    """Number of aircraft that the policy controls: one per duel against an opponent, two per duel in self-play."""
    opponent: str = setting("", resume="restart", code=True)
    """Opponent: a scripted pilot such as crank, a policy file, a run, or your own file.py:Class; empty: self-play, in which
    both sides learn."""
    scenario: Scenario = Scenario.head_on
    """Start of a fight. head_on: nose to nose. random: any geometry. defensive: a missile is in flight. chase: one behind
    the other. reference: midrangeRL's start positions. mixed: one of the first four, drawn for each fight."""
    action_form: ActionForm = setting(ActionForm.continuous, resume="weights")
    """Form of an action. continuous: rudder, throttle and fire. discrete: one of six actions at full throttle: rudder left,
    centred or right, each with or without fire."""
    dt_s: float = setting(0.1, at_least=0.0001, at_most=0.2)
    """Time step of the physics, s; results differ by less than 2 % between steps of 1/120 s and 0.2 s."""
    decimation: int = setting(10, at_least=1, at_most=10000, resume="restart")
    """Physics steps per decision, with time_scale=1."""
    time_scale: float = setting(1.0, at_least=0.01, at_most=100, resume="restart")
    """Factor on the simulated time of a decision; the time step of the physics does not change."""
    max_episode_s: float = setting(240.0, above=0, at_most=100_000, resume="restart")
    """Simulated time after which a fight is truncated, s."""
    load_limits: bool = True
    """Limit the normal acceleration of aircraft and missiles to their load_limit_g."""
    rudder_rate: float = setting(0.0, at_least=0, at_most=1000)
    """Largest rudder travel per second (from full left to full right is 2); 0: unlimited."""
    start_speed: float = setting(300.0, above=0, at_most=10_000)
    """Speed at the start, m/s."""
    start_range_m: float = setting(30_000.0, above=0, at_most=1_000_000)
    """Distance at the start with scenario=head_on, m."""
    min_range_m: float = setting(15_000.0, above=0, at_most=1_000_000)
    """Smallest distance at the start with scenario=random, m."""
    max_range_m: float = setting(60_000.0, above=0, at_most=1_000_000)
    """Largest distance at the start with scenario=random, m."""
    spacetime: bool = setting(True, resume="weights", shapes="spacetime")
    """Observe the ranges of both sides' missiles (the space-time graph)."""
    reward: str = setting("win_loss", code=True)
    """Sum of reward terms with weights, such as win_loss+0.5*shaped; a term of your own is module:Class."""
    fighter: FighterConfig = field(default_factory=FighterConfig)
    missile: MissileConfig = field(default_factory=MissileConfig)
    nan_guard: bool = setting(False, resume="same")
    """Check state and observations for NaN after every step; on NaN write a dump that can be replayed, and stop."""
    nan_dump_dir: str = setting(".", resume="same")
    """Folder for the dumps of nan_guard."""

    def validate(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        if self.min_range_m > self.max_range_m:
            raise ConfigError(
                f"env.min_range_m is {self.min_range_m:g}, but must be at most env.max_range_m, which is {self.max_range_m:g}."
            )
        if not self.opponent and self.num_envs % 2:
            raise ConfigError(
                f"env.num_envs is {self.num_envs}, but must be even while env.opponent is empty, as two rows make a "
                "duel: set an even number, or set env.opponent."
            )
        if self.decision_s > MAX_DECISION_S:
            raise ConfigError(
                f"A decision lasts env.dt_s * env.decimation * env.time_scale = {self.decision_s:g} s, but must last at most "
                f"{MAX_DECISION_S:g} s: lower one of these settings."
            )
        if self.max_episode_s < self.decision_s:
            raise ConfigError(
                f"env.max_episode_s is {self.max_episode_s:g}, but must be at least the {self.decision_s:g} s of one decision."
            )

    @property
    def decision_s(self) -> float:
        """Simulated seconds that one decision lasts."""
        return self.dt_s * self.decimation * self.time_scale


@dataclass
class AircombatPolicyConfig(RecurrentConfig):
    """Settings of the policy's network."""

    hidden: list[int] = setting([256, 128], at_least=1, items=(1, None), resume="weights")
    """Widths of the network's hidden layers."""
    tokens: int = setting(32, at_least=1, at_most=1024, resume="weights")
    """Number of features that encode a missile (ppo only)."""
    spacetime: bool = setting(True, resume="weights")
    """The policy reads the observation spacetime; false: only opponents read it (ppo only)."""
    pool: str = setting("max", choices=("max", "attention"), resume="weights")
    """How the encodings of all missiles are combined: their maximum, or attention (ppo only)."""
    within_r_max: bool = setting(False, resume="weights")
    """Never fire from beyond R_max, the range above which a missile misses even a target that holds its course (ppo only)."""
