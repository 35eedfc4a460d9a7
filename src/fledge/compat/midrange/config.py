"""Translate midrangeRL's config, a dict of numbers by name, to Fledge's settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fledge.core.config_help import field_help, unknown_key
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, nested
from fledge.core.settings import check_settings
from fledge.tasks.aircombat.config import GRAVITY, AircombatConfig, Scenario

SETTINGS: dict[str, tuple[str, float]] = {  # midrangeRL's name: Fledge's name, and a factor
    "FIGHTER_TERMINAL_VELOCITY": ("fighter.terminal_speed", 1.0),
    "FIGHTER_MIN_TURN_RADIUS": ("fighter.min_turn_radius_m", 1.0),
    "FIGHTER_MAX_THRUST": ("fighter.thrust_g", 1.0 / GRAVITY),
    "FIGHTER_LIFT_DRAG_RATIO": ("fighter.lift_drag", 1.0),
    "FIGHTER_MISSILES": ("missile.carried", 1),
    "MISSILE_TERMINAL_VELOCITY": ("missile.terminal_speed", 1.0),
    "MISSILE_MIN_TURN_RADIUS": ("missile.min_turn_radius_m", 1.0),
    "MISSILE_THRUST": ("missile.thrust_g", 1.0 / GRAVITY),
    "MISSILE_ENGINE_DURATION": ("missile.burn_s", 1.0),
    "MISSILE_LIFT_DRAG_RATIO": ("missile.lift_drag", 1.0),
    "initial_missiles": ("missile.carried", 1),
    "hit_radius": ("missile.kill_radius_m", 1.0),
    "self_destruct_speed": ("missile.min_speed", 1.0),
}
SIZES = ("BATTLEFIELD_SIZE", "battlefield_size")
REWARDS = {"win": 500.0, "lose": -500.0, "draw": -50.0, "survive": 0.1}  # reward_win and so on
# names that midrangeRL's env does not use: its window, constants, and rewards that it never gives
UNUSED = (
    *("G", "INITIAL_DISTANCE_RATIO", "WINDOW_WIDTH", "WINDOW_HEIGHT", "VIEW_WORLD_WIDTH", "VIEW_WORLD_HEIGHT"),
    *("GRID_SPACING", "PLAYER_ANCHOR_X_RATIO", "MISSILE_GUIDANCE_GAIN", "missile_launch_offset", "use_torch_compile"),
    *("reward_hit_enemy", "reward_get_hit", "reward_missile_used"),
)
EDGE_M = 10_000.0  # distance from the field's edge to a fighter's start


@dataclass(frozen=True)
class Midrange:
    """A translated config: Fledge's env settings, and the settings of the compat `TensorEnv`."""

    cfg: AircombatConfig
    size_m: float = 50_000.0
    """Side length of the square field, m; observed x, y and distances are divided by it."""
    rewards: Mapping[str, float] = dataclasses.field(default_factory=REWARDS.copy)

    @property
    def origin_m(self) -> float:
        """Position of Fledge's origin in midrangeRL's coordinates, equal on both axes, m."""
        return 0.0 if self.cfg.scenario is Scenario.reference else self.size_m / 2


def read_config(config: Mapping[str, Any] | AircombatConfig | None, num_envs: int) -> Midrange:
    """Translate a config for `num_envs` duels; it may also contain Fledge's settings (`scenario`, "missile.burn_s").

    Raises:
        ConfigError: If a name is unknown or a value out of range.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs!r}, but must be a whole number of at least 1 (the number of duels).")
    if isinstance(config, AircombatConfig):
        cfg = dataclasses.replace(config, num_envs=2 * num_envs, opponent="", reward="zero")
        check_settings(cfg)
        return Midrange(cfg)
    if config is not None and not isinstance(config, Mapping):
        kind = type(config).__name__
        raise ConfigError(f"config is a {kind}, but must be a dict of settings, or an AircombatConfig.")
    given = dict(config or {})
    size = next((number_of(name, given[name]) for name in SIZES if name in given), 50_000.0)
    if not size > 2 * EDGE_M:
        raise ConfigError(f"BATTLEFIELD_SIZE is {size:g} m, but must be more than {2 * EDGE_M:g} m.")
    rewards = {name: number_of(f"reward_{name}", given.get(f"reward_{name}", usual)) for name, usual in REWARDS.items()}
    known = list(field_help(AircombatConfig))
    ours: dict[str, Any] = {"start_range_m": size - 2 * EDGE_M}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"config has the key {name!r}, but keys must be strings.")
        if name in SETTINGS:
            key, factor = SETTINGS[name]
            ours[key] = value if isinstance(factor, int) else number_of(name, value) * factor  # a count stays one
        elif name in known or any(key.startswith(f"{name}.") for key in known):
            ours[name] = value
        elif name not in UNUSED and name not in SIZES and name.removeprefix("reward_") not in REWARDS:
            raise ConfigError(
                unknown_key(name, [*known, *SETTINGS]).replace("`--help-config`", "docs/start/from_midrangerl.md")
            )
    ours |= {"num_envs": 2 * num_envs, "opponent": "", "reward": "zero"}
    cfg = build_config(AircombatConfig, [("config", nested(ours))], ())
    check_settings(cfg)
    return Midrange(cfg, size, rewards)


def number_of(name: str, value: Any) -> float:
    """Return a value as a finite number, or raise ConfigError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} is {value!r}, but must be a finite number.")
    return number
