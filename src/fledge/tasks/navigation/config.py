"""Configuration of the navigation task. The string under a field is its help text."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from fledge.core.errors import ConfigError
from fledge.core.settings import setting
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.rewards import RewardConfig
from fledge.tasks.navigation.rewards import RewardKind as RewardKind
from fledge.tasks.navigation.sensing.observations import SensorConfig

EDGE_M = 24.0  # starts and goals lie this far from the middle
FOREST_HALF_M = 20.0
CROSSING_HALF_M = 19.4  # and, to cross, within this much of the middle along their side


class Dynamics(enum.Enum):
    """How a velocity command becomes motion."""

    lee = "lee"
    first_order = "first_order"


class ActionForm(enum.Enum):
    """Form of an action."""

    velocity = "velocity"
    headings = "headings"


class Starts(enum.Enum):
    """Where episodes start and end."""

    edges = "edges"
    rows = "rows"
    mixed = "mixed"
    crossing = "crossing"
    lane = "lane"


class Layout(enum.Enum):
    """Static and moving obstacles of a map."""

    forest = "forest"
    arena = "arena"


@dataclass
class RandomizeConfig:
    mass: float = setting(0.0, at_least=0, at_most=0.9)
    """Mass varies by ± this share, drawn per episode."""
    thrust: float = setting(0.0, at_least=0, at_most=0.9)
    """Rotor thrust varies by ± this share, drawn per episode."""
    damping: float = setting(0.0, at_least=0, at_most=0.9)
    """Air damping varies by ± this share, drawn per episode."""
    latency_steps: int = setting(0, at_least=0, at_most=1000, resume="restart")
    """Commands take effect 0 to this many physics steps late, drawn per episode."""
    lidar_noise_m: float = setting(0.0, at_least=0, at_most=1000)
    """Standard deviation of each beam's distance, m."""
    lidar_dropout: float = setting(0.0, at_least=0, at_most=0.9)
    """Probability that a beam returns nothing."""
    state_noise: float = setting(0.0, at_least=0, at_most=1000)
    """Standard deviation of noise on observed distances (m) and velocities (m/s)."""


@dataclass
class NavigationConfig(SensorConfig):
    num_envs: int = setting(1024, at_least=1, at_most=2**24, resume="restart")
    """Drones simulated at once."""
    static_obstacles: int = setting(350, at_least=0, at_most=4000)
    """Columns on each map. NavRL's name: env.num_obstacles."""
    moving_obstacles: int = setting(80, at_least=0, at_most=4000, resume="restart")
    """Moving obstacles on each map. NavRL's name: env_dyn.num_obstacles."""
    movers_cycle: list[float] = setting([1.0], at_least=0, at_most=1, items=(1, None))
    """Share of moving_obstacles on maps 0, 1, 2, ... in turn: [0, 1, 1, 1] leaves every fourth map without any."""
    layout: Layout = setting(Layout.forest, resume="restart")
    """forest: NavRL's. arena: P2M's 13 x 35 m between walls, cylinders and swinging movers."""
    floating_boxes: bool = True
    """Moving boxes float at any height (NavRL's published rule) instead of resting with their centre at height 0."""
    num_maps: int = setting(64, at_least=1, resume="restart")
    """Maps in use at once; drones are dealt a map at each reset."""
    map_refresh_steps: int = setting(0, at_least=0, resume="restart")
    """Physics steps after which the oldest map gives way to a new one, built in the background; 0 keeps all."""
    fresh_maps: bool = setting(False, resume="restart")
    """A new map for every episode of every drone (one map slot per drone)."""
    dt_s: float = setting(0.016, above=0, at_most=0.1)
    """Physics step, s."""
    decimation: int = setting(1, at_least=1, resume="restart")
    """Physics steps per decision."""
    max_episode_steps: int = setting(2200, at_least=1, resume="restart")
    """Physics steps after which an episode is truncated; with starts=crossing, for every 48 m from start to goal."""
    dynamics: Dynamics = Dynamics.lee
    """lee: full quadrotor under Lee's velocity controller. first_order: the cheap stand-in."""
    action_form: ActionForm = setting(ActionForm.velocity, resume="weights")
    """velocity: three numbers in [0, 1], goal frame. headings: one of num_headings directions, height held for you."""
    num_headings: int = setting(16, at_least=2, resume="weights")
    """Directions of the headings form, counter-clockwise from straight to the goal."""
    speed_limit: float = setting(2.0, above=0)
    """Largest commanded speed per axis, m/s."""
    starts: Starts = Starts.edges
    """edges: on all four. rows: NavRL's, y = 24 to -24. mixed: a share inside. crossing: side to side. lane: the arena's."""
    walls: bool = False
    """With starts=crossing: walls along the forest's two other sides, no way round; leaving the map ends the episode."""
    inside_share: float = setting(0.5, at_least=0, at_most=1)
    """Share of episodes that start inside the forest with starts=mixed."""
    success_ends_episode: bool = True
    """Reaching the goal ends the episode (NavRL's replica: no)."""
    goal_radius_m: float = setting(0.5, above=0)
    """Distance to the goal that counts as success, m."""
    collision_radius_m: float = setting(0.3, above=0)
    """Radius of the drone for collisions, m."""
    min_height_m: float = setting(0.2, at_least=0, below=0.5)
    """Below this the episode ends, m; episodes start at 0.5 to 2.5 m."""
    max_height_m: float = setting(4.0, above=2.5)
    """Above this the episode ends, m."""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    randomize: RandomizeConfig = field(default_factory=RandomizeConfig)
    nan_guard: bool = setting(False, resume="same")
    """Check state and observations after every step; on NaN write a dump that can be replayed, and stop."""
    nan_dump_dir: str = setting(".", resume="same")
    """Folder for the dumps of nan_guard."""

    def validate(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        if self.fresh_maps and self.map_refresh_steps:
            raise ConfigError("env.fresh_maps=true already makes a map per episode: leave env.map_refresh_steps at 0.")
        if self.walls and self.starts is not Starts.crossing:
            raise ConfigError(f"env.walls=true needs env.starts=crossing, got env.starts={self.starts.value}.")
        if self.plan and self.action_form is not ActionForm.velocity:
            raise ConfigError("env.plan=true plans velocities: set env.action_form=velocity, or env.plan=false.")
        if (self.layout is Layout.arena) != (self.starts is Starts.lane):
            raise ConfigError("env.layout=arena and env.starts=lane go together: set both or neither.")

    @property
    def longest_episode_steps(self) -> int:
        """Physics steps after which any episode is truncated."""
        if self.starts is not Starts.crossing:
            return self.max_episode_steps
        return math.ceil(self.max_episode_steps * math.hypot(2 * EDGE_M, 2 * CROSSING_HALF_M) / (2 * EDGE_M))


class PolicyKind(enum.Enum):
    """Which network flies."""

    features = "features"
    navrl = "navrl"
    planned = "planned"


@dataclass
class NavigationPolicyConfig:
    kind: PolicyKind = setting(PolicyKind.features, resume="weights")
    """features: MLP on hand-made inputs. planned: corrects the planner (env.plan). navrl: NavRL's network (both: ppo)."""
    hidden: list[int] = setting([256, 128], at_least=1, items=(1, None), resume="weights")
    """Widths of the MLP's layers (not navrl's)."""
    correction: float = setting(0.5, at_least=0, at_most=2, resume="weights")
    """How far the planner's command can be corrected, in shares of the speed limit per axis (planned only)."""


@dataclass
class CurriculumConfig:
    movers_start: float = setting(0.25, at_least=0, at_most=1)
    """Share of the moving obstacles shown at the beginning."""
    ramp: float = setting(0.25, at_least=0)
    """Share of training over which it grows to 1 (0: all from the start)."""
