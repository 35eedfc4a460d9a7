"""The navigation step in NumPy: whole-array operations over all drones, float32, one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.baselines.navigation import plain_step as ref
from benchmarks.baselines.navigation.plain_step import Array, Snapshot

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Result = dict[str, npt.NDArray]

MIX = ref.mixer()
UNMIX = np.linalg.inv(MIX)
INERTIA = np.array(ref.INERTIA, dtype=np.float32)
ATTITUDE_GAIN = np.array(ref.ATTITUDE_GAIN, dtype=np.float32)
RATE_GAIN = np.array(ref.RATE_GAIN, dtype=np.float32)
CELL = np.float32(ref.CELL)
UP = np.array([0, 0, 1], dtype=np.float32)
AROUND = (2 * np.pi / ref.AZIMUTHS * np.arange(ref.AZIMUTHS)).astype(np.float32)
SLOPE = np.tan(np.radians(ref.ELEVATIONS_DEG)).astype(np.float32)
COSINE = np.cos(np.radians(ref.ELEVATIONS_DEG)).astype(np.float32)


def unit(v: Array) -> Array:
    return v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), np.float32(1e-6))


def rotation(q: Array) -> Array:
    """Return the rotation from body to world, [N, 3, 3]."""
    x, y, z, w = q.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], 1)


def turn(v: Array, axis: Array, back: bool = False) -> Array:
    """Rotate vectors [N, ..., 3] from the world into the frame whose x axis is `axis` [N, 2], or back."""
    c, s = axis[:, 0], axis[:, 1] if not back else -axis[:, 1]
    c, s = (a.reshape(-1, *[1] * (v.ndim - 2)) for a in (c, s))
    return np.stack([c * v[..., 0] + s * v[..., 1], c * v[..., 1] - s * v[..., 0], v[..., 2]], -1)


class NumpySim:
    """Drones of a snapshot, which `step` advances."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.load(snapshot)

    def load(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot."""
        self.pos, self.vel, self.quat, self.rate, self.throttle, self.start, self.goal = (
            getattr(snapshot, name).copy() for name in ("pos", "vel", "quat", "rate", "throttle", "start", "goal")
        )
        self.slot, self.steps = snapshot.slot, snapshot.step.copy()
        self.grid = snapshot.grid.reshape(-1)
        kind = np.arange(snapshot.movers)
        self.width = (0.25 * (kind % 4 + 1)).astype(np.float32)
        self.standing = kind % 8 >= 4
        self.axis = unit(self.goal[:, :2] - self.start[:, :2])

    def step(self, action: Array, crowd_pos: Array, crowd_vel: Array) -> Result:
        """Fly one decision of one physics step among these obstacles; return observation, reward and flags."""
        command = turn(2 * ref.SPEED_LIMIT * np.clip(action, 0, 1) - ref.SPEED_LIMIT, self.axis, back=True)
        self.fly(command)
        self.steps += 1
        distance = cast(self.grid, self.slot, self.pos, np.arctan2(self.rot[:, 1, 0], self.rot[:, 0, 0]))
        offset = crowd_pos[self.slot] - self.pos[:, None]
        flat = np.hypot(offset[..., 0], offset[..., 1])
        obstacles, mover_logs = self.nearest(offset, flat, crowd_vel)
        terminated = (distance.min((1, 2)) < ref.RADIUS) | self.hits_mover(offset, flat)
        terminated |= (self.pos[:, 2] < ref.MIN_HEIGHT) | (self.pos[:, 2] > ref.MAX_HEIGHT)
        return {
            "state": self.observe_self(),
            "lidar": (ref.RANGE - distance)[:, None],
            "dynamic_obstacle": obstacles[:, None],
            "reward": self.reward(distance, mover_logs),
            "terminated": terminated,
            "truncated": ~terminated & (self.steps >= ref.MAX_STEPS),
        }

    def fly(self, command: Array) -> None:
        """Make one physics step under Lee's controller (Lee, Leok & McClamroch, CDC 2010), without position and yaw hold."""
        rot = rotation(self.quat)
        acc = ref.VELOCITY_GAIN * (command - self.vel) + ref.GRAVITY * UP
        b3 = unit(acc)
        heading = np.concatenate([unit(rot[:, :2, 0]), np.zeros_like(acc[:, :1])], -1)
        b2 = unit(np.cross(b3, heading))
        desired = np.stack([np.cross(b2, b3), b2, b3], -1)
        skew = desired.transpose(0, 2, 1) @ rot
        skew = 0.5 * (skew - skew.transpose(0, 2, 1))
        error = np.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1)
        torque = -ATTITUDE_GAIN * error - RATE_GAIN * self.rate
        lift = ref.MASS * (acc * rot[:, :, 2]).sum(-1, keepdims=True)
        wanted = np.concatenate([torque, lift], -1) @ UNMIX.T
        target = np.sqrt(np.clip(wanted / ref.MAX_THRUST, 0, 1))
        self.throttle += ref.ROTOR_FILTER * (target - self.throttle)
        wrench = ref.MAX_THRUST * self.throttle**2 @ MIX.T
        keep = 1 - ref.DAMPING * ref.DT
        spin = (wrench[:, :3] - np.cross(self.rate, INERTIA * self.rate)) / INERTIA
        self.rate = (self.rate + spin * ref.DT) * keep
        push = rot[:, :, 2] * wrench[:, 3:] / ref.MASS - ref.GRAVITY * UP
        self.vel = (self.vel + push * ref.DT) * keep
        self.pos = self.pos + self.vel * ref.DT
        self.quat = rotate(self.quat, self.rate * ref.DT)
        self.rot = rotation(self.quat)

    def observe_self(self) -> Array:
        to_goal = self.goal - self.pos
        flat = np.hypot(to_goal[:, 0], to_goal[:, 1])
        parts = [turn(unit(to_goal), self.axis), flat[:, None], to_goal[:, 2:], turn(self.vel, self.axis)]
        return np.concatenate(parts, -1)

    def nearest(self, offset: Array, flat: Array, vel: Array) -> tuple[Array, Array]:
        """Return the five nearest obstacles within range [N, 5, 10], and the mean log distance to their surfaces [N]."""
        n = len(offset)
        out = np.zeros((n, ref.NEAREST, 10), dtype=np.float32)
        if offset.shape[1] < ref.NEAREST:
            return out, np.full(n, np.log(ref.RANGE), dtype=np.float32)
        pick = np.argpartition(flat, ref.NEAREST - 1, axis=1)[:, : ref.NEAREST]
        away = np.take_along_axis(flat, pick, 1)
        order = np.argsort(away, axis=1)
        pick, away = np.take_along_axis(pick, order, 1), np.take_along_axis(away, order, 1)
        near = np.take_along_axis(offset, pick[..., None], 1)
        near[..., 2] *= ~self.standing[pick]
        present = away <= ref.RANGE
        out[..., :3] = turn(unit(near), self.axis)
        out[..., 3] = away
        out[..., 4] = near[..., 2]
        out[..., 5:8] = turn(vel[self.slot[:, None], pick], self.axis)
        out[..., 8] = pick % 4
        out[..., 9] = ~self.standing[pick]
        out *= present[..., None]
        surface = np.clip(np.linalg.norm(near, axis=-1) - 0.5 * self.width[pick], 1e-6, ref.RANGE)
        return out, np.log(np.where(present, surface, ref.RANGE)).mean(-1)

    def hits_mover(self, offset: Array, flat: Array) -> Bools:
        level = self.standing | (np.abs(offset[..., 2]) <= 0.5 + ref.RADIUS)
        return np.any((flat <= 0.5 * self.width + ref.RADIUS) & level, axis=1)

    def reward(self, distance: Array, mover_logs: Array) -> Array:
        """Return NavRL's reward."""
        towards = (self.vel * unit(self.goal - self.pos)).sum(-1)
        beams = np.log(np.maximum(distance, np.float32(1e-6))).mean((1, 2))
        low = np.minimum(self.start[:, 2], self.goal[:, 2]) - np.float32(0.2)
        high = np.maximum(self.start[:, 2], self.goal[:, 2]) + np.float32(0.2)
        outside = np.maximum(np.maximum(low - self.pos[:, 2], self.pos[:, 2] - high), 0)
        return 1 + towards + beams + mover_logs - ref.HEIGHT_WEIGHT * outside**2


def rotate(quat: Array, turn_b: Array) -> Array:
    """Return the attitudes after a rotation by the vectors `turn_b` in the body frame."""
    angle = np.linalg.norm(turn_b, axis=-1, keepdims=True)
    v = np.sinc(angle / (2 * np.pi)).astype(np.float32) * turn_b / 2
    w = np.cos(angle / 2)
    qv, qw = quat[:, :3], quat[:, 3:]
    vector = qw * v + w * qv + np.cross(qv, v)
    return unit(np.concatenate([vector, qw * w - (qv * v).sum(-1, keepdims=True)], -1))


def cast(grid: npt.NDArray[np.uint8], slot: Ints, pos: Array, yaw: Array) -> Array:
    """Return the beam lengths [N, 36, 4]: all azimuths walk the grid at once, each for its four elevations.

    A walk leaps by the free distance stored in a cell, goes cell by cell next to columns (Amanatides & Woo 1987), and is
    dropped when its beams have ended. Positions are in cells, distances in metres.
    """
    angle = (yaw[:, None] + AROUND).ravel()
    dx, dy = (np.where(np.abs(d) < 1e-9, np.float32(1e-9), d) for d in (np.cos(angle), np.sin(angle)))
    x, y, z = (np.repeat(pos[:, k], ref.AZIMUTHS) for k in range(3))
    limit = reach_to_ground(x, y, z, dx, dy)  # horizontal reach of each beam so far
    end = limit.max(1)
    ray = np.arange(len(x))
    base = np.repeat(slot * ref.CELLS**2, ref.AZIMUTHS)
    x, y, dx, dy = (x + ref.HALF) / CELL, (y + ref.HALF) / CELL, dx / CELL, dy / CELL
    s, ix, iy = np.zeros_like(x), np.floor(x), np.floor(y)
    stride = 1 / np.maximum(np.abs(dx), np.abs(dy))
    walking = np.flatnonzero(on_map(ix, iy))
    while walking.size:
        lanes: tuple[Any, ...] = (ray, base, x, y, dx, dy, stride, s, ix, iy, end)
        if walking.size < ray.size:
            ray, base, x, y, dx, dy, stride, s, ix, iy, end = (lane[walking] for lane in lanes)
        value = grid[base + (ix * ref.CELLS + iy).astype(np.int64)]
        tx = (ix + (dx > 0) - x) / dx
        ty = (iy + (dy > 0) - y) / dy
        leave = np.maximum(np.minimum(tx, ty), s)
        solid = np.flatnonzero(value >= ref.SOLID)
        if solid.size:
            hit = ray[solid]
            height = (value[solid] - np.float32(ref.SOLID)) * np.float32(ref.HEIGHT_STEP)
            limit[hit] = shorten(limit[hit], s[solid], leave[solid], z[hit], height)
            end[solid] = limit[hit].max(1)
        leaps = (value > 1) & (value < ref.SOLID)
        s = np.where(leaps, s + (value - np.float32(1)) * stride, leave)
        across = tx < ty
        ix = np.where(leaps, np.floor(x + s * dx), ix + np.sign(dx) * across)
        iy = np.where(leaps, np.floor(y + s * dy), iy + np.sign(dy) * ~across)
        walking = np.flatnonzero((s < end) & on_map(ix, iy))
    return np.minimum(limit / COSINE, ref.RANGE).reshape(len(pos), ref.AZIMUTHS, 4)


def reach_to_ground(x: Array, y: Array, z: Array, dx: Array, dy: Array) -> Array:
    """Return the horizontal reach of beams [R, 4], limited by range and by the ground, which lies under the map only."""
    limit = np.broadcast_to(ref.RANGE * COSINE, (len(x), 4)).copy()
    for k in np.flatnonzero(SLOPE < 0):
        ground = z / -SLOPE[k]
        over = (np.abs(x + ground * dx) < ref.HALF) & (np.abs(y + ground * dy) < ref.HALF)
        limit[:, k] = np.where(over, np.minimum(limit[:, k], ground), limit[:, k])
    return limit


def on_map(ix: Array, iy: Array) -> Bools:
    return (ix >= 0) & (iy >= 0) & (ix < ref.CELLS) & (iy < ref.CELLS)


def shorten(limit: Array, enter: Array, leave: Array, z: Array, height: Array) -> Array:
    """Return the reach of four beams after crossing a column between two distances: its side, its top, or as before."""
    enter, leave, z, height = (a[:, None] for a in (enter, leave, z, height))
    below = z + enter * SLOPE < height
    top = np.where(SLOPE < 0, (height - z) / np.where(SLOPE < 0, SLOPE, -1), np.inf)
    reach = np.where(below, enter, np.where(top <= leave, top, np.inf))
    return np.where(enter < limit, np.minimum(limit, reach), limit).astype(np.float32)
