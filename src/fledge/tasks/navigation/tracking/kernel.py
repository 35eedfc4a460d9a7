"""The tracker's kernel: read a scan, update memory and tracks, write the moving ones to `dynamic_obstacle`.

One thread per drone. A scan that equals the last one is a scan that is held until the next arrives: then tracks are only
predicted.
"""

import warp as wp

from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner.kernel import BEGUN, ENDED
from fledge.tasks.navigation.planner.readings import (
    M_BOX,
    M_COLUMNS,
    M_FLAT,
    M_UNIT,
    M_UP,
    M_VEL,
    M_WIDTH,
    Own,
    Seen,
    read_own,
)
from fledge.tasks.navigation.sensing.observations import NEAREST
from fledge.tasks.navigation.tracking.clusters import find_clusters
from fledge.tasks.navigation.tracking.structs import Tracker
from fledge.tasks.navigation.tracking.tracks import NARROWEST_M, WIDEST_M, predict, update_tracks

BOX = 0.5  # evidence from which on a track counts as a box


@wp.func
def forget(t: Tracker, i: int):
    """Clear memory and tracks of drone i."""
    for n in range(t.grid.shape[1]):
        t.grid[i, n] = wp.vec4i(0, 0, 0, 0)
        t.free[i, n] = wp.vec2i(0, 0)
    for k in range(t.tracks):
        t.life[i, k] = wp.vec3i(0, 0, 0)


@wp.func
def take_scan(t: Tracker, i: int, seen: Seen, fresh: bool) -> bool:
    """Store the scan of drone i; return whether it is a new one."""
    changed = fresh
    for n in range(t.scan.shape[1]):
        if not changed:
            changed = t.scan[i, n] != seen.lidar[i, n]
        if changed:
            t.scan[i, n] = seen.lidar[i, n]
    return changed


@wp.func
def write_row(t: Tracker, i: int, k: int, row: int, own: Own, seconds: float):
    """Write track k of drone i, predicted by `seconds`, to a row of `dynamic_obstacle`."""
    vel = t.vel[i, k]
    away = t.pos[i, k] + seconds * vel - own.pos
    box = t.shape[i, k][1] > BOX
    if not box:
        away = wp.vec3(away[0], away[1], 0.0)
        vel = wp.vec3(vel[0], vel[1], 0.0)
    unit = away / wp.max(wp.length(away), 1.0e-6)
    first = row * M_COLUMNS
    for m in range(3):
        t.rows[i, first + M_UNIT + m] = unit[m]
        t.rows[i, first + M_VEL + m] = vel[m]
    t.rows[i, first + M_FLAT] = wp.sqrt(away[0] * away[0] + away[1] * away[1])
    t.rows[i, first + M_UP] = away[2]
    t.rows[i, first + M_WIDTH] = 4.0 * wp.clamp(t.shape[i, k][0], NARROWEST_M, WIDEST_M) - 1.0
    t.rows[i, first + M_BOX] = wp.where(box, 1.0, 0.0)


@wp.func
def write_rows(t: Tracker, i: int, own: Own, seconds: float):
    """Write the nearest moving tracks of drone i, predicted by `seconds`, to the rows of `dynamic_obstacle`."""
    for n in range(t.rows.shape[1]):
        t.rows[i, n] = 0.0
    last = float(-1.0)
    last_k = int(-1)
    for row in range(NEAREST):
        best = float(1.0e6)
        best_k = int(-1)
        for k in range(t.tracks):
            if t.life[i, k][2] == 1:
                away = t.pos[i, k] + seconds * t.vel[i, k] - own.pos
                d = away[0] * away[0] + away[1] * away[1]
                after = d > last or (d == last and k > last_k)  # rows before have the nearer tracks
                if after and d < best:
                    best = d
                    best_k = k
        if best_k < 0:
            return
        write_row(t, i, best_k, row, own, seconds)
        last = best
        last_k = best_k


@wp.func
def track_drone(t: Tracker, i: int, seen: Seen, fresh: bool):
    """Update drone i's memory and tracks with its observations, and write its rows."""
    if fresh:
        forget(t, i)
        t.clock[i] = 0
        t.scanned[i] = 0
    else:
        t.clock[i] = t.clock[i] + 1
    own = read_own(seen, i)
    now = t.clock[i]
    if take_scan(t, i, seen, fresh):
        place = own.pos - t.late_s * own.vel
        predict(t, i, float(now - t.scanned[i]) * t.decision_s)
        t.scanned[i] = now
        count = find_clusters(t, i, seen, place, own.yaw, now)
        update_tracks(t, i, count, place, now)
    write_rows(t, i, own, float(now - t.scanned[i]) * t.decision_s + t.late_s)


@wp.kernel(enable_backward=False)
def track(
    first: int,
    which: int,
    result: Result,
    step: wp.array(dtype=wp.int32),
    seen: Seen,
    t: Tracker,
    out: wp.array2d(dtype=wp.float32),
):
    """Track movers and write `dynamic_obstacle` to `out`; an episode begins with an empty memory.

    `which` selects the drones that are updated: ALL, ENDED (their episode ended) or BEGUN (their episode begins).
    """
    i = first + wp.tid()
    if which == ENDED and not (result.terminated[i] or result.truncated[i]):
        return
    fresh = step[i] == 0
    if which != BEGUN or fresh:
        track_drone(t, i, seen, fresh)
    for n in range(t.rows.shape[1]):
        out[i, n] = t.rows[i, n]


@wp.kernel(enable_backward=False)
def track_alone(first: int, fresh: wp.array(dtype=wp.bool), seen: Seen, t: Tracker, out: wp.array2d(dtype=wp.float32)):
    """Do as `track`, outside of an env: `fresh` is true where an episode begins."""
    i = first + wp.tid()
    track_drone(t, i, seen, fresh[i])
    for n in range(t.rows.shape[1]):
        out[i, n] = t.rows[i, n]
