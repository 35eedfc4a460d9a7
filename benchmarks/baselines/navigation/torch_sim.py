"""The navigation step in torch: whole-tensor operations over all drones, float32, with torch's own threads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.baselines.navigation import plain_step as ref
from benchmarks.baselines.navigation.plain_step import Snapshot

Result = dict[str, Tensor]

MIX = torch.as_tensor(ref.mixer())
UNMIX = torch.linalg.inv(MIX)
INERTIA = torch.tensor(ref.INERTIA)
ATTITUDE_GAIN = torch.tensor(ref.ATTITUDE_GAIN)
RATE_GAIN = torch.tensor(ref.RATE_GAIN)
GRAVITY = torch.tensor([0.0, 0.0, ref.GRAVITY])
AROUND = 2 * math.pi / ref.AZIMUTHS * torch.arange(ref.AZIMUTHS)
SLOPE = torch.deg2rad(torch.tensor(ref.ELEVATIONS_DEG)).tan()
COSINE = torch.deg2rad(torch.tensor(ref.ELEVATIONS_DEG)).cos()


def unit(v: Tensor) -> Tensor:
    return v / v.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def rotation(q: Tensor) -> Tensor:
    """Return the rotation from body to world, [N, 3, 3]."""
    x, y, z, w = q.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
        2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
        2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).view(-1, 3, 3)


def turn(v: Tensor, axis: Tensor, back: bool = False) -> Tensor:
    """Rotate vectors [N, ..., 3] from the world into the frame whose x axis is `axis` [N, 2], or back."""
    shape = (-1, *[1] * (v.dim() - 2))
    c, s = axis[:, 0].view(shape), (-axis[:, 1] if back else axis[:, 1]).view(shape)
    x, y, z = v.unbind(-1)
    return torch.stack([c * x + s * y, c * y - s * x, z], -1)


class TorchSim:
    """Drones of a snapshot, which `step` advances."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.load(snapshot)

    def load(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot."""
        self.pos, self.vel, self.quat, self.rate, self.throttle, self.start, self.goal = (
            torch.as_tensor(getattr(snapshot, name)).clone()
            for name in ("pos", "vel", "quat", "rate", "throttle", "start", "goal")
        )
        self.slot, self.steps = torch.as_tensor(snapshot.slot), torch.as_tensor(snapshot.step).clone()
        self.grid = torch.as_tensor(snapshot.grid).view(-1)
        kind = torch.arange(snapshot.movers)
        self.width = 0.25 * (kind % 4 + 1)
        self.standing = kind % 8 >= 4
        self.axis = unit(self.goal[:, :2] - self.start[:, :2])

    def step(self, action: Tensor, crowd_pos: Tensor, crowd_vel: Tensor) -> Result:
        """Fly one decision of one physics step among these obstacles; return observation, reward and flags."""
        command = turn(2 * ref.SPEED_LIMIT * action.clamp(0, 1) - ref.SPEED_LIMIT, self.axis, back=True)
        self.fly(command)
        self.steps += 1
        distance = cast(self.grid, self.slot, self.pos, torch.atan2(self.rot[:, 1, 0], self.rot[:, 0, 0]))
        offset = crowd_pos[self.slot] - self.pos[:, None]
        flat = torch.hypot(offset[..., 0], offset[..., 1])
        obstacles, mover_logs = self.nearest(offset, flat, crowd_vel)
        terminated = (distance.amin((1, 2)) < ref.RADIUS) | self.hits_mover(offset, flat)
        terminated |= (self.pos[:, 2] < ref.MIN_HEIGHT) | (self.pos[:, 2] > ref.MAX_HEIGHT)
        return {
            "state": self.observe_self(),
            "lidar": (ref.RANGE - distance)[:, None],
            "dynamic_obstacle": obstacles[:, None],
            "reward": self.reward(distance, mover_logs),
            "terminated": terminated,
            "truncated": ~terminated & (self.steps >= ref.MAX_STEPS),
        }

    def fly(self, command: Tensor) -> None:
        """Make one physics step under Lee's controller (Lee, Leok & McClamroch, CDC 2010), without position and yaw hold."""
        rot = rotation(self.quat)
        acc = ref.VELOCITY_GAIN * (command - self.vel) + GRAVITY
        b3 = unit(acc)
        heading = torch.cat([unit(rot[:, :2, 0]), torch.zeros_like(acc[:, :1])], -1)
        b2 = unit(torch.linalg.cross(b3, heading))
        desired = torch.stack([torch.linalg.cross(b2, b3), b2, b3], -1)
        skew = desired.transpose(1, 2) @ rot
        skew = 0.5 * (skew - skew.transpose(1, 2))
        error = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1)
        torque = -ATTITUDE_GAIN * error - RATE_GAIN * self.rate
        lift = ref.MASS * (acc * rot[:, :, 2]).sum(-1, keepdim=True)
        wanted = torch.cat([torque, lift], -1) @ UNMIX.T
        target = (wanted / ref.MAX_THRUST).clamp(0, 1).sqrt()
        self.throttle = torch.lerp(self.throttle, target, ref.ROTOR_FILTER)
        wrench = ref.MAX_THRUST * self.throttle**2 @ MIX.T
        keep = 1 - ref.DAMPING * ref.DT
        spin = (wrench[:, :3] - torch.linalg.cross(self.rate, INERTIA * self.rate)) / INERTIA
        self.rate = (self.rate + spin * ref.DT) * keep
        push = rot[:, :, 2] * wrench[:, 3:] / ref.MASS - GRAVITY
        self.vel = (self.vel + push * ref.DT) * keep
        self.pos = self.pos + self.vel * ref.DT
        self.quat = rotate(self.quat, self.rate * ref.DT)
        self.rot = rotation(self.quat)

    def observe_self(self) -> Tensor:
        to_goal = self.goal - self.pos
        flat = to_goal[:, :2].norm(dim=-1, keepdim=True)
        return torch.cat([turn(unit(to_goal), self.axis), flat, to_goal[:, 2:], turn(self.vel, self.axis)], -1)

    def nearest(self, offset: Tensor, flat: Tensor, vel: Tensor) -> tuple[Tensor, Tensor]:
        """Return the five nearest obstacles within range [N, 5, 10], and the mean log distance to their surfaces [N]."""
        n = len(offset)
        if offset.shape[1] < ref.NEAREST:
            return torch.zeros(n, ref.NEAREST, 10), torch.full((n,), math.log(ref.RANGE))
        away, pick = flat.topk(ref.NEAREST, dim=1, largest=False)
        near = offset.gather(1, pick[..., None].expand(-1, -1, 3))
        boxes = (~self.standing[pick]).float()
        near = torch.cat([near[..., :2], near[..., 2:] * boxes[..., None]], -1)
        present = away <= ref.RANGE
        columns = [
            turn(unit(near), self.axis), away[..., None], near[..., 2:], turn(vel[self.slot[:, None], pick], self.axis),
            (pick % 4).float()[..., None], boxes[..., None],
        ]  # fmt: skip
        surface = (near.norm(dim=-1) - 0.5 * self.width[pick]).clamp(1e-6, ref.RANGE)
        logs = torch.where(present, surface, ref.RANGE).log().mean(-1)
        return torch.cat(columns, -1) * present[..., None], logs

    def hits_mover(self, offset: Tensor, flat: Tensor) -> Tensor:
        level = self.standing | (offset[..., 2].abs() <= 0.5 + ref.RADIUS)
        return ((flat <= 0.5 * self.width + ref.RADIUS) & level).any(1)

    def reward(self, distance: Tensor, mover_logs: Tensor) -> Tensor:
        """Return NavRL's reward."""
        towards = (self.vel * unit(self.goal - self.pos)).sum(-1)
        beams = distance.clamp(min=1e-6).log().mean((1, 2))
        ends = torch.stack([self.start[:, 2], self.goal[:, 2]])
        z = self.pos[:, 2]
        outside = torch.maximum(ends.amin(0) - 0.2 - z, z - ends.amax(0) - 0.2).clamp(min=0)
        return 1 + towards + beams + mover_logs - ref.HEIGHT_WEIGHT * outside**2


def rotate(quat: Tensor, turn_b: Tensor) -> Tensor:
    """Return the attitudes after a rotation by the vectors `turn_b` in the body frame."""
    angle = turn_b.norm(dim=-1, keepdim=True)
    v = torch.sinc(angle / (2 * math.pi)) * turn_b / 2
    w = torch.cos(angle / 2)
    qv, qw = quat[:, :3], quat[:, 3:]
    vector = qw * v + w * qv + torch.linalg.cross(qv, v)
    return unit(torch.cat([vector, qw * w - (qv * v).sum(-1, keepdim=True)], -1))


def cast(grid: Tensor, slot: Tensor, pos: Tensor, yaw: Tensor) -> Tensor:
    """Return the beam lengths [N, 36, 4]: all azimuths walk the grid at once, each for its four elevations.

    A walk leaps by the free distance stored in a cell, goes cell by cell next to columns (Amanatides & Woo 1987), and is
    dropped when its beams have ended. Positions are in cells, distances in metres.
    """
    angle = (yaw[:, None] + AROUND).flatten()
    dx, dy = (torch.where(d.abs() < 1e-9, 1e-9, d) for d in (angle.cos(), angle.sin()))
    x, y, z = (pos[:, k].repeat_interleave(ref.AZIMUTHS) for k in range(3))
    limit = reach_to_ground(x, y, z, dx, dy)  # horizontal reach of each beam so far
    end = limit.amax(1)
    ray = torch.arange(len(x))
    base = (slot * ref.CELLS**2).repeat_interleave(ref.AZIMUTHS)
    x, y, dx, dy = (x + ref.HALF) / ref.CELL, (y + ref.HALF) / ref.CELL, dx / ref.CELL, dy / ref.CELL
    s, ix, iy = torch.zeros_like(x), x.floor(), y.floor()
    stride = 1 / torch.maximum(dx.abs(), dy.abs())
    walking = on_map(ix, iy).nonzero().flatten()
    while len(walking):
        lanes = (ray, base, x, y, dx, dy, stride, s, ix, iy, end)
        if len(walking) < len(ray):
            ray, base, x, y, dx, dy, stride, s, ix, iy, end = (lane[walking] for lane in lanes)
        value = grid[base + (ix * ref.CELLS + iy).long()].float()
        tx = (ix + (dx > 0) - x) / dx
        ty = (iy + (dy > 0) - y) / dy
        leave = torch.maximum(torch.minimum(tx, ty), s)
        solid = (value >= ref.SOLID).nonzero().flatten()
        if len(solid):
            hit = ray[solid]
            height = (value[solid] - ref.SOLID) * ref.HEIGHT_STEP
            limit[hit] = shorten(limit[hit], s[solid], leave[solid], z[hit], height)
            end[solid] = limit[hit].amax(1)
        leaps = (value > 1) & (value < ref.SOLID)
        s = torch.where(leaps, s + (value - 1) * stride, leave)
        across = tx < ty
        ix = torch.where(leaps, (x + s * dx).floor(), ix + dx.sign() * across)
        iy = torch.where(leaps, (y + s * dy).floor(), iy + dy.sign() * ~across)
        walking = ((s < end) & on_map(ix, iy)).nonzero().flatten()
    return (limit / COSINE).clamp(max=ref.RANGE).view(len(pos), ref.AZIMUTHS, 4)


def reach_to_ground(x: Tensor, y: Tensor, z: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Return the horizontal reach of beams [R, 4], limited by range and by the ground, which lies under the map only."""
    limit = (ref.RANGE * COSINE).repeat(len(x), 1)
    for k in (SLOPE < 0).nonzero().flatten().tolist():
        ground = z / -SLOPE[k]
        over = ((x + ground * dx).abs() < ref.HALF) & ((y + ground * dy).abs() < ref.HALF)
        limit[:, k] = torch.where(over, torch.minimum(limit[:, k], ground), limit[:, k])
    return limit


def on_map(ix: Tensor, iy: Tensor) -> Tensor:
    return (ix >= 0) & (iy >= 0) & (ix < ref.CELLS) & (iy < ref.CELLS)


def shorten(limit: Tensor, enter: Tensor, leave: Tensor, z: Tensor, height: Tensor) -> Tensor:
    """Return the reach of four beams after crossing a column between two distances: its side, its top, or as before."""
    enter, leave, z, height = (a[:, None] for a in (enter, leave, z, height))
    below = z + enter * SLOPE < height
    top = torch.where(SLOPE < 0, (height - z) / torch.where(SLOPE < 0, SLOPE, -1.0), math.inf)
    reach = torch.where(below, enter, torch.where(top <= leave, top, math.inf))
    return torch.where(enter < limit, torch.minimum(limit, reach), limit)
