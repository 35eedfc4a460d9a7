"""The contract of navigation policies, for programs that fly them elsewhere: units, frames, geometry. See docs/deploy.md."""

from __future__ import annotations

import dataclasses
from typing import Any

from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.planner.plan_observation import HEADINGS

FRAMES = {
    "world": "z up; metres, radians",
    "goal": "x along the horizontal direction from start to goal, fixed when the flight begins; z up; y = z cross x",
    "yaw": "the drone's position, turned by its yaw alone, never by roll or pitch; x straight ahead, y left, z up",
}
STATE = [
    *({"name": f"to_goal_{axis}", "unit": "1", "frame": "goal", "doc": "unit vector to the goal"} for axis in "xyz"),
    {"name": "horizontal_distance", "unit": "m", "frame": "world", "doc": "to the goal"},
    {"name": "vertical_distance", "unit": "m", "frame": "world", "doc": "goal's height minus the drone's"},
    *({"name": f"velocity_{axis}", "unit": "m/s", "frame": "goal", "doc": "of the drone"} for axis in "xyz"),
]
POSE = [
    {"name": "height", "unit": "m", "frame": "world", "doc": "of the drone above the ground"},
    {"name": "yaw", "unit": "rad", "frame": "goal", "doc": "of the drone, counter-clockwise from x, -pi to pi"},
]
OBSTACLE = [
    *(
        {
            "name": f"to_obstacle_{axis}",
            "unit": "1",
            "frame": "goal",
            "doc": "unit vector to its centre; of a cylinder level",
        }
        for axis in "xyz"
    ),
    {"name": "horizontal_distance", "unit": "m", "frame": "world", "doc": "to its centre; 0 in an empty row"},
    {
        "name": "vertical_distance",
        "unit": "m",
        "frame": "world",
        "doc": "its centre's height minus the drone's; cylinder 0",
    },
    *({"name": f"velocity_{axis}", "unit": "m/s", "frame": "goal", "doc": "of the obstacle"} for axis in "xyz"),
    {"name": "width_class", "unit": "1", "doc": "0, 1, 2, 3: up to 0.25, 0.5, 0.75, 1 m wide"},
    {
        "name": "is_box",
        "unit": "1",
        "doc": "1: 1 m tall, may float; 0: a cylinder from the ground past any flying height",
    },
]


def plan_columns(headings: int) -> list[dict[str, str]]:
    """What the numbers of `plan` are; planner/outlook.py says more."""
    command = [
        {"name": f"command_{axis}", "unit": "speed_limit_m_s", "frame": "goal", "doc": "what the planner would fly"}
        for axis in "xyz"
    ]
    own = [
        {"name": "cost", "unit": "1", "doc": "of that command: c / (|c| + 6), c in m"},
        {"name": "brief", "unit": "1", "doc": "1: it stops after brief_s"},
        {"name": "hover_time", "unit": "horizon_s", "doc": "to a collision when hovering; 1: none"},
        {"name": "hover_nearness", "unit": "1", "doc": "n / (n + 1), n as the planner prices it"},
    ]
    around = [
        {"name": f"{name}_{h}", "unit": unit, "frame": "goal", "doc": doc.format(360.0 * h / headings)}
        for h in range(headings)
        for name, unit, doc in (
            ("fast_time", "horizon_s", "to a collision towards {:g} degrees at the fast speed; 1: none"),
            ("slow_time", "horizon_s", "to a collision towards {:g} degrees at the slow speed; 1: none"),
            ("nearness", "1", "n / (n + 1) towards {:g} degrees at the fast speed"),
            (
                "gain",
                "1",
                "way gained towards the goal by a brief command to {:g} degrees, in shares of fast * brief_s",
            ),
        )
    ]
    return [*command, *own, *around]


def bare(cfg: NavigationConfig) -> NavigationConfig:
    """The same world to observe and to act in, without the maps: quick to make."""
    return dataclasses.replace(
        cfg, num_maps=1, static_obstacles=0, moving_obstacles=0, map_refresh_steps=0, fresh_maps=False
    )


def complete(contract: dict[str, Any], cfg: NavigationConfig) -> dict[str, Any]:
    """Add to a contract what the specs alone do not say."""
    observation, action = contract["observation"], contract["action"]["action"]
    observation["state"]["columns"] = STATE
    observation["lidar"] |= {
        "unit": "m",
        "frame": "yaw",
        "axes": ["channel", "azimuth", "elevation"],
        "range_m": cfg.lidar_range_m,
        "azimuths_deg": [360.0 * h / cfg.lidar_azimuths for h in range(cfg.lidar_azimuths)],
        "elevations_deg": list(cfg.lidar_elevations_deg),
        "doc": "range_m - distance along a thin ray, 0 where nothing is hit; azimuth counter-clockwise from straight ahead",
        "sees": ["columns", "ground", *(["moving obstacles"] if cfg.lidar_sees_movers else [])],
    }
    observation["direction"] |= {"unit": "m", "frame": "world", "doc": "start to goal, horizontal: x of the goal frame"}
    observation["dynamic_obstacle"] |= {
        "axes": ["channel", "obstacle", "column"],
        "doc": f"the nearest moving obstacles within {cfg.lidar_range_m:g} m (horizontal), nearest first; empty rows are 0",
        "columns": OBSTACLE,
    }
    if "pose" in observation:
        observation["pose"]["columns"] = POSE
    if "plan" in observation:
        observation["plan"] |= {
            "doc": "what fledge's planner makes of the other observations and `pose`, past scans remembered (docs/planner.md)",
            "planner": dataclasses.asdict(cfg.planner),
            "pose": POSE,
            **{name: getattr(cfg, name) for name in ("collision_radius_m", "min_height_m", "max_height_m")},
            "columns": plan_columns(HEADINGS),
        }
    if "grid_map" in observation:
        observation["grid_map"] |= {
            "frame": "goal",
            "cell_m": cfg.grid_resolution_m,
            "doc": "1 = occupied; cell (r, c) lies r cells towards the goal and c to the left, the drone in the middle",
        }
    if cfg.action_form is ActionForm.velocity:
        action |= {
            "unit": "m/s",
            "frame": "goal",
            "doc": "velocity command = (2 a - 1) * speed_limit_m_s, held for decision_s",
        }
    else:
        action |= {
            "frame": "goal",
            "doc": "fly at speed_limit_m_s towards angle 2 pi a / num_values, counter-clockwise from x, and to the goal's "
            "height; held for decision_s",
        }
    return {**contract, "speed_limit_m_s": cfg.speed_limit, "goal_radius_m": cfg.goal_radius_m, "frames": FRAMES}
