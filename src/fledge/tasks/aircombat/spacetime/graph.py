"""The space-time graph of one frame of a duel, as plain data for a display: `GraphSolver.solve(frame)`.

    range_m, closing        distance of the sides, and its rate of decrease, m/s
    times_s                 times of the points of all curves, s from now
    sides                   blue and red, for each
        shot                R_max, R_tr, R_ne of its shot at the other, m, and in `words` the effect of a shot now
        decide_s            how long it may hold its course until turning away no longer saves it from a shot; None: no limit
        rings               R_max, R_tr, R_ne by direction, for an enemy with its current speed and course
        reach_m             how far its missile, fired now, gets along the line to the enemy; None once it is spent
        fan                 the same in all directions, every few seconds
        curves              its path by each manoeuvre: positions, distance from the enemy's position now, and whether a shot
                            that the enemy fires now kills it
        incoming            missiles that fly at it: their path if it holds, the result of each manoeuvre, and how long it may
                            wait before turning away
        verdict             a level and a sentence

Ranges and times to decide come from the table; everything else is simulated with the env's own missile. Positions in
m, x east and y north; directions in degrees, counter-clockwise from east.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.core.errors import InputError
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.spacetime.curves import Shots, judge_pairs, trace_shots
from fledge.tasks.aircombat.spacetime.envelope import RANGES, Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre
from fledge.tasks.aircombat.spacetime.store import load_table
from fledge.tasks.aircombat.spacetime.verdict import describe_shot, give_verdict

NAMES = ("blue", "red")
MANOEUVRES = {
    "hold": Manoeuvre.HOLD,
    "hard left": Manoeuvre.HARD_LEFT,
    "hard right": Manoeuvre.HARD_RIGHT,
    "turn away": Manoeuvre.AWAY,
}
HORIZON_S, EVERY_S, FAN_EVERY = 60, 1.0, 10
POINTS = int(HORIZON_S / EVERY_S) + 1
FAN_DEG = np.arange(0.0, 181.0, 15.0)  # from the nose, to the left; the right side is its mirror image
REACH_DT_S = 0.25  # arcs are exact, so steps may be long
RING_DEG = np.arange(0.0, 360.0, 6.0)
WAITS_S = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20)  # delays of turning away that are flown out
NEEDED = ("pos", "heading", "speed", "missile_pos", "missile_heading", "missile_speed", "missile_alive")
NEVER_S = 1e5
FIX = "Pass a frame of an aircombat env or recording."
Seen = Mapping[str, np.ndarray]
Plain = dict[str, Any]


class GraphSolver:
    """Computes the space-time graphs of duels with the physics of one config."""

    def __init__(self, cfg: AircombatConfig | None = None) -> None:
        self.envelope = Envelope(cfg, num_threads=1)
        self.table = load_table(self.envelope.cfg, "cpu")

    def close(self) -> None:
        """Stop the worker threads."""
        self.envelope.close()

    def solve(self, frame: Seen) -> Plain:
        """Return the space-time graph of one frame of a fight, which is one env's `TaskView.snapshot`.

        Raises:
            InputError: if the frame is not one of a duel.
        """
        seen = read_frame(frame)
        pos, heading, speed = seen["pos"], seen["heading"], seen["speed"]
        apart = pos[1] - pos[0]
        away = float(np.hypot(*apart))
        line = apart / max(away, 1.0)
        velocity = speed[:, None] * np.stack([np.cos(heading), np.sin(heading)], 1)
        ranges, decide = self._judge(seen)
        curves, incoming = self._trace(seen)
        reach, fans = self._reach(seen)
        rings = self._rings(seen)
        shots = [dict(zip(RANGES, _rounded(ranges[side]), strict=True)) for side in (0, 1)]
        sides: list[Plain] = [
            {
                "name": NAMES[side],
                "shot": shot | {"words": describe_shot(away, shot)},
                "decide_s": None if decide[side] > NEVER_S else round(float(decide[side]), 1),
                "rings": rings[side],
                "reach_m": reach[side],
                "fan": {"off_nose_deg": FAN_DEG.tolist(), "every_s": FAN_EVERY * EVERY_S, "m": fans[side]},
                "curves": curves[side],
                "incoming": incoming[side],
            }
            for side, shot in enumerate(shots)
        ]
        for side, told in enumerate(sides):
            level, text = give_verdict(told, away, shots[1 - side])
            told["verdict"] = {"level": level, "text": text}
        return {
            "range_m": round(away, 1),
            "closing": round(float(line @ (velocity[0] - velocity[1])), 1),
            "times_s": (np.arange(POINTS) * EVERY_S).tolist(),
            "sides": sides,
        }

    def _judge(self, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
        """Return R_max, R_tr, R_ne of each side's shot, [2, 3] m, and each side's time to decide (see `observe`), [2] s."""
        places = [_array(_place(seen["pos"][side], seen["heading"][side])[None], wp.vec4) for side in (0, 1)]
        ranges, times = torch.empty(1, 2, 3), torch.empty(1, 2)
        args = [self.envelope.physics, self.table, *places, _array(seen["speed"][None], wp.vec2)]
        args += [wp.from_torch(ranges, dtype=wp.vec3), wp.from_torch(times, dtype=wp.vec2)]
        self.envelope.run(judge_pairs, args, 1)
        return ranges[0].numpy(), times[0].numpy()

    def _rings(self, seen: Seen) -> list[Plain]:
        """Return for each side R_max, R_tr and R_ne of its shots, m, in all directions."""
        around = np.degrees(seen["heading"])
        own = np.repeat(seen["speed"], len(RING_DEG))
        off = np.concatenate([RING_DEG - around[side] for side in (0, 1)])
        aspect = np.concatenate([RING_DEG + 180.0 - around[1 - side] for side in (0, 1)])
        columns = (own, np.roll(own, len(RING_DEG)), off, aspect)
        found = self.envelope.lookup(*(torch.from_numpy(column) for column in columns))
        both = {name: value.reshape(2, -1) for name, value in found.items()}
        return [
            {"directions_deg": RING_DEG.tolist(), **{name: _rounded(value[side]) for name, value in both.items()}}
            for side in (0, 1)
        ]

    def _reach(self, seen: Seen) -> tuple[list[Any], list[Any]]:
        """Return how far each side's missile gets, m: towards the enemy, and in all directions.

        The lists are indexed [side][time] and [side][time][direction].
        """
        lines, fans = [], []
        for side in (0, 1):
            apart = seen["pos"][1 - side] - seen["pos"][side]
            ahead = math.degrees(seen["heading"][side])
            directions = np.concatenate([[math.degrees(math.atan2(apart[1], apart[0])) - ahead], FAN_DEG])
            speed = float(seen["speed"][side])
            found = self.envelope.missile_reach(speed, torch.from_numpy(directions), HORIZON_S, EVERY_S, REACH_DT_S)
            found = found.clamp(min=self.envelope.physics.motor.kill_radius)
            lines.append(_rounded(found[0]))
            fans.append([_rounded(row) for row in found[1:, ::FAN_EVERY].T])
        return lines, fans

    def _trace(self, seen: Seen) -> tuple[list[list[Plain]], list[list[Plain]]]:
        """Return two lists with an entry per side: its path by each manoeuvre, and the missiles that fly at it."""
        batch = ShotBatch(seen, self.envelope.cfg.missile.burn_s)
        curves = [batch.add_manoeuvres(side, None) for side in (0, 1)]
        incoming = [batch.add_incoming(side) for side in (0, 1)]
        batch.fly(self.envelope)
        return (
            [batch.curves(side, curves[side]) for side in (0, 1)],
            [[batch.incoming(side, *missile) for missile in incoming[side]] for side in (0, 1)],
        )


class ShotBatch:
    """Simulated shots at each side and manoeuvre: one that the enemy fires now, and one for each missile in flight.

    `add_manoeuvres` and `add_incoming` collect shots, `fly` simulates them, `curves` and `incoming` return plain data.
    """

    def __init__(self, seen: Seen, burn_s: float) -> None:
        self.seen, self.burn_s = seen, burn_s
        self.rows: list[tuple[np.ndarray, float, float, np.ndarray, float, float, int, float]] = []
        self.paths, self.ends = np.zeros((0, POINTS, 4)), np.zeros((0, 3))

    def add_manoeuvres(self, side: int, slot: int | None) -> dict[str, int]:
        """Add a shot at a side for each of its manoeuvres, and return the index of each shot by name of the manoeuvre.

        The missile is the enemy's missile `slot`, or one that the enemy fires now if `slot` is None.
        """
        return {name: self._add(side, slot, manoeuvre) for name, manoeuvre in MANOEUVRES.items()}

    def add_incoming(self, side: int) -> list[tuple[int, dict[str, int], list[int]]]:
        """Add shots for each missile that flies at a side: one per manoeuvre, and one per delay before turning away.

        Return for each missile its slot, the index of each manoeuvre's shot, and the shots' indices for the delays WAITS_S.
        """
        slots = np.flatnonzero(self.seen["missile_alive"][1 - side]).tolist()
        return [
            (slot, self.add_manoeuvres(side, slot), [self._add(side, slot, Manoeuvre.AWAY, wait) for wait in WAITS_S])
            for slot in slots
        ]

    def _add(self, side: int, slot: int | None, manoeuvre: int, delay: float = 0.0) -> int:
        seen, enemy = self.seen, 1 - side
        at: Any = enemy if slot is None else (enemy, slot)
        kind = "" if slot is None else "missile_"
        missile = _place(seen[f"{kind}pos"][at], seen[f"{kind}heading"][at])
        burn = self.burn_s if slot is None else float(seen["missile_motor_s"][at])
        target = _place(seen["pos"][side], seen["heading"][side])
        speeds = float(seen[f"{kind}speed"][at]), float(seen["speed"][side])
        rudder = float(seen["rudder"][side])
        self.rows.append((missile, speeds[0], burn, target, speeds[1], rudder, manoeuvre, delay))
        return len(self.rows) - 1

    def fly(self, envelope: Envelope) -> None:
        shots = Shots()
        names = ("missile", "missile_speed", "burn", "target", "target_speed", "rudder", "manoeuvre", "delay")
        for name, column in zip(names, zip(*self.rows, strict=True), strict=True):
            values = np.array(column)
            kind = wp.int32 if name == "manoeuvre" else wp.vec4 if values.ndim == 2 else wp.float32
            setattr(shots, name, _array(values, kind, np.int32 if name == "manoeuvre" else np.float32))
        paths, ends = torch.empty(len(self.rows), POINTS, 4), torch.empty(len(self.rows), 3)
        steps = max(1, round(EVERY_S / envelope.cfg.dt_s))
        args = [envelope.physics, EVERY_S / steps, steps, shots, wp.from_torch(paths, dtype=wp.vec4)]
        envelope.run(trace_shots, [*args, wp.from_torch(ends, dtype=wp.vec3)], len(self.rows))
        self.paths, self.ends = paths.numpy(), ends.numpy()

    def curves(self, side: int, rows: Mapping[str, int]) -> list[Plain]:
        """Return a side's path and the result of the shot for each manoeuvre; `rows` is the result of `add_manoeuvres`."""
        return [
            {"name": name, **self._path(side, self.paths[row, :, :2]), **self._result(row)}
            for name, row in rows.items()
        ]

    def incoming(self, side: int, slot: int, rows: Mapping[str, int], waits: Sequence[int]) -> Plain:
        """Return a missile that flies at a side: its path, the result of each manoeuvre, and the time left to turn away.

        `slot`, `rows` and `waits` are one entry of the result of `add_incoming`.
        """
        hold = rows["hold"]
        last = int(self.ends[hold, 1]) + 2
        turns = zip((0, *WAITS_S), (rows["turn away"], *waits), strict=True)
        saved = [wait for wait, row in turns if not self.ends[row, 0]]
        return {
            "slot": slot,
            **self._path(side, self.paths[hold, :last, 2:]),
            "fates": {name: self._result(row) for name, row in rows.items()},
            "decide_s": None if not self.ends[hold, 0] else float(saved[-1]) if saved else 0.0,
        }

    def _path(self, side: int, places: np.ndarray) -> Plain:
        distance = np.hypot(*(places - self.seen["pos"][1 - side]).T)
        return {"points": np.round(places.astype(np.float64)).tolist(), "distance_m": _rounded(distance)}

    def _result(self, row: int) -> Plain:
        killed, time, miss = self.ends[row].tolist()
        return {"hit_s": round(time, 1) if killed else None, "miss_m": 0.0 if killed else round(miss, 0)}


def read_frame(frame: Seen) -> dict[str, np.ndarray]:
    """Check a frame and return its entries; entries that older recordings lack are 0."""
    seen = {name: np.asarray(value) for name, value in frame.items()}
    if missing := [name for name in NEEDED if name not in seen]:
        raise InputError(f"This is not a frame of a duel: it lacks {', '.join(missing)}. {FIX}")
    if strange := [name for name in NEEDED if seen[name].dtype.kind not in "fiub"]:
        raise InputError(f"This is not a frame of a duel: {', '.join(strange)} must be numeric. {FIX}")
    slots = seen["missile_alive"].shape[1:]
    shapes = {"pos": (2, 2), "heading": (2,), "speed": (2,), "missile_pos": (2, *slots, 2)}
    shapes |= dict.fromkeys(("missile_heading", "missile_speed", "missile_alive"), (2, *slots))
    for name, shape in shapes.items():
        if seen[name].shape != shape or len(slots) != 1 or slots[0] > 64:
            raise InputError(
                f"This is not a frame of a duel: {name} has shape {seen[name].shape}, but must have {shape}, with at most 64 "
                f"missiles per side. {FIX}"
            )
        if not np.isfinite(seen[name]).all():
            raise InputError(f"This is not a frame of a duel: {name} must be finite, but has NaN or infinity. {FIX}")
    if abs(seen["pos"]).max() > 1e7 or not (0 <= seen["speed"].min() <= seen["speed"].max() < 1e4):
        raise InputError(
            f"This is not a frame of a duel: positions must be within 10,000 km and speeds below 10,000 m/s. {FIX}"
        )
    unknown = {"missile_motor_s": np.zeros((2, *slots)), "rudder": np.zeros(2)}
    seen |= {name: value for name, value in unknown.items() if name not in seen or seen[name].shape != value.shape}
    return {name: np.nan_to_num(seen[name].astype(np.float64)) for name in (*shapes, *unknown)}


def _place(pos: np.ndarray, heading: float) -> np.ndarray:
    return np.array([pos[0], pos[1], math.cos(heading), math.sin(heading)])


def _array(values: np.ndarray, dtype: Any, kind: Any = np.float32) -> Any:
    return wp.from_torch(torch.from_numpy(np.ascontiguousarray(values, kind)), dtype=dtype)


def _rounded(values: Any) -> list[float | None]:
    """Return values rounded to whole metres; None for values that are not finite."""
    return [None if not math.isfinite(v) else float(round(v)) for v in np.asarray(values).tolist()]
