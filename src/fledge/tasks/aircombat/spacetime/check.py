"""Errors of the table against fly-outs: ranges of random geometries, and shots at random ranges.

False-safe: the table says that the range is outside, and the shot kills; for a target that holds its course outside r_max,
and for one that turns away, by the better side, outside r_tr. False alarm: the other way round. Ranges are drawn evenly from
1 to 80 km, and, harder, within a fifth of the exact range, where every shot is close to the border.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre

FARTHEST = 80_000.0  # m
NEAREST = 1_000.0
CHUNK = 1_000  # geometries between two progress reports


def draw(count: int, seed: int) -> dict[str, Tensor]:
    """Draw geometries of any angle, 150 to 550 m/s."""
    uniform = torch.rand(4, count, generator=torch.Generator().manual_seed(seed))
    own, target, off, aspect = uniform
    speeds = {"own_speed": 150 + 400 * own, "target_speed": 150 + 400 * target}
    return {**speeds, "off_boresight_deg": 360 * off - 180, "aspect_deg": 360 * aspect - 180}


def check_table(envelope: Envelope, count: int, seed: int = 0, on_progress: Any = None) -> dict[str, Any]:
    """Return the errors of the table over `count` geometries."""
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
            "error_p50": quantile(error.abs(), 0.5),
            "error_p95": quantile(error.abs(), 0.95),
            "error_mean": float(error.mean()),
            "too_small_p99": quantile((-error).clamp(min=0), 0.99),
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
            found[f"false_alarm{where.removeprefix('false_safe')}_{kind}"] = float(
                (~killed & (away <= table[name])).float().mean()
            )
    return found


def quantile(values: Tensor, share: float) -> float:
    return float(torch.quantile(values, share))
