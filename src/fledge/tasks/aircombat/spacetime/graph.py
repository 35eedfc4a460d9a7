"""The space-time graph of one moment of a duel, as plain data that a display draws: `Moment.tell(frame)`.

    range_m, closing        how far apart, and how fast that shrinks, m/s
    times_s                 of all curves; s from now
    sides                   blue and red, for each
        shot                R_max, R_tr, R_ne of its shot at the other, m, and what a shot now would do, in words
        decide_s            how long it may keep its course until turning away does not save it from a shot; None: for ever
        rings               the same ranges by direction, at an enemy who flies as he does now
        reach_m             how far its missile, fired now, gets along the line to the enemy; None once it is spent
        fan                 the same in all directions, every few seconds
        curves              where it gets to by each manoeuvre: places, distance from the enemy's place now, and whether a shot
                            that the enemy fires now kills it
        incoming            missiles that come for it: their way if it holds, what becomes of each manoeuvre, and how long it
                            may wait with turning away
        verdict             how it stands, in a word (`level`) and a sentence

Everything is flown out with the simulator's own missile, but for ranges and times to decide, which come from the table.
Positions in m, x east and y north; directions in degrees, counter-clockwise from east.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import warp as wp
from torch import Tensor

from fledge.core.errors import InputError
from fledge.envs.launch import Call
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.spacetime import curves, verdict
from fledge.tasks.aircombat.spacetime.envelope import RUDDERS, Envelope
from fledge.tasks.aircombat.spacetime.curves import Shots as Cases, trace_shots as foresee_shots, judge_pairs
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre
from fledge.tasks.aircombat.spacetime.store import load_table

NAMES = ("blue", "red")
MANOEUVRES = {
    "hold": Manoeuvre.HOLD,
    "hard left": Manoeuvre.HARD_LEFT,
    "hard right": Manoeuvre.HARD_RIGHT,
    "turn away": Manoeuvre.AWAY,
}
HORIZON_S, EVERY_S, FAN_EVERY = 60, 1.0, 10
FAN_DEG = np.arange(0.0, 181.0, 15.0)  # from the nose, to the left; to the right it is the same
REACH_DT_S = 0.25  # arcs are exact: long steps will do
RING_DEG = np.arange(0.0, 360.0, 6.0)
WAITS_S = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20)  # how long turning away is put off, to see how long it may be
NEEDED = ("pos", "heading", "speed", "missile_pos", "missile_heading", "missile_speed", "missile_alive")
NEVER_S = 1e5


class Moment:
    """Makes graphs of one world, one after the other.

    Args:
        cfg: The duel's settings.
    """

    def __init__(self, cfg: AircombatConfig | None = None) -> None:
        self.envelope = Envelope(cfg, num_threads=1)
        self.cfg, self.launcher = self.envelope.cfg, self.envelope.launcher
        self.table = load_table(self.cfg, "cpu")
        self.points = int(HORIZON_S / EVERY_S) + 1
        self.steps = max(1, round(EVERY_S / self.cfg.dt_s))
        self.dt = EVERY_S / self.steps

    def close(self) -> None:
        """Stop the worker threads."""
        self.envelope.close()

    def tell(self, frame: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The graph of what `Task.snapshot` shows of one fight.

        Raises:
            InputError: when that is no duel.
        """
        seen = read_frame(frame)
        pos, heading, speed = seen["pos"], seen["heading"], seen["speed"]
        apart = pos[1] - pos[0]
        away = float(np.hypot(*apart))
        line = apart / max(away, 1.0)
        velocity = speed[:, None] * np.stack([np.cos(heading), np.sin(heading)], 1)
        ranges, decide = self._judge(seen)
        flown = self._foresee(seen)
        reach, fans = self._reach(seen)
        rings = self._rings(seen)
        sides: list[dict[str, Any]] = []
        for side in (0, 1):
            curves_here, incoming = flown[side]
            shot = dict(zip(("r_max_m", "r_tr_m", "r_ne_m"), _rounded(ranges[side]), strict=True))
            told = {
                "name": NAMES[side],
                "shot": shot | {"words": verdict.of_shot(away, shot)},
                "decide_s": None if decide[side] > NEVER_S else round(float(decide[side]), 1),
                "rings": rings[side],
                "reach_m": reach[side],
                "fan": {"off_nose_deg": FAN_DEG.tolist(), "every_s": FAN_EVERY * EVERY_S, "m": fans[side]},
                "curves": curves_here,
                "incoming": incoming,
            }
            sides.append(told)
        for side, told in enumerate(sides):
            told["verdict"] = verdict.verdict(told, away, sides[1 - side]["shot"])
        return {
            "range_m": round(away, 1),
            "closing": round(float(line @ (velocity[0] - velocity[1])), 1),
            "times_s": (np.arange(self.points) * EVERY_S).tolist(),
            "sides": sides,
        }

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _judge(self, seen: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Ranges of both sides' shots [2, 3], and both times to decide [2]."""
        places = [_floats(_place(seen["pos"][side], seen["heading"][side])[None], wp.vec4) for side in (0, 1)]
        ranges, times = torch.empty(1, 2, 3), torch.empty(1, 2)
        args = [self.envelope.physics, self.table, *places, _floats(seen["speed"][None], wp.vec2)]
        args += [wp.from_torch(ranges, dtype=wp.vec3), wp.from_torch(times, dtype=wp.vec2)]
        self._run(judge_pairs, args, 1)
        return ranges[0].numpy(), times[0].numpy()

    def _rings(self, seen: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """Ranges of both sides' shots by direction."""
        around = np.degrees(seen["heading"])
        own = np.repeat(seen["speed"], len(RING_DEG))
        off = np.concatenate([RING_DEG - around[side] for side in (0, 1)])
        aspect = np.concatenate([RING_DEG + 180.0 - around[1 - side] for side in (0, 1)])
        found = self.envelope.lookup(
            torch.from_numpy(own),
            torch.from_numpy(np.roll(own, len(RING_DEG))),
            torch.from_numpy(off),
            torch.from_numpy(aspect),
        )
        both = {name: value.reshape(2, -1) for name, value in found.items()}
        return [
            {"directions_deg": RING_DEG.tolist(), **{name: _rounded(value[side]) for name, value in both.items()}}
            for side in (0, 1)
        ]

    def _reach(self, seen: Mapping[str, np.ndarray]) -> tuple[list[list[float | None]], list[list[list[float | None]]]]:
        """How far both sides' missiles get: along the line to the other [2][time], and all around [2][time][direction]."""
        lines, fans = [], []
        for side in (0, 1):
            apart = seen["pos"][1 - side] - seen["pos"][side]
            ahead = math.degrees(seen["heading"][side])
            directions = np.concatenate([[math.degrees(math.atan2(apart[1], apart[0])) - ahead], FAN_DEG])
            found = self._missile_reach(float(seen["speed"][side]), directions)
            lines.append(_rounded(found[0]))
            fans.append([_rounded(row) for row in found[1:, ::FAN_EVERY].T])
        return lines, fans

    def _missile_reach(self, speed: float, directions_deg: np.ndarray) -> Tensor:
        """As `Envelope.missile_reach`, with all its turns in one launch."""
        count = len(directions_deg)
        wanted = torch.deg2rad(torch.from_numpy(directions_deg).float()).contiguous()
        out = torch.empty(len(RUDDERS), count, self.points)
        calls, steps = [], round(EVERY_S / REACH_DT_S)
        for number, rudder in enumerate(RUDDERS):
            args = [self.envelope.physics, speed, rudder, REACH_DT_S, steps, wp.from_torch(wanted)]
            calls.append(Call(curves.reach_missile, [*args, wp.from_torch(out[number])]))
        self.launcher.run(self.launcher.record(calls, count))
        late = torch.arange(self.points) * EVERY_S > self.envelope.physics.motor.burn
        best = torch.where((out < 0) & late, -torch.inf, out).amax(0)
        return torch.where(torch.isinf(best), torch.nan, best.clamp(min=0.0) + self.envelope.physics.motor.kill_radius)

    def _foresee(self, seen: Mapping[str, np.ndarray]) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """For each side, its curves and what comes for it."""
        plan = Plan(seen, self.cfg.missile.burn_s)
        rows = [plan.add_side(side) for side in (0, 1)]
        ways, ends = torch.empty(len(plan.rows), self.points, 4), torch.empty(len(plan.rows), 3)
        args = [self.envelope.physics, self.dt, self.steps, plan.cases()]
        args += [wp.from_torch(ways, dtype=wp.vec4), wp.from_torch(ends, dtype=wp.vec3)]
        self._run(foresee_shots, args, len(plan.rows))
        return [plan.told(side, rows[side], ways.numpy(), ends.numpy()) for side in (0, 1)]

    def _run(self, kernel: Any, args: Sequence[Any], count: int) -> None:
        self.launcher.run(self.launcher.record([Call(kernel, args)], count))


class Plan:
    """The fly-outs of a moment: for each side its manoeuvres against a shot fired now, and against each missile in the air."""

    def __init__(self, seen: Mapping[str, np.ndarray], burn_s: float) -> None:
        self.seen, self.burn_s = seen, burn_s
        self.rows: list[tuple[np.ndarray, float, float, np.ndarray, float, float, int, float]] = []

    def add_side(self, side: int) -> dict[str, Any]:
        """Plan what there is to know about one side; where to find it."""
        seen, enemy = self.seen, 1 - side
        shot = (_place(seen["pos"][enemy], seen["heading"][enemy]), float(seen["speed"][enemy]), self.burn_s)
        found: dict[str, Any] = {"curves": {name: self._add(side, shot, m) for name, m in MANOEUVRES.items()}}
        found["incoming"] = []
        for slot in np.flatnonzero(seen["missile_alive"][enemy]):
            missile = (
                _place(seen["missile_pos"][enemy, slot], seen["missile_heading"][enemy, slot]),
                float(seen["missile_speed"][enemy, slot]),
                float(seen["missile_motor_s"][enemy, slot]),
            )
            fates = {name: self._add(side, missile, m) for name, m in MANOEUVRES.items()}
            waits = [self._add(side, missile, Manoeuvre.AWAY, wait) for wait in WAITS_S]
            found["incoming"].append((int(slot), fates, waits))
        return found

    def _add(self, side: int, missile: tuple[np.ndarray, float, float], manoeuvre: int, delay: float = 0.0) -> int:
        seen = self.seen
        place = _place(seen["pos"][side], seen["heading"][side])
        self.rows.append((*missile, place, float(seen["speed"][side]), float(seen["rudder"][side]), manoeuvre, delay))
        return len(self.rows) - 1

    def cases(self) -> Cases:
        """All of them, for the kernel."""
        columns = [np.array(column) for column in zip(*self.rows, strict=True)]
        cases = Cases()
        names = ("missile", "missile_speed", "burn", "target", "target_speed", "rudder", "manoeuvre", "delay")
        for name, column in zip(names, columns, strict=True):
            kind = wp.int32 if name == "manoeuvre" else wp.vec4 if column.ndim == 2 else wp.float32
            dtype = np.int32 if name == "manoeuvre" else np.float32
            setattr(cases, name, wp.from_torch(torch.from_numpy(column.astype(dtype)), dtype=kind))
        return cases

    def told(
        self, side: int, rows: Mapping[str, Any], ways: np.ndarray, ends: np.ndarray
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Curves and incoming missiles of a side, as plain data."""
        from_there = self.seen["pos"][1 - side]

        def distance(places: np.ndarray) -> list[float | None]:
            return _rounded(np.hypot(*(places - from_there).T))

        shown = []
        for name, row in rows["curves"].items():
            places = ways[row, :, :2]
            shown.append({"name": name, "points": _pairs(places), "distance_m": distance(places), **_fate(ends[row])})
        incoming = []
        for slot, fates, waits in rows["incoming"]:
            last = int(ends[fates["hold"], 1]) + 2
            way = ways[fates["hold"], :last, 2:]
            incoming.append(
                {
                    "slot": slot,
                    "points": _pairs(way),
                    "distance_m": distance(way),
                    "fates": {name: _fate(ends[row]) for name, row in fates.items()},
                    "decide_s": _latest([ends[fates["turn away"]], *ends[waits]], ends[fates["hold"]]),
                }
            )
        return shown, incoming


def _latest(turning: Sequence[np.ndarray], holding: np.ndarray) -> float | None:
    """How long turning away may be put off: 0 if it is too late now, None if it is not needed."""
    if not holding[0]:
        return None
    saved = [wait for wait, end in zip((0, *WAITS_S), turning, strict=True) if not end[0]]
    return float(saved[-1]) if saved else 0.0


def _fate(end: np.ndarray) -> dict[str, Any]:
    killed = bool(end[0] > 0)
    return {"hit_s": round(float(end[1]), 1) if killed else None, "miss_m": 0.0 if killed else round(float(end[2]), 0)}


def read_frame(frame: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entries that a graph needs, checked; what older recordings lack is taken as it most likely was."""
    seen = {name: np.asarray(value) for name, value in frame.items()}
    if missing := [name for name in NEEDED if name not in seen]:
        raise InputError(f"This is no moment of a duel: it has no {', '.join(missing)}.")
    if strange := [name for name in NEEDED if seen[name].dtype.kind not in "fiub"]:
        raise InputError(f"This is no moment of a duel: {', '.join(strange)} is not made of numbers.")
    slots = seen["missile_alive"].shape[1:]
    shapes = {"pos": (2, 2), "heading": (2,), "speed": (2,), "missile_pos": (2, *slots, 2)}
    shapes |= dict.fromkeys(("missile_heading", "missile_speed", "missile_alive"), (2, *slots))
    for name, shape in shapes.items():
        if seen[name].shape != shape or len(slots) != 1 or slots[0] > 64 or not np.isfinite(seen[name]).all():
            raise InputError(f"This is no moment of a duel: {name} has shape {seen[name].shape}, or is not finite.")
    if abs(seen["pos"]).max() > 1e7 or not (0 <= seen["speed"].min() <= seen["speed"].max() < 1e4):
        raise InputError("This is no moment of a duel: a fighter is at the end of the world.")
    unknown = {"missile_motor_s": np.zeros((2, *slots)), "rudder": np.zeros(2)}
    for name, value in unknown.items():
        given = seen.get(name)
        seen[name] = given if given is not None and given.shape == value.shape else value
    return {name: np.nan_to_num(seen[name].astype(np.float64)) for name in (*shapes, *unknown)}


def _place(pos: np.ndarray, heading: float) -> np.ndarray:
    return np.array([pos[0], pos[1], math.cos(heading), math.sin(heading)])


def _floats(values: np.ndarray, dtype: Any) -> Any:
    return wp.from_torch(torch.from_numpy(np.ascontiguousarray(values, np.float32)), dtype=dtype)


def _rounded(values: Any) -> list[float | None]:
    """Whole metres; None where there is nothing."""
    return [None if not math.isfinite(v) else float(round(v)) for v in np.asarray(values).tolist()]


def _pairs(places: np.ndarray) -> list[list[float]]:
    return np.round(places.astype(np.float64)).tolist()
