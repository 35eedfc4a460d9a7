"""Own state, movers, the search over all candidates, and the predictions, as in native/movers.c, search.c, predictions.c."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fledge_runtime.numpy_engine.floats import (
    FAR,
    HALF,
    ONE,
    TWO,
    ZERO,
    F,
    add,
    bands_between,
    cos,
    dot,
    exp,
    hypot,
    in_every_ring,
    scale,
    sin,
    sub,
    to_cell,
)
from fledge_runtime.numpy_engine.local_map import CostToGo, LocalMap

NEAREST, HEADINGS, STRIDE, AROUND = 5, 32, 2, 7
SAME_M, BOX_M = F(0.6), F(1.0)
REACHED, TOUCH, ROUNDING, USUAL_SPEED = F(1000.0), F(0.02), F(1.0e-3), F(1.5)
STUCK_M, IMPATIENCE_S, USUAL_COST = F(0.5), F(2.0), F(6.0)
TURN = F(float(2.0 * np.pi) / HEADINGS)
COURSES = [(cos(TURN * F(h)), sin(TURN * F(h))) for h in range(HEADINGS)]


def read_own(seen: Any) -> SimpleNamespace:
    s, (height, yaw) = seen["state"], seen["pose"]
    away = hypot(s[0], s[1])
    ahead = (s[0] / away, s[1] / away) if away > F(1.0e-6) else (ONE, ZERO)
    pos = (-s[3] * ahead[0], -s[3] * ahead[1], height)
    goal, vel = (ZERO, ZERO, height + s[4]), (s[5], s[6], s[7])
    return SimpleNamespace(pos=pos, vel=vel, acc=(ZERO, ZERO, ZERO), goal=goal, yaw=yaw, ahead=ahead, patience=ONE)


class Movers:
    """The nearest movers: `place` [5, 4] x, y, z, half the width (x is FAR in an empty row), `motion` [5, 4] velocity and half
    the height, `unseen` [5] s."""

    def __init__(self) -> None:
        self.place, self.motion = np.zeros((NEAREST, 4), np.float32), np.zeros((NEAREST, 4), np.float32)
        self.unseen = np.zeros(NEAREST, np.float32)

    def read(self, q: SimpleNamespace, rows: np.ndarray, pos: Any) -> None:
        for k, row in enumerate(rows.reshape(NEAREST, -1)):
            if not row[:3].any():
                self.place[k], self.motion[k] = (FAR, FAR, 0, 0), 0
                continue
            scaled = row[3] / max(hypot(row[0], row[1]), F(1.0e-6))
            half = HALF * BOX_M if row[9] > HALF else FAR
            half_width = F(0.125) * (row[8] + ONE)
            if half < FAR:
                half_width = q.box_width * half_width
            at = add(pos, (scaled * row[0], scaled * row[1], row[4]))
            self.place[k] = (*add(at, scale(row[5:8], q.mover_late_s)), half_width)
            self.motion[k] = (*row[5:8], half)

    def is_seen(self, x: Any, y: Any, z: Any) -> bool:
        p, tall = self.place, self.motion[:, 3] >= FAR
        near = (p[:, 0] < FAR) & (self.unseen == 0) & (tall | (np.abs(p[:, 2] - z) < SAME_M))
        dx, dy = p[:, 0] - x, p[:, 1] - y
        return bool((near & (dx * dx + dy * dy < SAME_M * SAME_M)).any())

    def track(self, q: SimpleNamespace, rows: np.ndarray, pos: Any, fresh: bool) -> None:
        """Read the rows of dynamic_obstacle, and fill empty rows with movers that were seen up to `coast_s` ago."""
        place, motion, unseen = self.place.copy(), self.motion.copy(), self.unseen + q.decision_s
        self.unseen[:] = 0
        self.read(q, rows, pos)
        if fresh or q.coast_s == 0:
            return
        free = 0
        for k in range(NEAREST):
            if not (place[k, 0] < FAR and unseen[k] <= q.coast_s):
                continue
            at = tuple(place[k, n] + q.decision_s * motion[k, n] for n in range(3))
            if self.is_seen(*at):
                continue
            while free < NEAREST and self.place[free, 0] < FAR:
                free += 1
            if free == NEAREST:
                return
            self.place[free], self.motion[free], self.unseen[free] = (*at, place[k, 3]), motion[k], unseen[k]


class Search:
    """The search of one decision. Arrays have the axes candidate C and prediction step T."""

    def __init__(self, q: SimpleNamespace, m: LocalMap, cost: CostToGo, movers: Movers, own: SimpleNamespace) -> None:
        self.q, self.map, self.cost, self.movers, self.own = q, m, cost, movers, own
        v = movers.motion
        speed = np.sqrt(v[:, 0] * v[:, 0] + v[:, 1] * v[:, 1] + v[:, 2] * v[:, 2])
        self.further = q.fast_mover_s * np.maximum(speed - USUAL_SPEED, ZERO)
        away = movers.place[:, 3] + q.body + q.mover_margin + self.further + TWO * TOUCH
        self.reach = np.where(movers.place[:, 0] < FAR, away * away, ZERO)
        column, crowd = self.column_gap(*own.pos), self.nearest_mover(own.pos, own.lead)[0] - TOUCH
        if q.depth_cost > 0:
            column, crowd = max(column, q.body - q.skin), max(crowd, q.body - q.skin)
        self.columns = min(q.body - (ONE - own.patience) * q.skin, column)
        self.crowd = min(q.body, crowd)

    def column_gap(self, x: Any, y: Any, z: Any) -> Any:
        """Return the distances from points to the nearest remembered hits at their heights, m."""
        every = in_every_ring(bands_between(z - self.q.reach_z, z + self.q.reach_z))
        return self.q.ring_m[self.map.rings_at(to_cell(x), to_cell(y), every)]

    def nearest_mover(self, at: Any, t: Any) -> tuple[Any, Any]:
        """Return the distances from points to the nearest mover at times t, m, and by how much less they count for the
        margin."""
        gap = counted = np.broadcast_to(FAR, np.broadcast_shapes(np.shape(at[0]), np.shape(t)))
        for k in np.flatnonzero(self.reach):
            p, v = self.movers.place[k], self.movers.motion[k]
            x, y = p[0] + t * v[0] - at[0], p[1] + t * v[1] - at[1]
            square = x * x + y * y
            near = square < self.reach[k]
            each = np.maximum(np.sqrt(square) - p[3], np.abs(p[2] + t * v[2] - at[2]) - v[3])
            gap = np.where(near, np.minimum(gap, each), gap)
            counted = np.where(near, np.minimum(counted, each - self.further[k]), counted)
        return gap, gap - counted

    def gaps(self, at: Any, t: Any) -> tuple[Any, Any, Any]:
        """Return gaps to columns and movers at points at times t, and by how much less those to movers count; a negative gap
        is a collision."""
        q, own, z = self.q, self.own, at[2]
        inside = ((z >= q.floor) | (z >= own.pos[2])) & ((z <= q.ceiling) | (z <= own.pos[2]))
        mover, less = self.nearest_mover(at, t)
        columns, crowd = self.column_gap(*at) - self.columns, mover - self.crowd
        return np.where(inside, columns, -ONE), np.where(inside, crowd, -ONE), np.where(inside, less, ZERO)

    def nearness(self, gaps: Any, k: Any, patience: Any) -> Any:
        """Return the costs of being near obstacles at prediction steps k."""
        q = self.q
        missing = np.maximum(q.mover_margin - gaps[1] + gaps[2], ZERO)
        return patience * q.price[k] * np.maximum(q.margin - gaps[0], ZERO) + q.mover_price[k] * missing

    def positions(self, commands: Any, brief: int, k: Any) -> Any:
        """Return positions at prediction steps k, a tuple of x, y, z [C, K]; `commands` is a tuple of x, y, z [C, 1]."""
        own = self.own
        f, u = self.q.flat[own.flat, brief, k], self.q.upright[own.upright, brief, k]
        return tuple(
            own.pos[n] + r[..., 0] * own.vel[n] + r[..., 1] * own.acc[n] + r[..., 2] * commands[n]
            for n, r in enumerate((f, f, u))
        )

    def to_go(self, at: Any) -> Any:
        flat, up = self.cost.at(at[0], at[1]), self.own.goal[2] - at[2]
        return np.sqrt(flat * flat + up * up)

    def goal_steps(self, at: Any, may_reach: Any) -> Any:
        """Return the prediction steps at which commands reach the goal if they meet no obstacle, [C]; or else T."""
        away = sub(self.own.goal, at)
        there = (dot(away, away) < self.q.goal_radius * self.q.goal_radius) & may_reach[:, None]
        return np.where(there.any(axis=1), there.argmax(axis=1), self.q.steps)

    def costs(self, commands: Any, brief: int, may_reach: Any) -> Any:
        """Return the costs of commands, [C]."""
        q, steps = self.q, np.arange(self.q.steps)
        t = steps.astype(np.float32) + ONE
        at = self.positions(tuple(c[:, None] for c in commands), brief, steps)
        rest = self.positions((ZERO, ZERO, ZERO), brief, q.steps - 1)
        along, up = q.flat[self.own.flat, brief, -1, 2], q.upright[self.own.upright, brief, -1, 2]
        end = add(rest, tuple(r * c for r, c in zip((along, along, up), commands)))
        goal, t = self.goal_steps(at, may_reach), t * q.step_s
        gaps = self.gaps(at, self.own.lead + t)
        hit, near = (gaps[0] < 0) | (gaps[1] < 0), self.nearness(gaps, steps, self.own.patience)
        cost = self.to_go(end) - self.own.to_go + q.gain  # lost against full speed to the goal
        alive = np.ones(len(cost), bool)
        crashed, deepest = np.zeros(len(cost), bool), np.zeros(len(cost), np.float32)
        for k in range(q.steps):
            if q.depth_cost > 0:
                first = max(q.crash_cost - q.crash_relief * F(k + 1) * q.step_s, ZERO)
                deepest = np.where(alive & hit[:, k], first, deepest)
                crashed |= alive & hit[:, k]
                deeper = deepest - q.depth_cost * np.minimum(gaps[0][:, k], gaps[1][:, k]) * q.fade[k]
                deepest = np.where(crashed & hit[:, k], deeper, deepest)
            else:
                cost = np.where(alive & hit[:, k], max(q.crash_cost - q.crash_relief * t[k], ZERO) + cost, cost)
            alive &= ~hit[:, k]
            cost = np.where(alive & (goal == k), t[k] - REACHED, cost)
            alive &= goal != k
            cost = np.where(alive, cost + near[:, k], cost)
        return np.where(crashed, np.maximum(deepest, cost), cost)

    def cheapest(self) -> tuple[Any, Any, int]:
        """Return the cheapest command, its cost, and 1 if it is brief; of equally cheap commands the first."""
        q, own = self.q, self.own
        ahead, c = (*own.ahead, ZERO), q.commands.T
        commands = (ahead[0] * c[0] - ahead[1] * c[1], ahead[1] * c[0] + ahead[0] * c[1], c[2])
        needed = hypot(own.pos[0], own.pos[1]) - q.goal_radius - ROUNDING
        needed = needed - q.furthest[0] * abs(dot(own.vel, ahead)) - q.furthest[1] * abs(dot(own.acc, ahead))
        may_reach = q.furthest[2] * c[0] >= needed
        costs = np.concatenate([self.costs(commands, brief, may_reach) for brief in range(q.kinds)])
        best = int(costs.argmin())
        if not costs[best] < FAR:
            return (ZERO, ZERO, ZERO), FAR, 0
        brief, k = divmod(best, len(c[0]))
        return tuple(axis[k] for axis in commands), costs[best], brief

    def predictions(self) -> np.ndarray:
        """Return the numbers of `plan` from hover_time on, [130]."""
        q, own = self.q, self.own
        k = np.arange(STRIDE - 1, q.steps - q.steps % STRIDE, STRIDE)
        x, y = np.array(COURSES, np.float32).T
        level = [np.concatenate([q.fast * axis, q.slow * axis, np.zeros(1, np.float32)])[:, None] for axis in (x, y)]
        at = self.positions((*level, ZERO), 0, k)
        at = (at[0], at[1], np.broadcast_to(at[2], at[0].shape))
        gaps = self.gaps(at, own.lead + (k.astype(np.float32) + ONE) * q.step_s)
        hit, cost = (gaps[0] < 0) | (gaps[1] < 0), F(STRIDE) * self.nearness(gaps, k, ONE)
        near, alive = np.zeros(len(hit), np.float32), np.ones(len(hit), bool)
        time = np.ones(len(hit), np.float32)
        for n in range(len(k)):
            time[alive & hit[:, n]] = F(n) / F(len(k))
            alive &= ~hit[:, n]
            near = np.where(alive, near + cost[:, n], near)
        near = near / (near + ONE)
        end = self.positions((q.fast * x, q.fast * y, ZERO), q.kinds - 1, q.steps - 1)
        end = (end[0], end[1], np.broadcast_to(end[2], end[0].shape))
        gain = np.clip((own.to_go - self.to_go(end)) / q.brief_m, -ONE, ONE)
        each = np.stack([time[:HEADINGS], time[HEADINGS:-1], near[:HEADINGS], gain], axis=1)
        return np.array([time[-1], near[-1], *each.reshape(-1)], np.float32)


def patience(q: SimpleNamespace, stay: int) -> Any:
    return exp(min(q.patience_s - F(stay) * q.decision_s, ZERO) / IMPATIENCE_S)
