"""Tables that follow from the settings, as in native/tables.c: computed in float64, stored as float32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np

from fledge_runtime.numpy_engine.floats import F, exp
from fledge_runtime.planner_settings import ELEVATIONS

RING_EDGES_M = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
RINGS, REACH_CELLS = len(RING_EDGES_M), 8
MAP_RANGE_M, TRACK_RANGE_M = 11.0, 5.4
UPRIGHT_M, LIMIT_M, BOX_WIDTH, GUARD_SKIN_M, GUARD_LAG_S = 0.1, 0.1, 1.2, 0.1, 0.4
# responses to commands: gain 1/s, lag s, damping 1/s
FLAT_RATES = (
    (2.2, 0.15, 0.2),
    (1.1, 0.15, 0.2),
    (4.0, 0.08, 0.2),
    (2.0, 0.08, 0.2),
    (0.8, 0.25, 0.0),
    (2.8, 0.08, 0.2),
    (1.5, 0.03, 0.0),
    (1.5, 0.15, 0.0),
    (0.8, 0.5, 0.0),
    (1.1, 0.3, 0.2),
)
CLIMB_RATES = (
    (2.2, 0.03, 0.2),
    (5.5, 0.03, 0.0),
    (1.1, 0.03, 0.2),
    (2.8, 0.25, 0.0),
    (4.0, 0.03, 0.2),
    (1.5, 0.03, 0.2),
    (2.2, 0.15, 0.0),
)
DELAYS_S = (0.0, 0.064, 0.128, 0.192)
USUAL_S, FADING_S = 1.0 / 2.2 + 0.15, 4.0

Settings = Mapping  # str to Any; Python 3.8 has no subscript here


def window_cells(range_m: float) -> int:
    """Return the number of cells along a side of a map with room for hits at this range, a power of two."""
    needed = 2 * (math.ceil(range_m / 0.1) + REACH_CELLS + 2)
    return max(128, 1 << (needed - 1).bit_length())


def single_rays(s: Settings) -> bool:
    shaped = s["lidar_pinhole"] or s["lidar_jitter"] or s["lidar_tilts"]
    return bool(shaped or s["lidar_view_deg"] < 360 or s["lidar_min_range_m"] > 0)


def map_range(s: Settings) -> float:
    if s["movers_from"] == "lidar":
        return min(s["lidar_range_m"], TRACK_RANGE_M)
    return min(s["lidar_range_m"], MAP_RANGE_M) if single_rays(s) else s["lidar_range_m"]


def decision_s(s: Settings) -> float:
    return s["dt_s"] * s["decimation"]


def possible_rates(s: Settings) -> list:
    """Return the horizontal and the vertical rates (gain, lag, damping) of the response; the given ones first."""
    gain, lag, damping = (s["planner." + name] for name in ("gain", "lag_s", "damping"))
    flat, up = (gain, lag, damping), (s["planner.climb_gain"], min(lag, s["planner.climb_lag_s"]), damping)
    others = (FLAT_RATES, CLIMB_RATES) if s["planner.identify"] else ((), ())
    return [list(dict.fromkeys((given, *more))) for given, more in zip((flat, up), others)]


def hastened(rate: tuple) -> tuple:
    """Return the rate of a slow drone under exaggerated commands, and the exaggeration (k, l): v + k (c - v) + l a."""
    lag = min(rate[1], max(0.15, 0.5 * rate[1]))
    gain = max(rate[0], min(2.2, 0.5 / max(lag, 1e-3)))
    share = rate[1] / lag if lag > 0 else 1.0
    return (gain, lag, rate[2]), (gain * share / rate[0], (1.0 - share) / rate[0])


def predicted_rates(s: Settings) -> list:
    """Return `possible_rates` as the search predicts them: exaggerated commands make slow drones faster."""
    groups = possible_rates(s)
    hasten = s["planner.identify"] and s["planner.hasten"]
    return [[hastened(rate)[0] for rate in group] for group in groups] if hasten else groups


def response_tables(s: Settings) -> SimpleNamespace:
    """Return the hypotheses about the response; `flat` and `upright` have a decision's response for each rate, [F, 3, 3]."""
    flat, up = possible_rates(s)
    every = decision_s(s)
    delays = (s["planner.delay_s"], *(DELAYS_S if s["planner.identify"] else ()))
    slower = [GUARD_LAG_S / USUAL_S * (1.0 / gain + lag - USUAL_S) for gain, lag, _ in predicted_rates(s)[0]]
    return SimpleNamespace(
        on=s["planner.identify"],
        hasten=s["planner.identify"] and s["planner.hasten"],
        delays=list(dict.fromkeys(round(delay / every) for delay in delays)),
        flat=np.stack([response(np.array([every]), rate)[0] for rate in flat]).astype(np.float32),
        upright=np.stack([response(np.array([every]), rate)[0] for rate in up]).astype(np.float32),
        flat_shape=np.array([hastened(rate)[1] for rate in flat], np.float32),
        up_shape=np.array([hastened(rate)[1] for rate in up], np.float32),
        slower=np.array(slower, np.float32),
        keep=F(math.exp(-every / FADING_S)),
        decision_s=F(every),
        limit=F(s["speed_limit"]),
    )


def response(seconds: np.ndarray, rate: tuple) -> np.ndarray:
    """Return how a drone responds after each time, [T, 3, 3]: change of position, velocity and acceleration, by the initial
    velocity, the initial acceleration and the command."""
    gain, lag, damping = rate[0], max(rate[1], 1e-3), rate[2]
    change = np.zeros((4, 4))
    change[0, 1] = 1.0
    change[1, 1:3] = -damping, 1.0
    change[2, 1:] = -gain / lag, -1.0 / lag, gain / lag
    power = np.eye(4) + change * (seconds[:, None, None] / 65536)
    for _ in range(16):  # sums in this order: those of a matrix product depend on the machine
        parts = [power[:, :, k, None] * power[:, k, None, :] for k in range(4)]
        power = parts[0] + parts[1] + parts[2] + parts[3]
    return power[:, :3, 1:]


def step_responses(s: Settings, rates: list) -> np.ndarray:
    """Return the coefficients in the position at each prediction step, [F, 2, T, 3]: of each rate, held and brief commands."""
    steps, after = num_steps(s), round(s["planner.brief_s"] / s["planner.step_s"])
    held = np.stack([response((np.arange(steps) + 1.0) * s["planner.step_s"], rate)[:, 0] for rate in rates])
    brief = held.copy()
    if 0 < after < steps:  # to end a command is to add its opposite
        brief[:, after:, 2] -= held[:, : steps - after, 2]
    return np.stack([held, brief], axis=1).astype(np.float32)


def num_steps(s: Settings) -> int:
    return round(s["planner.horizon_s"] / s["planner.step_s"])


def candidates(s: Settings) -> np.ndarray:
    """Return the candidate commands, [C, 3] m/s with x to the goal: the likely ones first, hovering last."""
    rows, limit, headings = [], s["speed_limit"], s["planner.headings"]
    climb = min(s["planner.climb"], limit)
    for speed in dict.fromkeys(min(s["planner." + name], limit) for name in ("fast", "middle", "slow")):
        for up in (0.0, -climb, climb) if climb else (0.0,):
            for k in sorted(range(headings), key=lambda k: (min(k, headings - k), k)):
                angle = 2 * math.pi * k / headings
                rows.append((speed * math.cos(angle), speed * math.sin(angle), up))
    return np.array([*rows, (0.0, 0.0, 0.0)], np.float32)


def ring_table() -> np.ndarray:
    """Return the ring of each cell around a hit, [17, 17]; RINGS beyond the last."""
    dx, dy = np.indices((2 * REACH_CELLS + 1, 2 * REACH_CELLS + 1)) - REACH_CELLS
    return np.searchsorted(np.array(RING_EDGES_M) + 1e-6, np.sqrt(dx * dx + dy * dy) * 0.1)


def ring_distances() -> np.ndarray:
    """Return the mean distance of each ring's cells from the hit, m, [9]; the last entry stands for no hit."""
    dx, dy = np.indices((2 * REACH_CELLS + 1, 2 * REACH_CELLS + 1)) - REACH_CELLS
    away, ring = np.sqrt(dx * dx + dy * dy) * 0.1, ring_table()
    return np.array([*(away[ring == k].mean() for k in range(RINGS)), 1.0e6], np.float32)


def stencil() -> np.ndarray:
    """Return the bits that a hit in all height bands sets around itself, [17, 17, 2] uint64."""
    ring, bits = ring_table(), np.zeros((2 * REACH_CELLS + 1, 2 * REACH_CELLS + 1, 2), np.uint64)
    for k in range(RINGS):
        bits[ring == k, k // 4] = 0xFFFF << 16 * (k % 4)
    return bits


def azimuths(s: Settings) -> np.ndarray:
    """Return the azimuths of the columns, [H] rad."""
    count, half = s["lidar_azimuths"], s["lidar_view_deg"] / 2
    if s["lidar_pinhole"]:
        edge = math.tan(math.radians(half))
        return np.arctan(middles(-edge, edge, count))
    if s["lidar_view_deg"] < 360:
        return np.radians(middles(-half, half, count))
    return np.radians([360.0 * h / count for h in range(count)])


def elevations(s: Settings) -> np.ndarray:
    """Return the elevations of the rows, [V] rad."""
    rows = s["lidar_rows"]
    if not rows:
        return np.radians(s[ELEVATIONS])
    low, high = s[ELEVATIONS]
    if s["lidar_pinhole"]:
        return np.arctan(middles(math.tan(math.radians(low)), math.tan(math.radians(high)), rows))
    return np.radians(middles(low, high, rows))


def middles(low: float, high: float, count: int) -> np.ndarray:
    return low + (high - low) * (np.arange(count) + 0.5) / count


def make_sensor(s: Settings) -> SimpleNamespace:
    around, up = azimuths(s), elevations(s)
    rays = np.stack(np.broadcast_arrays(*directions(s, around[:, None], up[None])), axis=-1).astype(np.float32)
    low, high = s[ELEVATIONS][0], s[ELEVATIONS][-1]
    single = single_rays(s) or s["movers_from"] == "lidar"
    return SimpleNamespace(
        azimuths=len(around),
        elevations=len(up),
        rays=tuple(np.ascontiguousarray(rays.reshape(-1, 3).T)) if single else None,
        cosine=np.cos(up).astype(np.float32),
        sine=np.sin(up).astype(np.float32),
        tilts=s["lidar_tilts"],
        standing=s["planner.standing"] and not s["world"],
        memory=s["planner.memory"],
        angle_error=F(math.radians((high - low) / s["lidar_rows"] / 2) if s["lidar_jitter"] else 0.0),
        range_m=F(s["lidar_range_m"]),
        reach_m=F(map_range(s)),
        late_s=F(s["perception.lidar_delay_s"] * (1.0 - 0.5 * s["perception.vary"])),
    )


def directions(s: Settings, around: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if s["lidar_pinhole"]:
        y, z = np.tan(around), np.tan(up)
        size = np.sqrt(1.0 + y * y + z * z)
        return 1.0 / size, y / size, z / size
    return np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)


def make_search(s: Settings) -> SimpleNamespace:
    """Return the data of the search, all float32 unless they count something."""
    beams, tracks = s["collision"] == "beams", s["movers_from"] == "lidar"
    fast, radius, steps = min(s["planner.fast"], s["speed_limit"]), s["collision_radius_m"], num_steps(s)
    times = (np.arange(steps) + 1.0) * s["planner.step_s"]
    age = s["perception.mover_delay_s"] * (1.0 - 0.5 * s["perception.vary"]) + 0.5 * s["perception.mover_period_s"]
    commands, (flat, up) = candidates(s), (step_responses(s, rates) for rates in predicted_rates(s))
    numbers = {
        "step_s": s["planner.step_s"],
        "skin": s["planner.skin_m"],
        "margin": s["planner.margin_m"],
        "body": radius + s["planner.skin_m"],
        "mover_margin": s["planner.mover_margin_m"],
        "fast_mover_s": s["planner.fast_mover_s"],
        "crash_cost": s["planner.crash_cost"],
        "crash_relief": s["planner.crash_relief"],
        "depth_cost": s["planner.depth_cost"],
        "reach_z": 0.2 if beams else radius + UPRIGHT_M,
        "goal_radius": s["goal_radius_m"],
        "floor": (s["min_height_m"] if beams else max(s["min_height_m"], radius)) + LIMIT_M,
        "ceiling": s["max_height_m"] - LIMIT_M,
        "gain": fast * s["planner.horizon_s"],
        "decision_s": decision_s(s),
        "patience_s": s["planner.patience_s"],
        "coast_s": 0.0 if tracks else s["planner.coast_s"],
        "mover_late_s": 0.0 if tracks else age,
        "box_width": 1.0 if beams else BOX_WIDTH,
        "fast": fast,
        "slow": min(s["planner.slow"], s["speed_limit"]),
        "limit": s["speed_limit"],
        "brief_m": fast * (s["planner.brief_s"] or s["planner.horizon_s"]),
    }
    return SimpleNamespace(
        steps=steps,
        commands=commands,
        flat=flat,
        upright=up,
        furthest=np.abs(flat).max(axis=(0, 1, 2)),
        fade=[exp(-F(k + 1) * F(s["planner.step_s"])) for k in range(steps)],
        kinds=2 if s["planner.brief_s"] else 1,
        price=(s["planner.margin_cost"] * np.exp(-times / s["planner.fading_s"])).astype(np.float32),
        mover_price=(s["planner.mover_cost"] * np.exp(-times / s["planner.fading_s"])).astype(np.float32),
        ring_m=ring_distances(),
        **{name: F(value) for name, value in numbers.items()},
    )


def make_guard(s: Settings) -> SimpleNamespace:
    halves = {"cylinder": 0.5 * s["body_height_m"], "sphere": s["collision_radius_m"]}
    lowest = max(s["min_height_m"], halves.get(s["collision"], 0.0))
    return SimpleNamespace(
        on=s["planner.guard"],
        body=F(s["collision_radius_m"] + GUARD_SKIN_M),
        limit=F(s["speed_limit"]),
        floor=F(lowest + GUARD_SKIN_M),
        ceiling=F(s["max_height_m"] - GUARD_SKIN_M),
        step_s=F(decision_s(s)),
        horizon=F(2.0),
        near_horizon=F(1.0),
        lag=F(GUARD_LAG_S),
    )


def slowness(s: Settings) -> np.ndarray:
    """Return the factors on the lengths of paths, by ring, [9]."""
    body = F(s["collision_radius_m"] + s["planner.skin_m"])
    near = [20.0 if away <= body else 1.0 for away in ring_distances()]
    near[3] += s["planner.narrow"]
    near[4] += s["planner.narrow"] / 2
    return np.array(near, np.float32)
