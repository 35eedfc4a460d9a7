"""The contract of navigation policies, for programs that fly them elsewhere: units, frames, geometry. See docs/deploy.md."""

from __future__ import annotations

import dataclasses
from typing import Any

from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.sensing.observations import OBSERVATIONS

FRAMES = {
    "world": "z up; metres, radians",
    "goal": "x along the horizontal direction from start to goal, fixed when the flight begins; z up; y = z cross x",
    "yaw": "the drone's position, turned by its yaw alone, never by roll or pitch; x straight ahead, y left, z up",
}
ACTIONS = {
    ActionForm.velocity: {
        "unit": "m/s",
        "frame": "goal",
        "doc": "velocity command = (2 a - 1) * speed_limit_m_s, held for decision_s",
    },
    ActionForm.headings: {
        "frame": "goal",
        "doc": "fly at speed_limit_m_s towards angle 2 pi a / num_values, counter-clockwise from x, and to the goal's "
        "height; held for decision_s",
    },
}


def bare(cfg: NavigationConfig) -> NavigationConfig:
    """Return the same observations and actions without the maps: quick to make."""
    return dataclasses.replace(
        cfg, num_maps=1, static_obstacles=0, moving_obstacles=0, map_refresh_steps=0, fresh_maps=False
    )


def complete(contract: dict[str, Any], cfg: NavigationConfig) -> dict[str, Any]:
    """Add what the specs alone do not say."""
    for observation in OBSERVATIONS:
        if observation.enabled(cfg):
            contract["observation"][observation.name] |= observation.describe(cfg)
    contract["action"]["action"] |= ACTIONS[cfg.action_form]
    return {**contract, "speed_limit_m_s": cfg.speed_limit, "goal_radius_m": cfg.goal_radius_m, "frames": FRAMES}
