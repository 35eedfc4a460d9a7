"""Configuration of the navigation task. The string under a field is its help text."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace

from fledge.agents.recurrent import RecurrentConfig
from fledge.core.errors import ConfigError
from fledge.core.settings import setting
from fledge.tasks.navigation.perception.config import PerceptionConfig
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.randomize import RandomizeConfig as RandomizeConfig
from fledge.tasks.navigation.rewards import RewardConfig
from fledge.tasks.navigation.rewards import RewardKind as RewardKind
from fledge.tasks.navigation.sensing.observations import SensorConfig
from fledge.tasks.navigation.simulators.gains import Gains

EDGE_M = 24.0  # distance of starts and goals from the middle of the map
FOREST_HALF_M = 20.0
CROSSING_HALF_M = 19.4  # starts and goals of crossings are within this of the middle of their side


class Dynamics(enum.Enum):
    """Dynamics models; the help text of `env.dynamics` explains them."""

    lee = "lee"
    first_order = "first_order"
    iris = "iris"
    mujoco = "mujoco"
    pyflyt = "pyflyt"


SIMULATED = (Dynamics.iris, Dynamics.mujoco, Dynamics.pyflyt)  # flown by `simulators/`, outside of the env's kernels


class Collision(enum.Enum):
    """Rules for collisions of the drone; the help text of `env.collision` explains them."""

    cylinder = "cylinder"
    sphere = "sphere"
    beams = "beams"


class ActionForm(enum.Enum):
    """How an action is encoded: as a velocity vector, or as the index of one of several fixed headings."""

    velocity = "velocity"
    headings = "headings"


class Starts(enum.Enum):
    """Rules that place the start and the goal of an episode; the help text of `env.starts` explains them."""

    edges = "edges"
    rows = "rows"
    mixed = "mixed"
    crossing = "crossing"
    lane = "lane"
    circle = "circle"
    streams = "streams"
    corridor = "corridor"


FORMATIONS = (Starts.circle, Starts.streams, Starts.corridor)
TOGETHER = (Starts.crossing, *FORMATIONS)  # for several drones in one world


class Layout(enum.Enum):
    """Map layouts: NavRL's forest, or P2M's arena."""

    forest = "forest"
    arena = "arena"


class Movers(enum.Enum):
    """Ways in which moving obstacles move; the help text of `env.movers` explains them."""

    roam = "roam"
    pedestrians = "pedestrians"


@dataclass
class NavigationConfig(SensorConfig):
    """Settings of the navigation env."""

    num_envs: int = setting(1024, at_least=1, at_most=2**24, resume="restart")
    """Number of drones simulated in parallel; a multiple of drones."""
    drones: int = setting(1, at_least=1, at_most=32, resume="restart")
    """Drones that fly together in one world, each to its own goal: they see each other as moving obstacles and collide.
    Their episode ends when all have reached their goals or crashed, or at the time limit."""
    broadcast: bool = True
    """With drones above 1: drones know the positions and velocities of all others within lidar_range_m. false: only of
    those in line of sight."""
    static_obstacles: int = setting(350, at_least=0, at_most=4000)
    """Number of columns on each map. NavRL's name: env.num_obstacles."""
    moving_obstacles: int = setting(80, at_least=0, at_most=4000, resume="restart")
    """Number of moving obstacles on each map. NavRL's name: env_dyn.num_obstacles."""
    movers: Movers = setting(Movers.roam, resume="restart")
    """How moving obstacles move. roam: NavRL's boxes and cylinders, through columns and each other; in a world, through its
    free space. pedestrians: standing cylinders, which avoid walls and each other by ORCA, but not the drone."""
    mover_speed: float = setting(1.0, above=0, at_most=10)
    """Speed of moving obstacles as a multiple of 0.5 to 1.5 m/s."""
    movers_cycle: list[float] = setting([1.0], at_least=0, at_most=1, items=(1, None))
    """Share of moving_obstacles on maps 0, 1, 2, ... in turn: [0, 1, 1, 1] leaves every fourth map without movers."""
    world: str = setting("", resume="restart")
    """Worlds to fly in instead of the layout's maps: files that `fledge world` reads or generators (rooms, corridors,
    pillars, cave, canopy, stairs, city, hall), separated by commas; flights go between random points, and end after
    max_episode_steps for each 24 m of the shortest path and 5 m more. Or the scene of a benchmark (sando_easy, sando_medium,
    sando_hard, fapp), with its own start, goal and movers. Empty: the layout's maps."""
    eval_world: str = setting("", resume="same")
    """Worlds for evaluation, as in world. Empty: those of training, with other routes and other generated worlds."""
    layout: Layout = setting(Layout.forest, resume="restart")
    """Layout of maps. forest: columns as in NavRL. arena: as in P2M, 13 x 35 m, with cylinders and swinging movers."""
    floating_boxes: bool = True
    """Moving boxes float at any height, as in NavRL's paper; false puts their centre at height 0."""
    num_maps: int = setting(64, at_least=1, at_most=2**24, resume="restart")
    """Number of maps in use at once; a drone gets one of them at each reset."""
    map_refresh_steps: int = setting(0, at_least=0, at_most=10**8, resume="restart")
    """Physics steps after which a new map, built in the background, replaces the oldest one; 0 keeps all maps, as does
    env.world."""
    fresh_maps: bool = setting(False, resume="restart")
    """Build a new map for every episode of every drone (takes the memory of one map per drone)."""
    dt_s: float = setting(0.016, at_least=0.0001, at_most=0.1)
    """Time step of the physics, s."""
    decimation: int = setting(1, at_least=1, at_most=10000, resume="restart")
    """Physics steps per decision of the policy."""
    max_episode_steps: int = setting(2200, at_least=1, at_most=10**8, resume="restart")
    """Physics steps after which an episode is truncated; with starts=crossing, this number for each 48 m from start to
    goal."""
    dynamics: Dynamics = Dynamics.lee
    """Dynamics model. lee: a quadrotor under Lee's velocity controller. first_order: velocity follows commands with a lag.
    For tests of a policy in physics that is not the env's own, on the CPU: iris, the quadrotor of PX4's simulation; mujoco and
    pyflyt, quadrotors in these simulators; all three under `autopilot`."""
    autopilot: Gains = Gains.px4
    """With dynamics=iris, mujoco or pyflyt: gains of the velocity, attitude and rate controllers. px4: PX4's defaults. stiff:
    higher. soft: lower. smooth: PX4's defaults, but the commanded velocity changes by at most 3 m/s²."""
    action_form: ActionForm = setting(ActionForm.velocity, resume="weights")
    """Form of an action. velocity: a velocity in the goal frame, three numbers in [0, 1]. headings: one of num_headings
    horizontal directions, while the drone flies to the goal's height."""
    num_headings: int = setting(16, at_least=2, at_most=3600, resume="weights")
    """Number of directions of action_form=headings, counter-clockwise from the direction to the goal."""
    speed_limit: float = setting(2.0, above=0, at_most=1000)
    """Largest commanded speed per axis, m/s."""
    starts: Starts = Starts.edges
    """Starts and goals. edges: on the four edges. rows: from y = 24 m to y = -24 m. mixed: as edges, but a share of
    inside_share starts inside the forest. crossing: on opposite sides. lane: along the arena. For several drones, besides
    crossing: circle, to the opposite point; streams, two at right angles; corridor, two that meet head-on in the arena."""
    walls: bool = False
    """With starts=crossing: walls along the other two sides of the forest; leaving the map ends the episode."""
    inside_share: float = setting(0.5, at_least=0, at_most=1)
    """With starts=mixed: share of episodes that start inside the forest."""
    success_ends_episode: bool = True
    """End the episode when the goal is reached (not in NavRL)."""
    goal_radius_m: float = setting(0.5, above=0, at_most=1000)
    """Distance to the goal that counts as success, m."""
    collision: Collision = setting(Collision.cylinder, absent="beams")
    """Shape of the drone for collisions, tested along the whole path of each physics step. cylinder: upright, with
    collision_radius_m and body_height_m. sphere: with collision_radius_m, the strictest. beams: NavRL's rule, by 36 x 4
    beams and enlarged movers, at the end of each physics step; it hardly looks down."""
    collision_radius_m: float = setting(0.3, above=0, at_most=10)
    """Radius of the drone for collisions, m."""
    body_height_m: float = setting(0.2, above=0, at_most=10)
    """Height of the drone for collision=cylinder, from its lowest to its highest point, m."""
    min_height_m: float = setting(0.2, at_least=0, at_most=0.5)
    """Height above the ground below which an episode ends, m; episodes start at 0.5 to 2.5 m."""
    max_height_m: float = setting(4.0, above=2.5, at_most=1000)
    """Height above the ground above which an episode ends, m."""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    randomize: RandomizeConfig = field(default_factory=RandomizeConfig)
    perception: PerceptionConfig = field(default_factory=PerceptionConfig)
    nan_guard: bool = setting(False, resume="same")
    """Check state and observations for NaN after every step; on NaN write a dump that can be replayed, and stop."""
    nan_dump_dir: str = setting(".", resume="same")
    """Folder for the dumps of nan_guard."""

    def validate(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        self.validate_sensor()
        if self.tracks_movers and not self.lidar_sees_movers:
            raise ConfigError(
                "env.movers_from=lidar needs env.lidar_sees_movers=true: set it, choose a sensor that sees movers such as "
                "sensor=mid360, or set env.movers_from=detector."
            )
        for name in (n for n in ("world", "eval_world") if getattr(self, n) and not getattr(self, n).strip(" ,")):
            raise ConfigError(
                f"env.{name}={getattr(self, name)} names no world: pass a file or a generator, or nothing."
            )
        if self.world and self.fresh_maps:
            raise ConfigError("env.world has a fixed set of worlds, without env.fresh_maps: set env.fresh_maps=false.")
        if self.world and self.collision is Collision.beams:
            raise ConfigError(
                "env.collision=beams is NavRL's rule for its forest: with env.world choose cylinder or sphere."
            )
        if self.fresh_maps and self.map_refresh_steps:
            raise ConfigError(
                f"env.map_refresh_steps is {self.map_refresh_steps}, but env.fresh_maps=true already makes a map per "
                "episode: set env.map_refresh_steps=0."
            )
        if self.walls and self.starts is not Starts.crossing:
            raise ConfigError(
                f"env.walls=true needs env.starts=crossing, got env.starts={self.starts.value}: change one of them."
            )
        if self.plan and self.action_form is not ActionForm.velocity:
            raise ConfigError("env.plan=true needs env.action_form=velocity, got headings: change one of them.")
        if self.body_half_height_m >= 0.5:
            name = "collision_radius_m" if self.collision is Collision.sphere else "body_height_m"
            raise ConfigError(
                f"env.{name}={getattr(self, name):g} with env.collision={self.collision.value} lets the drone touch the "
                f"ground at its lowest start, 0.5 m high: lower env.{name}."
            )
        if self.grid_map and self.perception.active:
            raise ConfigError(
                "env.grid_map=true has no faults, so it cannot be used with env.perception.*: set env.grid_map=false, or "
                "perception=perfect."
            )
        if (self.layout is Layout.arena) != (self.starts in (Starts.lane, Starts.corridor)):
            raise ConfigError(
                f"env.layout={self.layout.value} does not fit env.starts={self.starts.value}: layout=arena and starts=lane "
                "(or corridor) need each other, so set both or neither."
            )
        if self.layout is Layout.arena and self.movers is not Movers.roam:
            raise ConfigError(
                f"env.layout=arena has swinging movers, not env.movers={self.movers.value}: set env.movers=roam."
            )
        if self.dynamics in SIMULATED:
            self.randomize.refuse_airframe(self.dynamics.value)
        if self.drones > 1:
            self._validate_drones()

    def _validate_drones(self) -> None:
        """Raise ConfigError for settings that do not work with several drones in one world."""
        several = f"env.drones={self.drones}"
        if self.num_envs % self.drones:
            raise ConfigError(
                f"env.num_envs is {self.num_envs}, but must be a multiple of {several} on every rank and in every half of "
                f"collect.mode=halves: set env.num_envs={-(-self.num_envs // self.drones) * self.drones}."
            )
        if self.starts not in TOGETHER:
            raise ConfigError(
                f"{several} needs starts that are apart from each other, not env.starts={self.starts.value}: choose one of "
                f"{', '.join(starts.value for starts in TOGETHER)}."
            )
        if not self.success_ends_episode:
            raise ConfigError(f"{several} needs env.success_ends_episode=true: a drone leaves the world at its goal.")
        for name in (n for n in ("world", "fresh_maps", "grid_map") if getattr(self, n)):
            raise ConfigError(
                f"{several} does not work with env.{name}: set env.{name}={'' if name == 'world' else 'false'}."
            )
        if self.perception.active:
            raise ConfigError(f"{several} does not work with faults of perception: set perception=perfect.")

    @property
    def refresh_steps(self) -> int:
        """Physics steps after which a map is replaced; 0 if all maps are kept."""
        return 0 if self.world else self.map_refresh_steps

    @property
    def world_names(self) -> list[str]:
        """Names of the worlds to fly in; empty if the env uses the layout's maps."""
        return [name.strip() for name in self.world.split(",") if name.strip()]

    @property
    def body_half_height_m(self) -> float:
        """Distance from the drone's centre to its lowest point, m; 0 if collision=beams, which does not look down."""
        halves = {Collision.cylinder: 0.5 * self.body_height_m, Collision.sphere: self.collision_radius_m}
        return halves.get(self.collision, 0.0)

    @property
    def lowest_m(self) -> float:
        """Lowest height of the drone's centre, m: the body touches neither the ground nor min_height_m."""
        return max(self.min_height_m, self.body_half_height_m)

    def without_maps(self) -> NavigationConfig:
        """Return a config with the same observations and actions, but without obstacles: such an env is quick to build."""
        return replace(
            self,
            drones=1,
            num_maps=1,
            world="",
            static_obstacles=0,
            moving_obstacles=0,
            map_refresh_steps=0,
            fresh_maps=False,
        )

    @property
    def longest_episode_steps(self) -> int:
        """Physics steps of the longest possible episode."""
        if self.starts is not Starts.crossing or self.world:
            return self.max_episode_steps
        return math.ceil(self.max_episode_steps * math.hypot(2 * EDGE_M, 2 * CROSSING_HALF_M) / (2 * EDGE_M))


class PolicyKind(enum.Enum):
    """Policy networks: an MLP on hand-made features, NavRL's network, or an MLP that corrects the planner."""

    features = "features"
    navrl = "navrl"
    planned = "planned"


@dataclass
class NavigationPolicyConfig(RecurrentConfig):
    """Settings of the policy's network."""

    kind: PolicyKind = setting(PolicyKind.features, resume="weights")
    """Network. features: an MLP on hand-made inputs. planned: an MLP that corrects the planner's command (env.plan).
    navrl: NavRL's network. planned and navrl need PPO."""
    hidden: list[int] = setting([256, 128], at_least=1, items=(1, None), resume="weights")
    """Widths of the MLP's hidden layers (not for kind=navrl)."""
    correction: float = setting(0.5, at_least=0, at_most=2, resume="weights")
    """Largest correction of the planner's command per axis, as a share of the speed limit (kind=planned only)."""
    sectors: list[int] = setting([], at_least=1, items=(0, 2), resume="weights")
    """Azimuths and elevations of the sectors into which the LiDAR's rays are grouped, such as [36,4]: the network reads the
    nearest hit of each (features and planned). []: it reads every ray."""
    sector_range_m: float = setting(4.0, above=0, resume="weights")
    """Hits beyond this distance are ignored in sectors, m."""


@dataclass
class CurriculumConfig:
    """Curriculum: the number of moving obstacles grows during training."""

    movers_start: float = setting(0.25, at_least=0, at_most=1)
    """Share of the moving obstacles that are present at the start of training."""
    ramp: float = setting(0.25, at_least=0)
    """Share of training during which the number of moving obstacles grows to its full value; 0: full from the start."""
