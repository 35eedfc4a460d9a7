"""The guard: ORCA in three dimensions, as in native/guard.c. Half-spaces are arrays [4, n]: a normal and a bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fledge_runtime.numpy_engine.floats import (
    FAR,
    HALF,
    ONE,
    TWO_PI,
    ZERO,
    F,
    add,
    cos,
    cross,
    divide,
    dot,
    hypot,
    length,
    rotate,
    scale,
    sin,
    sub,
)
from fledge_runtime.numpy_engine.local_map import GROUND_M, sensor_turn

EPSILON, BISECTIONS = F(1.0e-5), 14


def half_spaces(p: Any, v: Any, command: Any, radius: Any, horizon: Any, step: Any) -> np.ndarray:
    """Return the half-spaces of allowed commands for obstacles at `p` from the drone, [4, n]; `v` is `command` minus their
    velocities."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = dot(p, p) <= radius * radius
        t = np.where(inside, step, horizon)
        w, size = sub(v, divide(p, t)), radius / t
        across = dot(w, p)
        ball = inside | ((across < 0) & (across * across > radius * radius * dot(w, w)))
        a, b = dot(p, p), dot(p, v)
        root = length(cross(p, v)) * radius / np.sqrt(a - radius * radius)
        along = (b + root) / a
        cone = sub(v, scale(p, along))
        w = tuple(np.where(ball, w[k], cone[k]) for k in range(3))
        size = np.where(ball, size, radius * along)
        away, far = length(w), length(p)
        inward = tuple(np.where(far > 0, -(p[k] / far), ZERO) for k in range(3))
        n = tuple(np.where(away > EPSILON, w[k] / away, inward[k]) for k in range(3))
    u = scale(n, size - away)
    return np.array([*n, dot(add(command, u), n)], np.float32)


def on_line(planes: np.ndarray, a: int, b: int, back: Any, wanted: Any, limit: Any) -> Any:
    """Return the allowed point nearest to `wanted` on the line where planes a and b meet; None if there is none."""
    na, nb = planes[:3, a], planes[:3, b]
    way = cross(na, nb)
    square = dot(way, way)
    if square < EPSILON:
        return None
    cosine, ba, bb = dot(na, nb), planes[3, a] - back, planes[3, b] - back
    point = divide(add(scale(na, ba - bb * cosine), scale(nb, bb - ba * cosine)), square)
    rest = limit * limit - dot(point, point)
    if rest < 0:
        return None
    way = divide(way, np.sqrt(square))
    high = np.sqrt(rest)
    low = -high
    n = planes[:3, :b]
    slope, lack = dot(n, way), planes[3, :b] - back - dot(n, point)
    level, up = np.abs(slope) < EPSILON, slope > 0
    if (level & (lack > EPSILON)).any():
        return None
    rising, falling = ~level & up, ~level & ~up
    low = np.max(lack[rising] / slope[rising], initial=low)
    high = np.min(lack[falling] / slope[falling], initial=high)
    if low > high:
        return None
    return add(point, scale(way, min(max(low, dot(way, sub(wanted, point))), high)))


def on_plane(planes: np.ndarray, a: int, back: Any, wanted: Any, limit: Any) -> Any:
    """Return the allowed point nearest to `wanted` on plane a; None if there is none."""
    n, b = planes[:3, a], planes[3, a] - back
    if abs(b) > limit:
        return None
    radius = np.sqrt(limit * limit - b * b)
    offset = sub(wanted, scale(n, dot(wanted, n)))
    away = length(offset)
    if away > radius:
        offset = scale(offset, radius / away)
    v, k = add(scale(n, b), offset), first_violated(planes[:, :a], 0, back, add(scale(n, b), offset))
    while k is not None:
        v = on_line(planes, a, k, back, wanted, limit)
        if v is None:
            return None
        k = first_violated(planes[:, :a], k + 1, back, v)
    return v


def first_violated(planes: np.ndarray, start: int, back: Any, v: Any) -> Any:
    """Return the first half-space from `start` on that a command violates; None if there is none."""
    violated = np.flatnonzero(dot(planes[:3, start:], v) < planes[3, start:] - back - EPSILON)
    return start + int(violated[0]) if len(violated) else None


def nearest_allowed(planes: np.ndarray, back: Any, wanted: Any, limit: Any) -> Any:
    """Return the allowed point nearest to `wanted`, None if there is none; all half-spaces are enlarged by `back`."""
    speed = length(wanted)
    v = scale(wanted, limit / speed) if speed > limit else wanted
    a = first_violated(planes, 0, back, v)
    while a is not None:
        v = on_plane(planes, a, back, wanted, limit)
        if v is None:
            return None
        a = first_violated(planes, a + 1, back, v)
    return v


def safest(planes: np.ndarray, wanted: Any, limit: Any) -> Any:
    """Return the allowed command nearest to `wanted`; if none is allowed, the command that violates the planes least."""
    best = nearest_allowed(planes, ZERO, wanted, limit)
    if best is not None:
        return best
    low, high = ZERO, np.max(planes[3], initial=ZERO) + F(0.01)
    best = nearest_allowed(planes, high, wanted, limit) or (ZERO, ZERO, ZERO)
    for _ in range(BISECTIONS):
        middle = HALF * (low + high)
        trial = nearest_allowed(planes, middle, wanted, limit)
        if trial is None:
            low = middle
        else:
            best, high = trial, middle
    return best


def mover_planes(g: SimpleNamespace, movers: Any, own: Any, wanted: Any) -> np.ndarray:
    """Return the half-spaces of the movers; one counts as a ball at the point of its axis that is nearest in height."""
    there = movers.place[:, 0] < FAR
    place, motion = movers.place[there].T, movers.motion[there].T
    away = place[2] + own.lead * motion[2] - own.pos[2]
    up = away - np.minimum(np.maximum(-motion[3], away), motion[3])
    vel = (motion[0], motion[1], np.where(up == 0, ZERO, motion[2]))
    x, y = (place[k] + own.lead * motion[k] - own.pos[k] for k in range(2))
    p = add((x, y, up), scale(sub(vel, own.vel), g.lag + own.slower))
    return half_spaces(p, sub(wanted, vel), wanted, g.body + place[3], g.horizon - g.lag, g.step_s)


def beam_planes(g: SimpleNamespace, sensor: SimpleNamespace, seen: Any, own: Any, wanted: Any) -> np.ndarray:
    """Return the half-spaces of the nearest LiDAR hit at each azimuth that has one."""
    value, height = seen["lidar"].reshape(sensor.azimuths, -1), own.pos[2] - own.moved[2]
    d = sensor.range_m - value
    if sensor.rays is None:
        angles = [own.yaw + TWO_PI * F(h) / F(sensor.azimuths) for h in range(sensor.azimuths)]
        course = [np.array([f(a) for a in angles], np.float32)[:, None] for f in (cos, sin)]
        hit = (d * (sensor.cosine * course[0]), d * (sensor.cosine * course[1]), d * sensor.sine)
        above = height + hit[2] > GROUND_M
    else:
        turned = rotate(sensor_turn(sensor, seen, own.yaw), sensor.rays)
        hit = tuple(d * axis.reshape(d.shape) for axis in turned)
        above = height + hit[2] > GROUND_M + sensor.angle_error * hypot(hit[0], hit[1])
    d = np.where((value > 0) & above & (d < FAR), d, FAR)
    nearest = d.argmin(axis=1)
    h = np.flatnonzero(d.min(axis=1) < FAR)
    p = sub(tuple(axis[h, nearest[h]] for axis in hit), own.moved)
    p = sub(p, scale(own.vel, g.lag + own.slower))
    command = tuple(np.broadcast_to(c, p[0].shape) for c in wanted)
    planes = half_spaces(p, command, command, g.body, g.near_horizon - g.lag, g.step_s)
    return planes[:, planes[:3].any(axis=0)]


def guarded(g: SimpleNamespace, sensor: SimpleNamespace, seen: Any, movers: Any, own: Any, command: Any) -> Any:
    """Return the command outside all velocity obstacles that is nearest to `command`; if the guard is off, `command`."""
    if not g.on:
        return command
    coasting, ahead = own.pos[2] + (g.lag + own.slower) * own.vel[2], g.near_horizon - g.lag
    down = (ZERO, ZERO, ONE, min((g.floor - coasting) / ahead, HALF))
    up = (ZERO, ZERO, -ONE, min((coasting - g.ceiling) / ahead, HALF))
    heights = np.array([down, up], np.float32).T
    planes = [mover_planes(g, movers, own, command), beam_planes(g, sensor, seen, own, command), heights]
    return safest(np.concatenate(planes, axis=1), command, max(g.limit, length(command)))
