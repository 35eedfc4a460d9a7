"""Results of `fledge envelope`: ranges, time to decide and predicted misses of one geometry; and the table's errors.

The table is checked against fly-outs: ranges of random geometries, and shots at random ranges. False-safe: a shot kills from
a range that is safe by the table: beyond r_max if the target holds its course, beyond r_tr if it turns away to the better
side. False alarm: a shot from within the table's range does not kill. Ranges are drawn evenly from 1 to 80 km,
and, as a harder test, within a fifth of the exact range, where every shot is close to the border.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.core.settings import check_settings, setting
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.spacetime.build import OWN, TARGET
from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre

ALIASES = {"load_limits": "env.load_limits", "dt_s": "env.dt_s"}
FARTHEST = 80_000.0  # m
NEAREST = 1_000.0
CHUNK = 1_000  # geometries between two progress reports


@dataclass
class EnvelopeConfig:
    """Settings of `fledge envelope`: speeds, angles and distance of a shooter and a target, and the env's physics."""

    own_speed: float = setting(300.0, at_least=OWN[0], at_most=OWN[-1])
    """Speed of the shooter, m/s."""
    target_speed: float = setting(300.0, at_least=TARGET[0], at_most=TARGET[-1])
    """Speed of the target, m/s."""
    aspect_deg: float = setting(0.0, at_least=-360, at_most=360)
    """Angle from the target's nose to the shooter, left positive: 0 is nose-on, 180 a tail chase."""
    off_boresight_deg: float = setting(0.0, at_least=-360, at_most=360)
    """Angle from the shooter's nose to the target, left positive."""
    range_m: float = setting(30_000.0, above=0, at_most=1_000_000)
    """Distance for the time to decide, the predicted misses and the picture, m."""
    env: AircombatConfig = field(default_factory=AircombatConfig)

    @property
    def geometry(self) -> dict[str, Any]:
        """Speeds and angles as keyword arguments of the methods of `Envelope`."""
        names = ("own_speed", "target_speed", "off_boresight_deg", "aspect_deg")
        return {name: getattr(self, name) for name in names}


def read_overrides(overrides: Sequence[str]) -> EnvelopeConfig:
    """Return the settings that `key=value` overrides give."""
    if bare := [word for word in overrides if "=" not in word]:
        raise ConfigError(f"{bare[0]!r} is not understood: write key=value, for example own_speed=300.")
    try:
        cfg = build_config(EnvelopeConfig, [], overrides, ALIASES)
    except ConfigError as error:
        raise ConfigError(f"{error} `fledge envelope --help` lists the other keys.") from None
    check_settings(cfg)
    return cfg


def query_envelope(overrides: Sequence[str], picture: Path | None = None) -> dict[str, Any]:
    """Return ranges, time to decide and results of shots at one geometry; write a picture of it if a file is given.

    All are computed by fly-outs, not from the table.
    """
    cfg = read_overrides(overrides)
    geometry = cfg.geometry
    with Envelope(cfg.env) as envelope:
        found = {name: float(value) for name, value in envelope.solve(**geometry).items()}
        seconds = float(envelope.time_to_decide(cfg.range_m, **geometry))
        answer: dict[str, Any] = {**geometry, "range_m": cfg.range_m, "load_limits": cfg.env.load_limits, **found}
        answer["time_to_decide_s"] = seconds if math.isfinite(seconds) else None
        for name, manoeuvre in (("hold", Manoeuvre.HOLD), ("turn_away", Manoeuvre.AWAY)):
            shot = envelope.fly(cfg.range_m, manoeuvre, **geometry)
            answer[f"miss_{name}_m"] = float(shot["miss_m"])
            answer[f"kills_{name}"] = bool(shot["killed"])
            answer[f"flight_{name}_s"] = float(shot["time_s"])
        if picture is not None:
            from fledge.tasks.aircombat.spacetime.picture import save_picture

            save_picture(cfg, envelope, answer, picture)
            answer["picture"] = str(picture)
    return answer


def check_envelope(overrides: Sequence[str], count: int, on_progress: Callable[[int], None]) -> dict[str, Any]:
    """Return the result of `check_table` for the physics that the overrides set."""
    with Envelope(read_overrides(overrides).env) as envelope:
        return check_table(envelope, count, on_progress=on_progress)


def draw(count: int, seed: int) -> dict[str, Tensor]:
    """Return `count` random geometries as keyword arguments of `Envelope.lookup`: any angles, speeds of 150 to 550 m/s."""
    own, target, off, aspect = torch.rand(4, count, generator=torch.Generator().manual_seed(seed))
    speeds = {"own_speed": 150 + 400 * own, "target_speed": 150 + 400 * target}
    return {**speeds, "off_boresight_deg": 360 * off - 180, "aspect_deg": 360 * aspect - 180}


def check_table(envelope: Envelope, count: int, seed: int = 0, on_progress: Any = None) -> dict[str, Any]:
    """Return the errors of the table against fly-outs, over `count` random geometries.

    Errors of ranges are relative; false-safe and false-alarm rates are fractions of all shots.
    """
    geometries = draw(count, seed)
    table = envelope.lookup(**geometries)
    start = time.perf_counter()
    envelope.lookup(**geometries)
    query_s = (time.perf_counter() - start) / count
    parts = []
    for first in range(0, count, CHUNK):
        parts.append(envelope.solve(**{k: v[first : first + CHUNK] for k, v in geometries.items()}))
        if on_progress:
            on_progress(min(first + CHUNK, count))
    truth = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    ranges = torch.rand(2, count, generator=torch.Generator().manual_seed(seed + 1))
    found: dict[str, Any] = {"geometries": count, "seed": seed, "seconds_per_query": query_s}
    for name in truth:
        error = table[name] / truth[name] - 1
        found[name] = {
            "error_p50": float(error.abs().quantile(0.5)),
            "error_p95": float(error.abs().quantile(0.95)),
            "error_mean": float(error.mean()),
            "too_small_p99": float((-error).clamp(min=0).quantile(0.99)),
        }
    for kind, name, manoeuvres in (
        ("hold", "r_max_m", (Manoeuvre.HOLD,)),
        ("turn_away", "r_tr_m", (Manoeuvre.AWAY_LEFT, Manoeuvre.AWAY_RIGHT)),
    ):
        anywhere = NEAREST + (FARTHEST - NEAREST) * ranges[0]
        border = truth[name] * (0.8 + 0.4 * ranges[1])
        for where, away in (("false_safe", anywhere), ("false_safe_at_border", border)):
            killed = torch.stack([envelope.fly(away, m, **geometries)["killed"] for m in manoeuvres]).all(dim=0)
            found[f"{where}_{kind}"] = float((killed & (away > table[name])).float().mean())
            alarm = where.replace("false_safe", "false_alarm")
            found[f"{alarm}_{kind}"] = float((~killed & (away <= table[name])).float().mean())
    return found
