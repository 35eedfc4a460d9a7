"""Settings of the planner, from a policy's contract: names, ranges and defaults, as in native/settings.c."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fledge_runtime.errors import ContractError

ABOVE, BELOW = "above", "below"  # the limit itself is not allowed
MAX_STEPS = 1000

# name: (type, lowest, highest, default, ABOVE or BELOW)
NUMBERS: dict[str, tuple[type, float, float, float, str]] = {
    "lidar_range_m": (float, 0, 100, 4.0, ABOVE),
    "lidar_min_range_m": (float, 0, 100, 0.0, BELOW),
    "lidar_view_deg": (float, 0, 360, 360.0, ABOVE),
    "lidar_azimuths": (int, 1, 3600, 36, ""),
    "lidar_rows": (int, 0, 256, 0, ""),
    "lidar_pinhole": (bool, 0, 1, 0, ""),
    "lidar_jitter": (bool, 0, 1, 0, ""),
    "lidar_tilts": (bool, 0, 1, 0, ""),
    "dt_s": (float, 0.0001, 0.1, 0.016, ""),
    "decimation": (int, 1, 10000, 1, ""),
    "speed_limit": (float, 0, 1000, 2.0, ABOVE),
    "goal_radius_m": (float, 0, 1000, 0.5, ABOVE),
    "collision_radius_m": (float, 0, 10, 0.3, ABOVE),
    "body_height_m": (float, 0, 10, 0.2, ABOVE),
    "min_height_m": (float, 0, 0.5, 0.2, ""),
    "max_height_m": (float, 2.5, 1000, 4.0, ABOVE),
    "perception.vary": (float, 0, 1, 0.0, ""),
    "perception.lidar_delay_s": (float, 0, 2, 0.0, ""),
    "perception.mover_delay_s": (float, 0, 2, 0.0, ""),
    "perception.mover_period_s": (float, 0, 2, 0.0, ""),
    "planner.headings": (int, 1, 360, 32, ""),
    "planner.slow": (float, 0, 1000, 0.7, ABOVE),
    "planner.middle": (float, 0, 1000, 1.4, ABOVE),
    "planner.fast": (float, 0, 1000, 2.0, ABOVE),
    "planner.climb": (float, 0, 1000, 1.0, ""),
    "planner.horizon_s": (float, 0, 20, 3.0, ABOVE),
    "planner.brief_s": (float, 0, 20, 1.0, ""),
    "planner.step_s": (float, 0, 1, 0.1, ABOVE),
    "planner.skin_m": (float, 0, 0.5, 0.07, ""),
    "planner.margin_m": (float, 0, 0.5, 0.43, ABOVE),
    "planner.margin_cost": (float, 0, 1e6, 0.6, ""),
    "planner.mover_margin_m": (float, 0, 1000, 1.0, ""),
    "planner.fast_mover_s": (float, 0, 1000, 0.5, ""),
    "planner.mover_cost": (float, 0, 1e6, 1.5, ""),
    "planner.coast_s": (float, 0, 100, 0.8, ""),
    "planner.fading_s": (float, 0, 1e6, 2.0, ABOVE),
    "planner.crash_cost": (float, 0, 1e6, 100.0, ABOVE),
    "planner.crash_relief": (float, 0, 1e6, 20.0, ""),
    "planner.depth_cost": (float, 0, 1e6, 0.0, ""),
    "planner.patience_s": (float, 0, 1e6, 2.0, ""),
    "planner.identify": (bool, 0, 1, 0, ""),
    "planner.hasten": (bool, 0, 1, 0, ""),
    "planner.gain": (float, 0, 100, 2.2, ABOVE),
    "planner.damping": (float, 0, 10, 0.2, ""),
    "planner.lag_s": (float, 0, 1, 0.15, ""),
    "planner.climb_gain": (float, 0, 100, 2.2, ABOVE),
    "planner.climb_lag_s": (float, 0, 1, 0.03, ""),
    "planner.delay_s": (float, 0, 1, 0.0, ""),
    "planner.ways_every": (int, 0, 1000000, 5, ""),
    "planner.narrow": (float, 0, 1000, 1.0, ""),
    "planner.alarm_s": (float, 0, 1000, 1.5, ABOVE),
    "planner.guard": (bool, 0, 1, 0, ""),
    "planner.memory": (bool, 0, 1, 1, ""),
    "planner.standing": (bool, 0, 1, 1, ""),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "collision": ("cylinder", "sphere", "beams"),
    "movers_from": ("detector", "lidar"),
}
ELEVATIONS = "lidar_elevations_deg"
AGAIN = "The contract was changed or is damaged: export the policy again."


def read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings that the planner reads, checked; those that a contract lacks have their defaults.

    Args:
        given: The policy's env settings by name, as the contract has them; those of other parts are ignored. `world` may be
            a name or a bool.

    Raises:
        ContractError: if a setting is out of range, contradicts another, or belongs to a newer planner.
    """
    settings: dict[str, Any] = {name: kind(usual) for name, (kind, _, _, usual, _) in NUMBERS.items()}
    settings.update({name: choices[0] for name, choices in CHOICES.items()})
    settings[ELEVATIONS] = [-10.0, 0.0, 10.0, 20.0]
    settings["world"] = bool(given.get("world", False))
    for name, value in given.items():
        if name in NUMBERS:
            settings[name] = number(name, value)
        elif name in CHOICES:
            settings[name] = choice(name, value)
        elif name.startswith("planner."):
            raise ContractError(f"{name} is not a setting of this version's planner: update fledge-runtime.")
    if ELEVATIONS in given:
        settings[ELEVATIONS] = elevations(given[ELEVATIONS])
    check_together(settings)
    return settings


def number(name: str, value: Any) -> Any:
    kind, low, high, _, edge = NUMBERS[name]
    fits = isinstance(value, (bool, int, float)) and math.isfinite(value) and low <= value <= high
    fits = fits and not (edge == ABOVE and value == low) and not (edge == BELOW and value == high)
    if not fits or (kind is not float and value != int(value)):
        what = "true or false" if kind is bool else "a whole number" if kind is int else "a number"
        least, most = "above" if edge == ABOVE else "at least", "below" if edge == BELOW else "at most"
        raise ContractError(f"{name} is {value!r}, but must be {what}, {least} {low:g} and {most} {high:g}. {AGAIN}")
    return kind(value)


def choice(name: str, value: Any) -> str:
    if value not in CHOICES[name]:
        raise ContractError(f"{name} is {value!r}, but must be one of {', '.join(CHOICES[name])}. {AGAIN}")
    return str(value)


def elevations(values: Any) -> list[float]:
    try:
        rows = [float(value) for value in values]
    except (TypeError, ValueError):
        rows = []
    if not 1 <= len(rows) <= 64 or not all(-89 < row < 89 for row in rows):
        raise ContractError(f"{ELEVATIONS} must have 1 to 64 numbers, each above -89 and below 89. {AGAIN}")
    return rows


def check_together(s: Mapping[str, Any]) -> None:
    """Raise ContractError for settings that contradict each other."""
    steps, edges = round(s["planner.horizon_s"] / s["planner.step_s"]), s[ELEVATIONS]
    why = ""
    if not 2 <= steps <= MAX_STEPS:
        why = f"planner.horizon_s must be 2 to {MAX_STEPS} times planner.step_s."
    elif s["dt_s"] * s["decimation"] > s["planner.horizon_s"]:
        why = "dt_s times decimation, the time between two decisions, must be at most planner.horizon_s."
    elif s["lidar_rows"] and (len(edges) != 2 or edges[0] >= edges[1]):
        why = f"lidar_rows above 0 needs two {ELEVATIONS}, the lowest and the highest."
    elif s["lidar_jitter"] and (not s["lidar_rows"] or s["lidar_pinhole"]):
        why = "lidar_jitter needs lidar_rows above 0 and no lidar_pinhole."
    elif s["lidar_pinhole"] and s["lidar_view_deg"] >= 180:
        why = "lidar_pinhole needs lidar_view_deg below 180."
    elif s["lidar_min_range_m"] >= s["lidar_range_m"]:
        why = "lidar_min_range_m must be below lidar_range_m."
    if why:
        raise ContractError(f"{why} {AGAIN}")
