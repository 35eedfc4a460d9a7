"""A recorded flight for the browser: columns, the crowd, LiDAR beams, figures. See `tasks.view.stage`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.tasks.navigation.physics.crowd import crowd_kinds
from fledge.tasks.navigation.physics.shapes import KINDS, STANDING_Z_M, WIDTHS, is_round, sizes
from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.navigation.sensing.observations import NEAREST
from fledge.tasks.navigation.view.frame_capture import MM
from fledge.tasks.navigation.view.objects import drone_and_goal
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Beams, Crowd, Instrument, Stage
from fledge.tasks.view.trajectory import Trajectory

DRONE_M = 0.6  # across the rotors, as it is drawn: twice the radius that counts for collisions
CEILING_M = 6.0
WALK_M = 0.03  # the least that a beam goes on at once


def flight_stage(scene: Mapping[str, Any]) -> Stage:
    """Return the columns of the map."""
    return Stage(
        boxes=boxes_of(scene["cells"].reshape(CELLS, CELLS)),
        bounds=((-HALF_M, -HALF_M, 0.0), (HALF_M, HALF_M, CEILING_M)),
        clock_s=float(scene.get("clock_s", 0.0)),
        goal_radius_m=float(scene.get("goal_radius_m", 0.5)),
    )


def boxes_of(cells: np.ndarray) -> np.ndarray:
    """Return solid cells [CELLS, CELLS] as few boxes [B, 6]: runs of one height along y, joined along x."""
    boxes: list[tuple[int, int, int, int, int]] = []  # x0, x1, y0, y1, value
    growing: dict[tuple[int, int, int], int] = {}  # (y0, y1, value) -> x0
    for x in range(CELLS + 1):
        row = np.where(cells[x] >= SOLID, cells[x], 0).astype(np.int16) if x < CELLS else np.zeros(CELLS, np.int16)
        edges = np.flatnonzero(np.diff(row, prepend=0, append=0))
        ends = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        runs = {(a, b, int(row[a])) for a, b in ends if row[a]}
        for run in [run for run in growing if run not in runs]:
            boxes.append((growing.pop(run), x, *run))
        for run in runs:
            growing.setdefault(run, x)
    if not boxes:
        return np.zeros((0, 6), np.float32)
    x0, x1, y0, y1, value = np.array(sorted(boxes), np.float32).T
    height = (value - SOLID) * HEIGHT_STEP
    middle = [(x0 + x1) / 2 * CELL_M - HALF_M, (y0 + y1) / 2 * CELL_M - HALF_M, height / 2]
    return np.stack([*middle, (x1 - x0) * CELL_M, (y1 - y0) * CELL_M, height], axis=1).astype(np.float32)


def flight_actors(track: Trajectory) -> list[SceneObject]:
    """The drone and its goal."""
    drone, goal = drone_and_goal(track)
    drone.heading, drone.size_m = track.frames.get("heading"), DRONE_M
    goal.size_m = 2 * float(track.scene.get("goal_radius_m", 0.5))
    return [drone, goal]


def flight_crowd(track: Trajectory) -> Crowd | None:
    """Return the moving obstacles around the drone; older recordings have the nearest one only."""
    frames = track.frames
    if "crowd" in frames and "crowd_id" in frames:
        ids, pos = frames["crowd_id"].astype(np.int16), frames["crowd"] / np.float32(MM)
    elif "mover" in frames:
        there = np.isfinite(frames["mover"]).all(axis=1)
        kind = np.where(there, np.nan_to_num(frames["mover"][:, 3]) * 4 - 1, -1).astype(np.int16)
        tall = np.nan_to_num(frames["mover"][:, 2]) == STANDING_Z_M
        ids, pos = np.where(there & tall, kind + WIDTHS, kind)[:, None], np.nan_to_num(frames["mover"][:, None, :3])
    else:
        return None
    scene, count = track.scene, max(KINDS, int(ids.max(initial=0)) + 1)
    kinds = np.array(scene.get("kinds") or crowd_kinds(count, swings="one_kind" in scene))
    return Crowd(ids, pos.astype(np.float32), sizes(kinds), is_round(kinds), detected(track, ids, pos))


def detected(track: Trajectory, ids: np.ndarray, pos: np.ndarray) -> np.ndarray | None:
    """Return which movers the drone observes, [T, K]: the nearest ones within the LiDAR's range, horizontally."""
    lidar = track.scene.get("lidar")
    if not isinstance(lidar, Mapping):
        return None
    away = np.linalg.norm(pos[..., :2] - track.frames["pos"][:, None, :2], axis=-1)
    away = np.where(ids >= 0, away, np.inf)
    rank = away.argsort(axis=1).argsort(axis=1)
    return (rank < NEAREST) & (away <= float(lidar["range_m"]))


def flight_instruments(track: Trajectory) -> list[Instrument]:
    """Return speed, height, and the distances to the goal and to the nearest mover."""
    pos, goal = track.frames["pos"], np.asarray(track.scene["goal"])
    shown = []
    if "vel" in track.frames:
        shown.append(Instrument("speed", np.linalg.norm(track.frames["vel"], axis=1), "m/s"))
    shown.append(Instrument("height", pos[:, 2], "m"))
    shown.append(Instrument("to the goal", np.linalg.norm(pos - goal, axis=1), "m"))
    if "mover" in track.frames:
        x, y, _, width = track.frames["mover"].T
        shown.append(Instrument("nearest mover", np.hypot(x - pos[:, 0], y - pos[:, 1]) - width / 2, "m"))
    return shown


# ---- LiDAR: cast again from what was recorded, so that no recording has to hold it ------------------------------------


def flight_beams(track: Trajectory) -> Beams | None:
    """Return the LiDAR's distances without noise; None if the recording has no heading or LiDAR geometry."""
    lidar = track.scene.get("lidar")
    if not isinstance(lidar, Mapping) or "heading" not in track.frames:
        return None
    around = 2.0 * math.pi * np.arange(int(lidar["azimuths"])) / int(lidar["azimuths"])
    up, reach = np.radians(np.asarray(lidar["elevations_deg"], np.float64)), float(lidar["range_m"])
    pos = track.frames["pos"].astype(np.float64)
    angle = track.frames["heading"].astype(np.float64)[:, None] + around
    ahead = np.stack([np.cos(angle), np.sin(angle)], axis=-1)  # [T, H, 2]
    cells = track.scene["cells"].reshape(CELLS, CELLS)
    distance = cast_columns(cells, pos, ahead, np.tan(up), np.cos(up), reach)
    crowd = flight_crowd(track)
    if lidar.get("sees_movers") and crowd is not None:
        np.minimum(distance, cast_crowd(crowd, pos, ahead, up, reach), out=distance)
    return Beams(around, up, reach, distance.astype(np.float32))


def cast_columns(
    cells: np.ndarray, pos: np.ndarray, ahead: np.ndarray, slope: np.ndarray, cosine: np.ndarray, reach: float
) -> np.ndarray:
    """Return distances [T, H, V] along beams to columns and ground, to within `WALK_M`."""
    shape = (*ahead.shape[:2], len(slope))
    dx, dy = (np.broadcast_to(ahead[..., k, None], shape).ravel() for k in (0, 1))
    x, y, z = (np.broadcast_to(pos[:, k, None, None], shape).ravel() for k in (0, 1, 2))
    rise, level = np.broadcast_to(slope, shape).ravel(), np.broadcast_to(cosine, shape).ravel()
    end = reach * level
    with np.errstate(divide="ignore", invalid="ignore"):
        ground = np.where(rise < 0, z / -rise, np.inf)
    meets = (ground < end) & (np.abs(x + ground * dx) < HALF_M) & (np.abs(y + ground * dy) < HALF_M)
    end = np.where(meets, np.maximum(ground, 0.0), end)
    hit, along = meets.copy(), np.zeros(len(end))
    flying = np.arange(len(end))
    while len(flying):
        s = along[flying]
        ix = np.floor((x[flying] + s * dx[flying] + HALF_M) / CELL_M).astype(np.int64)
        iy = np.floor((y[flying] + s * dy[flying] + HALF_M) / CELL_M).astype(np.int64)
        inside = (ix >= 0) & (iy >= 0) & (ix < CELLS) & (iy < CELLS)
        value = np.where(inside, cells[np.clip(ix, 0, CELLS - 1), np.clip(iy, 0, CELLS - 1)], 0).astype(np.int64)
        height = (value - SOLID) * HEIGHT_STEP
        struck = (value >= SOLID) & (z[flying] + s * rise[flying] < height)
        end[flying[struck]], hit[flying[struck]] = s[struck], True
        free = np.where(value < SOLID, (value - 1) * CELL_M, 0.0)
        along[flying] = s + np.maximum(free, WALK_M)
        flying = flying[~struck & inside & (along[flying] < end[flying])]
    return np.where(hit, np.minimum(end / level, reach), reach).reshape(shape)


def cast_crowd(crowd: Crowd, pos: np.ndarray, ahead: np.ndarray, up: np.ndarray, reach: float) -> np.ndarray:
    """Return distances [T, H, V] along beams to moving obstacles, each taken as an upright cylinder."""
    level = np.cos(up)
    nearest = np.full((*ahead.shape[:2], len(up)), reach)
    for k in range(crowd.ids.shape[1]):
        there = crowd.ids[:, k] >= 0
        size = crowd.sizes[np.maximum(crowd.ids[:, k], 0)]
        away = crowd.pos[:, k] - pos
        along = np.einsum("tha,ta->th", ahead, away[:, :2])
        aside = ahead[..., 0] * away[:, None, 1] - ahead[..., 1] * away[:, None, 0]
        room = (size[:, :1] / 2) ** 2 - aside**2
        entry = np.maximum(along - np.sqrt(np.maximum(room, 0.0)), 0.0)[..., None]  # [T, H, 1]
        tall = np.abs(entry * np.tan(up) - away[:, None, None, 2]) <= size[:, None, None, 2] / 2
        met = ((room > 0) & (along > 0) & there[:, None])[..., None] & tall
        nearest = np.where(met, np.minimum(nearest, entry / level), nearest)
    return nearest
