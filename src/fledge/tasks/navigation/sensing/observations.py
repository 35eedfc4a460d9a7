"""The observations of navigation, each declared once.

The env allocates its buffers from this table, kernels take struct fields and column numbers from it, networks their slices,
and the contract and docs/worlds/navigation.md list it. To add an observation: add an entry here (with its setting, if it is
optional) and write its values in `observe.py`. Kernels read it as `obs.NAME`, of shape [N, numbers per drone]; the shape is
[N, 0] if it is disabled.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.settings import flat_settings, setting
from fledge.core.specs import TensorSpec

NEAREST = 5  # moving obstacles that are observed
PLAN_HEADINGS = 32


class MoversFrom(enum.Enum):
    """Sources of the observation `dynamic_obstacle`; the help text of `env.movers_from` explains them."""

    detector = "detector"
    lidar = "lidar"


@dataclass(kw_only=True)  # so that num_envs stays the first positional argument of NavigationConfig
class SensorConfig:
    """Settings of sensors and observations."""

    lidar_range_m: float = setting(4.0, above=0, at_most=100, resume="weights", shapes="lidar")
    """Range of LiDAR and of obstacle detection, m."""
    lidar_min_range_m: float = setting(0.0, at_least=0, below=100)
    """Blind zone of the LiDAR: a ray whose first surface is nearer than this, m, returns no hit."""
    lidar_azimuths: int = setting(36, at_least=1, at_most=3600, resume="weights", shapes="lidar")
    """Number of LiDAR azimuths, counter-clockwise: from straight ahead, or with lidar_view_deg below 360 from the right."""
    lidar_view_deg: float = setting(360.0, above=0, at_most=360, resume="weights", shapes="lidar")
    """Horizontal field of view of the LiDAR, degrees, with straight ahead in the middle; azimuths divide it evenly."""
    lidar_elevations_deg: list[float] = setting(
        [-10.0, 0.0, 10.0, 20.0], above=-89, below=89, items=(1, 64), resume="weights", shapes="lidar"
    )
    """Elevation of each row of LiDAR beams, degrees above the horizon; with lidar_rows, the lowest and the highest elevation
    of the field of view."""
    lidar_rows: int = setting(0, at_least=0, at_most=256, resume="weights", shapes="lidar")
    """Rows that divide the field of view between two lidar_elevations_deg evenly, a ray in the middle of each; 0: a row for
    each of lidar_elevations_deg."""
    lidar_pinhole: bool = setting(False, resume="weights", shapes="lidar")
    """Rays are the pixels of a camera: azimuths and rows divide the image plane evenly instead of the angles."""
    lidar_jitter: bool = False
    """Non-repetitive scans: in every scan each ray points to a random place between its neighbours (needs lidar_rows)."""
    lidar_tilts: bool = setting(False, resume="weights", shapes="attitude")
    """Rays turn with roll and pitch of the drone, as those of a sensor on its body do, and the observation attitude is on;
    false: with yaw only, as in NavRL."""
    lidar_sees_movers: bool = False
    """LiDAR beams also hit moving obstacles (not in NavRL)."""
    movers_from: MoversFrom = setting(MoversFrom.detector, resume="restart")
    """Source of dynamic_obstacle. detector: all movers in range, with the faults of env.perception. lidar: tracks of what
    moves in the LiDAR scans (needs lidar_sees_movers)."""
    pose: bool = setting(False, resume="weights", shapes="pose")
    """Observe the drone's height above the ground, m, and its yaw in the goal frame, rad."""
    plan: bool = setting(False, resume="weights", shapes="plan")
    """Observe the planner's command and its predictions for 32 headings, computed from present and past LiDAR scans."""
    grid_map: bool = setting(False, resume="weights", shapes="grid_map")
    """Observe an occupancy grid centred on the drone, in the goal frame."""
    grid_size: int = setting(64, at_least=1, at_most=1024, resume="weights", shapes="grid_map")
    """Cells along each side of the occupancy grid."""
    grid_resolution_m: float = setting(0.125, above=0, at_most=100, resume="weights", shapes="grid_map")
    """Side of a cell of the occupancy grid, m."""

    @property
    def num_elevations(self) -> int:
        return self.lidar_rows or len(self.lidar_elevations_deg)

    @property
    def tracks_movers(self) -> bool:
        return self.movers_from is MoversFrom.lidar

    @property
    def casts_single_rays(self) -> bool:
        """Whether each LiDAR ray is cast by itself; else the rays of an azimuth are upright and share a walk."""
        shaped = self.lidar_pinhole or self.lidar_jitter or self.lidar_tilts
        return shaped or self.lidar_view_deg < 360 or self.lidar_min_range_m > 0

    def validate_sensor(self) -> None:
        """Raise ConfigError for settings of the LiDAR that contradict each other."""
        edges = self.lidar_elevations_deg
        if self.lidar_rows and (len(edges) != 2 or edges[0] >= edges[1]):
            raise ConfigError(
                f"env.lidar_rows={self.lidar_rows} needs two env.lidar_elevations_deg, the lowest and the highest, got "
                f"{list(edges)}: give these two, or set env.lidar_rows=0."
            )
        if self.lidar_jitter and (not self.lidar_rows or self.lidar_pinhole):
            raise ConfigError(
                "env.lidar_jitter=true needs env.lidar_rows above 0 and env.lidar_pinhole=false: set them, or set "
                "env.lidar_jitter=false."
            )
        if self.lidar_pinhole and self.lidar_view_deg >= 180:
            raise ConfigError(
                f"env.lidar_pinhole=true needs env.lidar_view_deg below 180, got {self.lidar_view_deg:g}: change one of them."
            )
        if self.lidar_min_range_m >= self.lidar_range_m:
            raise ConfigError(
                f"env.lidar_min_range_m is {self.lidar_min_range_m:g}, but must be below env.lidar_range_m, which is "
                f"{self.lidar_range_m:g}: lower it."
            )


@dataclass(frozen=True)
class Column:
    """One number of an observation, or one vector of three numbers."""

    name: str
    unit: str
    doc: str
    frame: str = ""
    vector: bool = False


@dataclass(frozen=True)
class Observation:
    """One observation. Its last axis has `columns`, or it is an image whose shape depends on the settings."""

    name: str
    doc: str
    columns: tuple[Column, ...] = ()
    rows: tuple[int, ...] = ()  # sizes of the axes before the columns
    image: Callable[[Any], tuple[int, ...]] | None = None  # settings -> shape of an image
    setting: str = ""  # name of the setting that enables it; "" if it is always on
    dtype: str = "float32"
    bounds: Callable[[Any], tuple[float, float]] = lambda cfg: (-math.inf, math.inf)
    unit: str = ""
    frame: str = ""
    axes: tuple[str, ...] = ()  # names of the axes, if there are several
    facts: Callable[[Any], dict[str, Any]] = lambda cfg: {}  # settings -> further entries of the contract

    @property
    def widths(self) -> list[int]:
        """How many numbers each column has: 3 if it is a vector, else 1."""
        return [3 if column.vector else 1 for column in self.columns]

    @property
    def width(self) -> int:
        return sum(self.widths)

    @property
    def starts(self) -> list[int]:
        """Index on the last axis at which each column begins; a vector column begins at its x component."""
        return [sum(self.widths[:k]) for k in range(len(self.columns))]

    def at(self, name: str) -> int:
        return self[name].start

    def __getitem__(self, name: str) -> slice:
        """Return the slice of the last axis that belongs to the column `name`."""
        k = [column.name for column in self.columns].index(name)
        return slice(self.starts[k], self.starts[k] + self.widths[k])

    def enabled(self, cfg: Any) -> bool:
        return not self.setting or bool(getattr(cfg, self.setting))

    def shape(self, cfg: Any = None) -> tuple[int, ...]:
        return self.image(cfg) if self.image else (*self.rows, self.width)

    def size(self, cfg: Any = None) -> int:
        """Return how many values the observation has for one drone."""
        return math.prod(self.shape(cfg))

    def spec(self, cfg: Any) -> TensorSpec:
        import torch

        return TensorSpec(self.shape(cfg), getattr(torch, self.dtype), *self.bounds(cfg), doc=self.doc)

    def describe(self, cfg: Any) -> dict[str, Any]:
        """Return the observation's entry in `Task.contract`, without its spec: unit, frame, axes, columns."""
        said = {"unit": self.unit, "frame": self.frame, "axes": list(self.axes), "columns": self.describe_columns()}
        return {**{key: value for key, value in said.items() if value}, **self.facts(cfg)}

    def describe_columns(self) -> list[dict[str, str]]:
        """Return name, unit, frame and description of each number of the last axis, for `Task.contract`."""
        named = [(c, f"{c.name}{axis}") for c in self.columns for axis in (("_x", "_y", "_z") if c.vector else ("",))]
        return [{"name": n, "unit": c.unit, **({"frame": c.frame} if c.frame else {}), "doc": c.doc} for c, n in named]


def _lidar_facts(cfg: Any) -> dict[str, Any]:
    from fledge.tasks.navigation.sensing.rays import azimuths_deg, elevations_deg

    facts = {
        "range_m": cfg.lidar_range_m,
        "azimuths_deg": azimuths_deg(cfg).tolist(),
        "elevations_deg": elevations_deg(cfg).tolist(),
        "sees": ["columns", "ground", *(["moving obstacles"] if cfg.lidar_sees_movers else [])],
    }
    if not cfg.casts_single_rays:
        return facts
    return facts | {
        "frame": "body" if cfg.lidar_tilts else "yaw",
        "min_range_m": cfg.lidar_min_range_m,
        "view_deg": cfg.lidar_view_deg,
        "pinhole": cfg.lidar_pinhole,  # then elevations_deg are those of the middle of the image
        "jitter": cfg.lidar_jitter,  # then azimuths_deg and elevations_deg are the middles of bins
    }


def _plan_facts(cfg: Any) -> dict[str, Any]:
    limits = {name: getattr(cfg, name) for name in ("collision_radius_m", "min_height_m", "max_height_m")}
    return {
        "computed_from": [
            observation.name
            for observation in (STATE, LIDAR, DYNAMIC_OBSTACLE, POSE, *([ATTITUDE] if cfg.lidar_tilts else []))
        ],
        "computed_by": "fledge.tasks.navigation.planner.reader:PlanReader",
        "env": flat_settings(cfg),
        "planner": dataclasses.asdict(cfg.planner),
        "pose": POSE.describe_columns(),
        **limits,
    }


def _plan_heading(h: int) -> tuple[Column, ...]:
    angle = f"{360.0 * h / PLAN_HEADINGS:g} degrees"
    return (
        Column(
            f"fast_time_{h}", "horizon_s", f"time to a collision towards {angle} at the fast speed; 1: none", "goal"
        ),
        Column(
            f"slow_time_{h}", "horizon_s", f"time to a collision towards {angle} at the slow speed; 1: none", "goal"
        ),
        Column(
            f"nearness_{h}",
            "1",
            f"n / (n + 1), n the cost of missing clearance towards {angle} at the fast speed",
            "goal",
        ),
        Column(f"gain_{h}", "1", f"cost-to-go saved by a brief command to {angle}, share of fast * brief_s", "goal"),
    )


STATE = Observation(
    "state",
    "the goal and the drone's velocity",
    columns=(
        Column("to_goal", "1", "unit vector to the goal", "goal", vector=True),
        Column("horizontal_distance", "m", "to the goal", "world"),
        Column("vertical_distance", "m", "goal's height minus the drone's", "world"),
        Column("velocity", "m/s", "of the drone", "goal", vector=True),
    ),
)
LIDAR = Observation(
    "lidar",
    "range_m - distance along a thin ray, 0 where nothing is hit; azimuth counter-clockwise from straight ahead",
    image=lambda cfg: (1, cfg.lidar_azimuths, cfg.num_elevations),
    bounds=lambda cfg: (0.0, cfg.lidar_range_m),
    unit="m",
    frame="yaw",
    axes=("channel", "azimuth", "elevation"),
    facts=_lidar_facts,
)
DIRECTION = Observation(
    "direction",
    "start to goal, horizontal: x of the goal frame",
    columns=(Column("to_goal", "m", "from the start to the goal; z is 0", "world", vector=True),),
    rows=(1,),
    unit="m",
    frame="world",
)
DYNAMIC_OBSTACLE = Observation(
    "dynamic_obstacle",
    f"the {NEAREST} nearest moving obstacles within range_m of `lidar` (horizontal), nearest first; empty rows are 0",
    columns=(
        Column("to_obstacle", "1", "unit vector to its centre; horizontal for a cylinder", "goal", vector=True),
        Column("horizontal_distance", "m", "to its centre; 0 in an empty row", "world"),
        Column("vertical_distance", "m", "its centre's height minus the drone's; 0 for a cylinder", "world"),
        Column("velocity", "m/s", "of the obstacle", "goal", vector=True),
        Column("width_class", "1", "0, 1, 2, 3: up to 0.25, 0.5, 0.75, 1 m wide; a fraction for others and for drones"),
        Column("is_box", "1", "1: 1 m tall, may float; 0: a cylinder from the ground past any flying height"),
    ),
    rows=(1, NEAREST),
    axes=("channel", "obstacle", "column"),
)
POSE = Observation(
    "pose",
    "height and yaw, as the robot's state estimate gives them",
    columns=(
        Column("height", "m", "of the drone above the ground", "world"),
        Column("yaw", "rad", "of the drone, counter-clockwise from x, -pi to pi", "goal"),
    ),
    setting="pose",
)
ATTITUDE = Observation(
    "attitude",
    "roll and pitch of the drone at the time of the scan in `lidar`, as the robot's state estimate gives them",
    columns=(
        Column("roll", "rad", "about x, which points ahead; positive: the left side is up", "yaw"),
        Column("pitch", "rad", "about y, which points left; positive: nose down", "yaw"),
    ),
    setting="lidar_tilts",
)
PLAN = Observation(
    "plan",
    "the planner's command and predictions, from the other observations, `pose` and past scans (docs/worlds/planner.md)",
    columns=(
        Column("command", "speed_limit_m_s", "the planner's command", "goal", vector=True),
        Column("cost", "1", "of that command: c / (|c| + 6), c in m"),
        Column("brief", "1", "1 if that command stops after brief_s"),
        Column("hover_time", "horizon_s", "time to a collision when hovering; 1: none"),
        Column("hover_nearness", "1", "n / (n + 1), n the cost of missing clearance when hovering"),
        *(column for h in range(PLAN_HEADINGS) for column in _plan_heading(h)),
    ),
    setting="plan",
    bounds=lambda cfg: (-1.0, 1.0),
    facts=_plan_facts,
)
GRID_MAP = Observation(
    "grid_map",
    "1 = occupied; cell (r, c) lies r cells towards the goal and c to the left, the drone in the middle",
    image=lambda cfg: (1, cfg.grid_size, cfg.grid_size),
    setting="grid_map",
    dtype="uint8",
    bounds=lambda cfg: (0, 1),
    frame="goal",
    facts=lambda cfg: {"cell_m": cfg.grid_resolution_m},
)
OBSERVATIONS = (STATE, LIDAR, DIRECTION, DYNAMIC_OBSTACLE, POSE, ATTITUDE, PLAN, GRID_MAP)
