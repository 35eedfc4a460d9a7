"""Tracks: a Kalman filter of constant velocity for each cluster that is seen again and again."""

import warp as wp

from fledge.tasks.navigation.tracking.structs import Tracker

GATE_M = 0.5  # largest distance between a track's prediction and its cluster
JERKINESS = 1.5  # m²/s³: spectral density of the accelerations of movers
RANGE_SIGMA_M = 0.03  # standard deviation of a cluster's position, plus a share of the spacing of rays at its distance
PITCH_SIGMA = 0.25
FIRST_SPEED = 0.7  # m/s: standard deviation of an unknown velocity
PUSH = 0.42  # distance of a mover's centre behind its visible surface, as a share of its width
NARROWEST_M, WIDEST_M = 0.25, 1.1
GROW, SHRINK = 0.4, 0.1  # share by which a new measurement changes the width
UPRIGHT, UPRIGHT_SPEED = 0.5, 0.2  # shares of the horizontal filter's gains that apply to heights and vertical speeds
BOX_SHARE = 0.3  # share by which a new scan changes the evidence for a box
CAME_SHARE = 0.3  # and the evidence that it came into free cells
REST_SPEED, FASTEST = 0.2, 2.0  # m/s
# A track moves if it was seen in so many scans, is faster than this (m/s) and this far from its first position (m) ...
SCANS, SPEED, MOVED_M, CAME = 3, 0.3, 0.2, 0.08  # ... if at least this share of it came into free cells
SCANS_ELSE, SPEED_ELSE, MOVED_ELSE_M = 12, 0.5, 1.3  # ... or else, such as if it moves away
COAST_S, WAIT_S = 0.8, 0.3  # time for which an unseen track lives, if it moves, or not


@wp.func
def predict(t: Tracker, i: int, seconds: float):
    """Move all tracks of drone i on by this time."""
    q = JERKINESS * seconds
    for k in range(t.tracks):
        if t.life[i, k][0] > 0:
            t.pos[i, k] = t.pos[i, k] + seconds * t.vel[i, k]
            p = t.cov[i, k]
            t.cov[i, k] = wp.vec3(
                p[0] + seconds * (2.0 * p[1] + seconds * p[2]) + q * seconds * seconds / 3.0,
                p[1] + seconds * p[2] + 0.5 * q * seconds,
                p[2] + q,
            )


@wp.func
def centre_of(cluster: wp.vec4, width: float, own: wp.vec3) -> wp.vec2:
    """Return the centre of an obstacle of this width whose visible side is `cluster`, seen from `own`."""
    x = cluster[0] - own[0]
    y = cluster[1] - own[1]
    push = PUSH * wp.clamp(width, NARROWEST_M, WIDEST_M) / wp.max(wp.sqrt(x * x + y * y), 1.0e-3)
    return wp.vec2(cluster[0] + push * x, cluster[1] + push * y)


@wp.func
def assign(t: Tracker, i: int, count: int, own: wp.vec3):
    """Match tracks and clusters of drone i, the nearest pair first, up to GATE_M apart."""
    for k in range(t.tracks):
        t.match[i, k] = -1
    for c in range(count):
        t.taken[i, c] = 0
    for _pair in range(t.tracks):
        best = float(GATE_M)
        best_k = int(-1)
        best_c = int(-1)
        for k in range(t.tracks):
            if t.life[i, k][0] > 0 and t.match[i, k] < 0:
                for c in range(count):
                    if t.taken[i, c] == 0:
                        at = centre_of(t.clusters[i, c], t.shape[i, k][0], own)
                        away = wp.length(at - wp.vec2(t.pos[i, k][0], t.pos[i, k][1]))
                        if away < best:
                            best = away
                            best_k = k
                            best_c = c
        if best_k < 0:
            return
        t.match[i, best_k] = best_c
        t.taken[i, best_c] = 1


@wp.func
def sigma_at(t: Tracker, flat: float) -> float:
    return RANGE_SIGMA_M + PITCH_SIGMA * t.pitch * flat


@wp.func
def update(t: Tracker, i: int, k: int, c: int, own: wp.vec3, now: int):
    """Update track k of drone i with cluster c."""
    cluster = t.clusters[i, c]
    upright = t.uprights[i, c]
    shape = t.shape[i, k]
    rate = wp.where(cluster[2] > shape[0], GROW, SHRINK)
    width = shape[0] + rate * (cluster[2] - shape[0])
    box = shape[1] + BOX_SHARE * (upright[1] - shape[1])
    t.shape[i, k] = wp.vec3(width, box, shape[2] + CAME_SHARE * (upright[2] - shape[2]))
    p = t.cov[i, k]
    sigma = sigma_at(t, cluster[3])
    s = p[0] + sigma * sigma
    g = p[0] / s
    h = p[1] / s
    at = centre_of(cluster, width, own)
    pos = t.pos[i, k]
    vel = t.vel[i, k]
    dx = at[0] - pos[0]
    dy = at[1] - pos[1]
    dz = wp.where(upright[1] > 0.0, upright[0] - pos[2], 0.0)
    t.pos[i, k] = pos + g * wp.vec3(dx, dy, UPRIGHT * dz)
    t.vel[i, k] = vel + h * wp.vec3(dx, dy, UPRIGHT_SPEED * dz)
    t.cov[i, k] = wp.vec3((1.0 - g) * p[0], (1.0 - g) * p[1], p[2] - h * p[1])
    life = t.life[i, k]
    t.life[i, k] = wp.vec3i(life[0] + 1, now, moves(t, i, k, life[0] + 1, life[2]))


@wp.func
def moves(t: Tracker, i: int, k: int, scans: int, before: int) -> int:
    """Return 1 if track k, seen in so many scans, moves; `before` is the last answer."""
    vel = t.vel[i, k]
    speed = wp.sqrt(vel[0] * vel[0] + vel[1] * vel[1])
    if speed > FASTEST or speed < REST_SPEED:
        return 0
    if before == 1:
        return 1
    pos = t.pos[i, k]
    away = wp.length(wp.vec2(pos[0], pos[1]) - t.born[i, k])
    if t.shape[i, k][2] >= CAME and scans >= SCANS and speed > SPEED and away > MOVED_M:
        return 1
    return wp.where(scans >= SCANS_ELSE and speed > SPEED_ELSE and away > MOVED_ELSE_M, 1, 0)


@wp.func
def begin(t: Tracker, i: int, k: int, c: int, own: wp.vec3, now: int):
    """Begin track k of drone i at cluster c."""
    cluster = t.clusters[i, c]
    upright = t.uprights[i, c]
    at = centre_of(cluster, cluster[2], own)
    sigma = sigma_at(t, cluster[3])
    t.pos[i, k] = wp.vec3(at[0], at[1], wp.where(upright[1] > 0.0, upright[0], own[2]))
    t.vel[i, k] = wp.vec3()
    t.cov[i, k] = wp.vec3(sigma * sigma, 0.0, FIRST_SPEED * FIRST_SPEED)
    t.born[i, k] = at
    t.shape[i, k] = wp.vec3(cluster[2], upright[1], upright[2])
    t.life[i, k] = wp.vec3i(1, now, 0)


@wp.func
def update_tracks(t: Tracker, i: int, count: int, own: wp.vec3, now: int):
    """Update the tracks of drone i at `own` with `count` clusters; end those unseen for long, begin new ones."""
    assign(t, i, count, own)
    for k in range(t.tracks):
        life = t.life[i, k]
        if t.match[i, k] >= 0:
            update(t, i, k, t.match[i, k], own, now)
        elif life[0] > 0:
            unseen = float(now - life[1]) * t.decision_s
            if unseen > wp.where(life[2] == 1, COAST_S, WAIT_S):
                t.life[i, k] = wp.vec3i(0, 0, 0)
    k = int(0)
    for c in range(count):
        if t.taken[i, c] == 0:
            while k < t.tracks and t.life[i, k][0] > 0:
                k = k + 1
            if k < t.tracks:
                begin(t, i, k, c, own, now)
