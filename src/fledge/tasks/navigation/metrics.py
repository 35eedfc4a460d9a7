"""Metrics of flights besides their outcome.

    mean_speed        m/s                                          over all time flown
    outside_share     share of the time outside the area of obstacles: the forest's ±20 m, in scenes their width
    round_share       share of flights that left that width of a scene, so flew round obstacles; only in scenes
    inside_success    share of flights that reached the goal and never left that width; only in scenes
    control_effort    m/s², mean change of the commanded velocity per second
    clearance         m to the nearest surface in reach of the sensors, mean over all time flown
    least_clearance   m, the smallest of a flight, mean over flights that reached their goal
    detour            path length over the straight line from start to goal, mean over the same flights; a little less
                      than 1 when flying straight, since flights end within the goal's radius

Clearances count, at each decision, what lies in reach of the sensors: LiDAR hits and the five nearest moving obstacles, up
to the LiDAR's range. They are true distances, also where perception is faulty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.core.config_help import written
from fledge.core.overrides import leaves
from fledge.core.settings import flat_settings
from fledge.core.transfer import Fetch
from fledge.envs.base import Action, TensorEnv
from fledge.tasks.metrics import EpisodeMetrics, TaskMetrics
from fledge.tasks.navigation.benchmarks import BENCHMARKS
from fledge.tasks.navigation.config import (
    EDGE_M,
    FOREST_HALF_M,
    FORMATIONS,
    SIMULATED,
    ActionForm,
    Collision,
    NavigationConfig,
    Starts,
)
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.tasks.navigation.simulators.gains import Gains
from fledge.tasks.presets import Presets

PRESETS = Presets(Path(__file__).parent / "presets")
DEFAULT_SENSOR = "navrl"
CLASSES = (
    "crossing",
    "opposite",
    "adjacent",
    "same",
    "inside",
    "route",
    "formation",
)  # sides of start and goal, the hardest first


class FlightMetrics(EpisodeMetrics):
    """Measures the flights of all drones of an env; sums stay on the env's device until `figures` reads them."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def begin(self, env: TensorEnv) -> None:
        assert isinstance(env, NavigationEnv)
        self.env = env
        zeros = torch.zeros(env.num_envs, device=env.device)
        self.path, self.least = zeros.clone(), torch.full_like(zeros, math.inf)
        self.seconds = zeros.clone()  # flown by each of several drones
        self.command: Tensor | None = None
        self.begun = torch.ones_like(zeros, dtype=torch.bool)  # the next command is the first of its episode
        self.left = torch.zeros_like(self.begun)  # has been outside in this episode

    def before_step(self, obs: Mapping[str, Tensor], action: Action, counted: Tensor) -> None:
        state, seconds = self.env.state, self.env.decision_s
        speed = state["vel"].norm(dim=-1)
        self.route = state["route"].clone()
        gap = state["gap"].clamp(0.0, self.env.cfg.lidar_range_m)
        if self.env.cfg.drones > 1:  # a drone that has landed rests until the others have
            flies = (state["crash"] == 0) & (state["reached"] == 0)
            speed, counted = speed * flies, counted & flies
            self.seconds += flies * seconds
            gap = torch.where(flies, gap, self.env.cfg.lidar_range_m)
        self.path += speed * seconds
        self.least = torch.minimum(self.least, gap)
        command = self._command(action)
        if self.command is not None:
            goes_on = counted & ~self.begun
            self._add("change", (command - self.command).norm(dim=-1), goes_on)
            self._add("commands", torch.full_like(speed, seconds), goes_on)
        self.command = command
        self.begun.zero_()
        across, scene = state["pos"][:, :2].abs(), self.env.bank.scene
        outside = across.amax(dim=-1) > FOREST_HALF_M if scene is None else across[:, 1] > scene.half_width_m
        self.left |= outside
        flown = {"decisions": torch.ones_like(speed), "speed": speed, "outside": outside, "gap": gap}
        for name, value in flown.items():
            self._add(name, value, counted)

    def after_step(self, outcome: Tensor, counted: Tensor) -> None:
        arrived = counted & (outcome == int(Outcome.SUCCESS))
        self._add("arrived", torch.ones_like(self.path), arrived)
        self._add("detour", self.path / self.route.clamp(min=1e-6), arrived)
        self._add("least", self.least, arrived)
        self._add("seconds", self.seconds, arrived)
        over = outcome != 0
        self._add("stayed", ~self.left, arrived)
        self._add("ended", torch.ones_like(self.path), counted & over)
        self._add("left", self.left, counted & over)
        for tensor, value in ((self.path, 0.0), (self.seconds, 0.0), (self.least, math.inf), (self.begun, True)):
            tensor.masked_fill_(over, value)
        self.left &= ~over

    def figures(self) -> dict[str, float]:
        sums = dict(zip(self.sums, map(float, Fetch(list(self.sums.values())).get()), strict=True))
        flown, arrived = max(sums["decisions"], 1.0), sums["arrived"]
        figures = {
            "mean_speed": sums["speed"] / flown,
            "outside_share": sums["outside"] / flown,
            "control_effort": sums.get("change", 0.0) / max(sums.get("commands", 0.0), 1e-9),
            "clearance": sums["gap"] / flown,
        }
        if self.env.bank.scene is not None:
            figures["round_share"] = sums["left"] / max(sums["ended"], 1.0)
            figures["inside_success"] = sums["stayed"] / max(sums["ended"], 1.0)
        if arrived:
            figures |= {"least_clearance": sums["least"] / arrived, "detour": sums["detour"] / arrived}
            if self.env.cfg.drones > 1:  # an episode is as long as the longest of its flights
                figures["mean_success_seconds"] = sums["seconds"] / arrived
        return figures

    def _add(self, name: str, value: Tensor, where: Tensor) -> None:
        total = torch.where(where, value.double(), 0.0).sum()
        self.sums[name] = self.sums[name] + total if name in self.sums else total

    def _command(self, action: Action) -> Tensor:
        """Return the commanded velocity in the goal frame, [N, 3] m/s; with action_form=headings its vertical part is 0."""
        assert isinstance(action, Tensor)
        cfg = self.env.cfg
        if cfg.action_form is ActionForm.headings:
            angle = action.reshape(-1) * (2 * math.pi / cfg.num_headings)
            return cfg.speed_limit * torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=-1)
        return cfg.speed_limit * (2.0 * action.clamp(0.0, 1.0) - 1.0)


def side_of(point: Tensor) -> Tensor:
    """Return the side of the map nearest to each point [N, 3], as [N] numbers: 0 east (+x), 1 north (+y), 2 west, 3 south."""
    x, y = point[:, 0], point[:, 1]
    return torch.where(x.abs() > y.abs(), torch.where(x > 0, 0, 2), torch.where(y > 0, 1, 3))


def faults_of(cfg: NavigationConfig) -> dict[str, Any]:
    """Return the settings of perception and randomisation that are not those of its sensor, or the defaults, by dotted key."""
    plain = flat_settings(NavigationConfig())
    own = {key: value for key, value in flat_settings(cfg).items() if key.startswith(("perception.", "randomize."))}
    usual = plain | sensor_faults(sensor_name(cfg))
    return {key: value for key, value in own.items() if value != usual[key]}


def sensor_name(cfg: NavigationConfig) -> str:
    """Return the preset of sensors that has the config's LiDAR; "own" if none has."""
    own = {key: value for key, value in flat_settings(cfg).items() if key.startswith("lidar_")}
    presets = {name: dict(leaves(PRESETS.load("sensor", name))) for name in PRESETS.names("sensor")}
    plain = flat_settings(NavigationConfig())
    fits = {name: {key: preset.get(key, plain[key]) for key in own} == own for name, preset in presets.items()}
    return next((name for name, same in fits.items() if same), "own")


def sensor_faults(name: str) -> dict[str, Any]:
    """Return the settings of perception and randomisation that a preset of sensors changes, by dotted key."""
    known = name in PRESETS.names("sensor") and name != DEFAULT_SENSOR
    preset = dict(leaves(PRESETS.load("sensor", name))) if known else {}
    return {key: value for key, value in preset.items() if key.startswith(("perception.", "randomize."))}


def perception_name(faults: Mapping[str, Any], sensor: str = DEFAULT_SENSOR) -> str:
    """Return the preset of perception that has these faults, from `faults_of`, with a sensor; "own" if none has.

    The preset may have been chosen before the sensor, whose rate, noise and view then count, or after it.
    """
    presets = {name: dict(leaves(PRESETS.load("perception", name))) for name in PRESETS.names("perception")}
    plain, own = flat_settings(NavigationConfig()), sensor_faults(sensor)
    usual = plain | own
    for name, all_ in presets.items():
        after = {k: v for k, v in all_.items() if v != usual[k]}
        if faults in (after, {k: v for k, v in after.items() if k not in own}):
            return name
    return "own"


class NavigationMetrics(TaskMetrics):
    """Labels of outcomes, classes of episodes by the sides of start and goal, and metrics of flights."""

    unit = "drones"
    labels = {
        "success": "success",
        "collision_static": "column",
        "collision_moving": "mover",
        "out_of_bounds": "out",
        "timeout": "time",
    }
    classes = CLASSES
    columns = {
        "outside_share": "outside",
        "round_share": "round",
        "inside_success": "inside",
        "detour": "detour",
        "least_clearance": "clearance",
        "control_effort": "effort",
        "mean_success_seconds": "seconds",
        "shield_share": "shielded",
        "shield_change": "shield m/s",
    }
    outcome_legend = (
        "success: share of flights that reached the goal. The others ended by hitting a column or a mover, out of bounds, or "
        "out of time. Env: where flights start and end, static/moving obstacles."
    )
    class_legend = (
        "By the sides of the map that start and goal lie on: crossing (opposite sides, with walls: no way round), opposite, "
        "adjacent, the same; inside: the start is in the forest; formation: several drones."
    )
    legend = (
        "outside: share of the time outside the forest; round: share of flights that left the width of a scene; inside: "
        "share that reached the goal and never left it. effort: mean change of the commanded velocity, m/s per second. Of "
        "flights that reached the goal: detour, path length over the straight line (just below 1 when flying straight, as a "
        "flight ends within the goal's radius); clearance, smallest distance to an obstacle in m; seconds. With a shield: "
        "share of decisions that it changed, and by how many m/s."
    )
    eval_preset = "crossing"
    benchmarks = BENCHMARKS

    def episode_metrics(self) -> FlightMetrics:
        return FlightMetrics()

    def classify(self, env: TensorEnv) -> Tensor:
        """Return each episode's class by the sides of its start and goal, as an index into `CLASSES`, [N].

        An episode that starts inside the forest has the class "inside".
        """
        assert isinstance(env, NavigationEnv)
        if env.cfg.world:
            return torch.full((env.num_envs,), CLASSES.index("route"))
        if env.cfg.starts in FORMATIONS:
            return torch.full((env.num_envs,), CLASSES.index("formation"))
        if env.cfg.walls or env.cfg.starts is Starts.lane:  # no way round
            return torch.full((env.num_envs,), CLASSES.index("crossing"))
        start, goal = (side_of(env.state[name].cpu()) for name in ("start", "goal"))
        kind = torch.where(start % 2 == goal % 2, CLASSES.index("opposite"), CLASSES.index("adjacent"))
        kind = torch.where(start == goal, CLASSES.index("same"), kind)
        inside = env.state["start"][:, :2].cpu().abs().amax(dim=-1) < EDGE_M - 0.1
        return torch.where(inside, CLASSES.index("inside"), kind)

    def env_facts(self, cfg: NavigationConfig) -> dict[str, Any]:
        names = ("static_obstacles", "moving_obstacles", "floating_boxes")
        facts = {name: getattr(cfg, name) for name in names}
        faults = faults_of(cfg)
        facts |= {"drones": cfg.drones, "broadcast": cfg.broadcast} if cfg.drones > 1 else {}
        facts |= {"starts": cfg.starts.value, "walls": cfg.walls, "collision": cfg.collision.value}
        if (sensor := sensor_name(cfg)) not in (DEFAULT_SENSOR, "own"):
            facts["sensor"] = sensor
        facts |= {"perception": perception_name(faults, sensor), **({"world": cfg.world} if cfg.world else {})}
        return {**facts, **({"faults": faults} if faults else {})}

    def env_label(self, cfg: NavigationConfig) -> str:
        """Return a label such as "crossing 350/80": env.starts, number of columns, number of moving obstacles.

        In worlds of voxels it names these instead: "rooms 20". It goes on with the collision rule unless that is cylinder, the
        simulator and its gains if another one flies the drones, the sensor unless it is navrl, and unless perception is
        perfect with the name of its preset, or with the settings: ", sphere, d435, poor perception".
        """
        where = "crossing, no walls" if cfg.starts is Starts.crossing and not cfg.walls else cfg.starts.value
        label = f"{where} {cfg.static_obstacles}/{cfg.moving_obstacles}{'' if cfg.floating_boxes else ' low'}"
        if cfg.world:
            label = f"{', '.join(Path(name).stem for name in cfg.world_names)} {cfg.moving_obstacles}"
        if cfg.drones > 1:
            label += f", {cfg.drones} drones{'' if cfg.broadcast else ' in sight'}"
        if cfg.collision is not Collision.cylinder:
            label += f", {cfg.collision.value}"
        if cfg.dynamics in SIMULATED:
            label += f", {cfg.dynamics.value}{'' if cfg.autopilot is Gains.px4 else f' {cfg.autopilot.value}'}"
        faults, sensor = faults_of(cfg), sensor_name(cfg)
        name = perception_name(faults, sensor)
        if sensor not in (DEFAULT_SENSOR, "own"):
            label += f", {sensor}"
        if not faults:
            return label
        if name in PRESETS.names("perception"):
            return f"{label}, {name} perception"
        return ", ".join([label, *(f"{key.rpartition('.')[2]}={written(value)}" for key, value in faults.items())])

    def queries(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Return the calculation of `fledge world`."""
        from fledge.tasks.navigation.worlds.query import query_world  # Matplotlib loads slowly

        return {"world": query_world}

    def reference_rows(self) -> list[dict[str, Any]]:
        """Return recorded results of NavRL's released policy, in the preset `crossing` and in NavRL's own env.

        They were printed by `fledge eval --navrl-checkpoint FILE --movers 0,80 --episodes 2048 --json`.
        """
        rows = json.loads((Path(__file__).parent / "recorded" / "navrl_released.json").read_text())
        return [{**row, "policy": "NavRL (recorded)"} for row in rows]
