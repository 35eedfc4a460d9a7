"""Configuration of the navigation task. The string under a field is its help text."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fledge.core.errors import ConfigError


class Dynamics(enum.Enum):
    """How a velocity command becomes motion."""

    lee = "lee"
    first_order = "first_order"


class ActionForm(enum.Enum):
    """What an action is."""

    velocity = "velocity"
    headings = "headings"


class Starts(enum.Enum):
    """Where episodes start and end."""

    edges = "edges"
    rows = "rows"
    mixed = "mixed"


class RewardKind(enum.Enum):
    """Which reward is paid."""

    navrl = "navrl"
    progress = "progress"


@dataclass
class RewardConfig:
    kind: RewardKind = RewardKind.progress
    """navrl: 1 + speed to goal + log clearances - height penalty. progress: metres gained, with the terms below."""
    height: float = 2.0
    """Weight of the squared metres outside the start-goal height band, per second (navrl: 8, per decision)."""
    near: float = 0.4
    """Cost per second of flying nearer than near_m to anything, growing linearly to its value 0.5 m closer."""
    near_m: float = 0.8
    """Distance below which `near` applies, m."""
    crash: float = 20.0
    """Deducted once for any terminal failure (progress only)."""
    success: float = 10.0
    """Paid once when the goal is reached (progress only)."""
    time: float = 0.0
    """Cost per second of flight (progress only)."""


@dataclass
class RandomizeConfig:
    mass: float = 0.0
    """Mass varies by ± this share, drawn per episode."""
    thrust: float = 0.0
    """Rotor thrust varies by ± this share, drawn per episode."""
    damping: float = 0.0
    """Air damping varies by ± this share, drawn per episode."""
    latency_steps: int = 0
    """Commands take effect 0 to this many physics steps late, drawn per episode."""
    lidar_noise_m: float = 0.0
    """Standard deviation of each beam's distance, m."""
    lidar_dropout: float = 0.0
    """Probability that a beam returns nothing."""
    state_noise: float = 0.0
    """Standard deviation of noise on observed distances (m) and velocities (m/s)."""


@dataclass
class NavigationConfig:
    num_envs: int = 1024
    """Drones simulated at once."""
    static_obstacles: int = 350
    """Columns on each map. NavRL's name: env.num_obstacles."""
    moving_obstacles: int = 80
    """Moving obstacles on each map. NavRL's name: env_dyn.num_obstacles."""
    movers_cycle: list[float] = field(default_factory=lambda: [1.0])
    """Share of moving_obstacles on maps 0, 1, 2, ... in turn: [0, 1, 1, 1] leaves every fourth map without any."""
    floating_boxes: bool = True
    """Moving boxes float at any height (NavRL's published rule) instead of resting with their centre at height 0."""
    num_maps: int = 64
    """Maps in use at once; drones are dealt a map at each reset."""
    map_refresh_steps: int = 0
    """Physics steps after which the oldest map gives way to a new one, built in the background; 0 keeps all."""
    fresh_maps: bool = False
    """A new map for every episode of every drone (one map slot per drone)."""
    dt_s: float = 0.016
    """Physics step, s."""
    decimation: int = 1
    """Physics steps per decision."""
    max_episode_steps: int = 2200
    """Physics steps after which an episode is truncated."""
    dynamics: Dynamics = Dynamics.lee
    """lee: full quadrotor under Lee's velocity controller. first_order: the cheap stand-in."""
    action_form: ActionForm = ActionForm.velocity
    """velocity: three numbers in [0, 1], goal frame. headings: one of num_headings directions, height held for you."""
    num_headings: int = 16
    """Directions of the headings form, counter-clockwise from straight to the goal."""
    speed_limit: float = 2.0
    """Largest commanded speed per axis, m/s."""
    starts: Starts = Starts.edges
    """edges: anywhere on the four edges. rows: NavRL's evaluation, y = 24 to y = -24. mixed: a share starts inside."""
    inside_share: float = 0.5
    """Share of episodes that start inside the forest with starts=mixed."""
    success_ends_episode: bool = True
    """Reaching the goal ends the episode (NavRL's replica: no)."""
    goal_radius_m: float = 0.5
    """Distance to the goal that counts as success, m."""
    collision_radius_m: float = 0.3
    """Radius of the drone for collisions, m."""
    min_height_m: float = 0.2
    """Below this the episode ends."""
    max_height_m: float = 4.0
    """Above this the episode ends."""
    lidar_range_m: float = 4.0
    """Range of LiDAR and of obstacle detection, m."""
    lidar_azimuths: int = 36
    """Beams around, counter-clockwise from straight ahead."""
    lidar_elevations_deg: list[float] = field(default_factory=lambda: [-10.0, 0.0, 10.0, 20.0])
    """Elevation of each row of beams, degrees."""
    lidar_sees_movers: bool = False
    """Beams also hit moving obstacles (NavRL's do not)."""
    grid_map: bool = False
    """Observe an egocentric occupancy grid, goal direction up the first axis."""
    grid_size: int = 64
    """Cells along each side of the occupancy grid."""
    grid_resolution_m: float = 0.125
    """Side of an occupancy cell, m."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    randomize: RandomizeConfig = field(default_factory=RandomizeConfig)
    nan_guard: bool = False
    """Check state and observations after every step; on NaN write a dump that can be replayed, and stop."""
    nan_dump_dir: str = "."
    """Folder for the dumps of nan_guard."""

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        at_least_one = ("num_envs", "num_maps", "decimation", "max_episode_steps", "lidar_azimuths", "grid_size")
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ConfigError(f"env.{name} is {getattr(self, name)}, but must be at least 1.")
        for name in ("static_obstacles", "moving_obstacles", "map_refresh_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"env.{name} is {getattr(self, name)}, but must be 0 or more.")
        positive = ("dt_s", "speed_limit", "lidar_range_m", "goal_radius_m", "collision_radius_m", "grid_resolution_m")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigError(f"env.{name} is {getattr(self, name)}, but must be greater than 0.")
        if self.num_headings < 2:
            raise ConfigError(f"env.num_headings is {self.num_headings}, but needs at least 2 directions.")
        if not 0.0 <= self.inside_share <= 1.0:
            raise ConfigError(f"env.inside_share is {self.inside_share}, but must lie between 0 and 1.")
        if not 1 <= len(self.lidar_elevations_deg) <= 64 or any(abs(e) >= 89.0 for e in self.lidar_elevations_deg):
            raise ConfigError("env.lidar_elevations_deg must list 1 to 64 elevations between -89 and 89 degrees.")
        if not self.movers_cycle or any(not 0.0 <= share <= 1.0 for share in self.movers_cycle):
            raise ConfigError("env.movers_cycle must list at least one share between 0 and 1.")
        if self.static_obstacles > 4000 or self.moving_obstacles > 4000:
            raise ConfigError("A map holds at most 4000 static and 4000 moving obstacles.")
        if self.fresh_maps and self.map_refresh_steps:
            raise ConfigError("env.fresh_maps already makes a map per episode: leave env.map_refresh_steps at 0.")
        for name, value in vars(self.randomize).items():
            limit = 0.9 if name in ("mass", "thrust", "damping", "lidar_dropout") else 1000
            if not 0 <= value <= limit:
                raise ConfigError(f"env.randomize.{name} is {value}, but must lie between 0 and {limit}.")

    @property
    def num_elevations(self) -> int:
        return len(self.lidar_elevations_deg)
