"""The duel in NumPy, float64, all fights at once: written from the rules of docs/worlds/aircombat.md alone, sharing no
code with the simulator, as a second opinion on it.

The plane is the complex plane: places and directions are complex numbers, a turn is a multiplication. F fights, 2 sides, S
missiles of each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.tasks.aircombat.config import GRAVITY, AircombatConfig

Floats = npt.NDArray[np.float64]
Plane = npt.NDArray[np.complex128]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

GOING_ON, FIRST_WON, SECOND_WON, DRAW, NO_MISSILES, TIME_OUT = range(6)
OUTCOMES = ("going_on", "first_won", "second_won", "draw", "no_missiles", "time_out")
EPS_S = 1e-6  # tolerance for rounding when times are sums of steps
LOAD_ROUNDS = 7  # each round brings the speed in the middle of a step some 50 times closer


@dataclass
class Fights:
    """State of all fights. `missile_*` belong to the side that fired, in the order of firing."""

    pos: Plane  # [F, 2] m
    direction: Plane  # [F, 2] unit
    speed: Floats  # [F, 2] m/s
    rudder: Floats  # [F, 2] left is positive
    left: Ints  # [F, 2] missiles in the rack
    since_shot: Floats  # [F, 2] s since the last shot
    missile_pos: Plane  # [F, 2, S] m
    missile_direction: Plane  # [F, 2, S] unit
    missile_speed: Floats  # [F, 2, S] m/s
    missile_age: Floats  # [F, 2, S] s since it was fired
    flying: Bools  # [F, 2, S]
    clock: Floats  # [F] s since the fight began
    outcome: Ints  # [F] index of OUTCOMES

    def copy(self, single: bool = False) -> Fights:
        """Return a copy of the fights; in float32 if `single`."""
        smaller: dict[str, Any] = {"d": np.float32, "D": np.complex64} if single else {}
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        return Fights(
            **{name: array.astype(smaller.get(array.dtype.char, array.dtype)) for name, array in arrays.items()}
        )

    def part(self, chosen: slice) -> Fights:
        """Return some of the fights."""
        return Fights(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


def new_fights(pos: Plane, direction: Plane, speed: Floats, carried: int) -> Fights:
    """Return fights at their start, with all missiles on board."""
    count = len(pos)
    slots = (count, 2, carried)
    return Fights(
        pos=pos.astype(np.complex128),
        direction=direction / np.abs(direction),
        speed=speed.astype(np.float64),
        rudder=np.zeros((count, 2)),
        left=np.full((count, 2), carried),
        since_shot=np.full((count, 2), np.inf),
        missile_pos=np.zeros(slots, complex),
        missile_direction=np.ones(slots, complex),
        missile_speed=np.zeros(slots),
        missile_age=np.zeros(slots),
        flying=np.zeros(slots, bool),
        clock=np.zeros(count),
        outcome=np.zeros(count, np.int64),
    )


# ---- an airframe -------------------------------------------------------------------------------------------------------


def dot(a: Plane, b: Plane) -> Floats:
    return (a.conj() * b).real


def cross(a: Plane, b: Plane) -> Floats:
    """Return the cross product, positive where b is to the left of a."""
    return (a.conj() * b).imag


@dataclass
class Airframe:
    """Flight model of a fighter or a missile, as the rules give it."""

    drag: float  # Cd0, 1/m
    induced: float  # k, m
    radius: float  # Rmin, m
    load: float  # m/s², infinite without load limits

    @staticmethod
    def of(part: Any, load_limits: bool) -> Airframe:
        drag = GRAVITY / part.terminal_speed**2
        load = part.load_limit_g * GRAVITY if load_limits else np.inf
        return Airframe(drag, 1 / (4 * drag * part.lift_drag**2), part.min_turn_radius_m, load)

    def run(self, speed: Floats, rudder: Floats, thrust: Floats, t: Floats | float) -> tuple[Floats, Floats]:
        """Return speed and path length after t seconds of dv/dt = T - c v², solved exactly (c > 0, T >= 0)."""
        c = self.drag + self.induced * (rudder / self.radius) ** 2
        a = np.sqrt(thrust * c)
        coasting = a == 0
        safe = np.where(coasting, 1.0, a)
        swift = np.where(coasting, t, np.tanh(safe * t) / safe)
        late = (speed + thrust * swift) / (1 + c * speed * swift)
        # ln(cosh(a t) + c v sinh(a t) / a) / c, with cosh taken out
        path = (np.log1p(c * speed * swift) + np.log(np.cosh(a * t))) / c
        return late, path

    def limited(self, speed: Floats, wanted: Floats, thrust: Floats, t: Floats | float) -> Floats:
        """Return the rudder within -1 to 1 and within the load limit at the speed in the middle of the step."""
        wanted = np.clip(wanted, -1, 1)
        if np.isinf(self.load):
            return wanted
        given = np.broadcast_arrays(speed, thrust, t)
        rudder, some = wanted.copy(), np.ones(wanted.shape, bool)
        for _ in range(LOAD_ROUNDS):  # those within the load limit need no iteration
            v, power, seconds = (part[some] for part in given)
            middle, _ = self.run(v, rudder[some], power, seconds / 2)
            most = self.load * self.radius / middle**2
            over = np.abs(wanted[some]) > most
            rudder[some] = np.clip(wanted[some], -most, most)
            some[some] = over
        return rudder

    def fly(
        self, pos: Plane, direction: Plane, speed: Floats, wanted: Floats, thrust: Floats, t: Floats | float
    ) -> tuple[Plane, Plane, Floats]:
        """Return place, direction and speed after t seconds along an arc."""
        rudder = self.limited(speed, wanted, thrust, t)
        late, path = self.run(speed, rudder, thrust, t)
        angle = path * rudder / self.radius
        chord = path * np.sinc(angle / (2 * np.pi))
        turned = direction * np.exp(1j * angle)
        return pos + chord * direction * np.exp(0.5j * angle), turned / np.abs(turned), late


def closest_approach(before: Plane, after: Plane) -> Floats:
    """Return the least distance from the origin of a point that moves straight from one place to another."""
    move = after - before
    square = np.abs(move) ** 2
    share = np.clip(-dot(before, move) / np.where(square == 0, 1, square), 0, 1)
    return np.abs(before + share * move)


# ---- the duel ----------------------------------------------------------------------------------------------------------


class NumpyDuel:
    """Fights that `step` advances by one decision.

    Args:
        cfg: The rules.
        start: State to begin from; it is copied.
        single: Use float32, for speed: then it is a baseline rather than a check.
    """

    def __init__(self, cfg: AircombatConfig, start: Fights, single: bool = False) -> None:
        self.cfg, self.single = cfg, single
        self.eps = 1e-3 if single else EPS_S
        self.fighter = Airframe.of(cfg.fighter, cfg.load_limits)
        self.missile = Airframe.of(cfg.missile, cfg.load_limits)
        self.steps = max(1, int(np.ceil(cfg.decimation * cfg.time_scale - 1e-9)))
        self.dt = cfg.decision_s / self.steps
        self.load(start)

    def load(self, start: Fights) -> None:
        """Continue from a state."""
        self.now = start.copy(single=self.single)

    def step(self, controls: tuple[Floats, Floats, Array]) -> dict[str, Array]:
        """Fly a decision with rudder, throttle and fire [F, 2]; return the state. Fights that are over stay as they are."""
        rudder, throttle, fire = controls
        self.shoot(fire > 0)
        for _ in range(self.steps):
            self.physics_step(rudder, throttle)
        now = self.now
        late = (now.outcome == GOING_ON) & (now.clock >= self.cfg.max_episode_s - self.eps)
        now.outcome[late] = TIME_OUT
        return vars(now)

    def shoot(self, fire: Bools) -> None:
        """Launch missiles with their fighters' place, direction and speed, into the slot of their number."""
        now, rules = self.now, self.cfg.missile
        ready = (now.left > 0) & (now.since_shot >= rules.interval_s - self.eps) & (now.outcome == GOING_ON)[:, None]
        fight, side = np.nonzero(fire & ready)
        slot = now.flying.shape[2] - now.left[fight, side]
        now.missile_pos[fight, side, slot] = now.pos[fight, side]
        now.missile_direction[fight, side, slot] = now.direction[fight, side]
        now.missile_speed[fight, side, slot] = now.speed[fight, side]
        now.missile_age[fight, side, slot] = 0
        now.flying[fight, side, slot] = True
        now.left[fight, side] -= 1
        now.since_shot[fight, side] = 0

    def physics_step(self, rudder: Floats, throttle: Floats) -> None:
        """Make one physics step of all fights that are not over."""
        now = self.now
        on = now.outcome == GOING_ON
        flying = now.flying & on[:, None, None]
        missiles = np.nonzero(flying)
        fight, side, _ = missiles
        target = (fight, 1 - side)
        wanted = self.guide(missiles, target)
        before = now.pos[target] - now.missile_pos[missiles]
        self.fly_fighters(on, rudder, throttle)
        self.fly_missiles(missiles, wanted)
        after = now.pos[target] - now.missile_pos[missiles]
        hit = closest_approach(before, after) <= self.cfg.missile.kill_radius_m
        burnt_out = now.missile_age[missiles] >= self.cfg.missile.burn_s - self.eps
        spent = burnt_out & (now.missile_speed[missiles] < self.cfg.missile.min_speed)
        now.flying[missiles] = ~(hit | spent)
        self.judge(on, fight[hit], 1 - side[hit])

    def guide(self, missiles: tuple[Ints, ...], target: tuple[Ints, Ints]) -> Floats:
        """Return the missiles' rudders by proportional navigation."""
        now, rules = self.now, self.cfg.missile
        direction, speed = now.missile_direction[missiles], now.missile_speed[missiles]
        r = now.pos[target] - now.missile_pos[missiles]
        v = now.direction[target] * now.speed[target] - direction * speed
        square = np.abs(r) ** 2
        sight_rate = cross(r, v) / np.where(square == 0, 1, square)
        behind = dot(r, direction) < 0
        towards = np.where(cross(direction, r) < 0, -1.0, 1.0)
        return np.where(behind, towards, rules.navigation * sight_rate * self.missile.radius / speed)

    def fly_fighters(self, on: Bools, rudder: Floats, throttle: Floats) -> None:
        now, rate = self.now, self.cfg.rudder_rate
        wanted = np.clip(rudder[on], -1, 1)
        if rate > 0:
            travel = rate * self.dt
            wanted = now.rudder[on] + np.clip(wanted - now.rudder[on], -travel, travel)
        thrust = self.cfg.fighter.thrust_g * GRAVITY * np.clip(throttle[on], 0, 1)
        moved = self.fighter.fly(now.pos[on], now.direction[on], now.speed[on], wanted, thrust, self.dt)
        now.pos[on], now.direction[on], now.speed[on] = moved
        now.rudder[on] = wanted
        now.since_shot[on] += self.dt
        now.clock[on] += self.dt

    def fly_missiles(self, missiles: tuple[Ints, ...], wanted: Floats) -> None:
        """Fly all missiles, first with the motor, then without: most steps have only one of the two."""
        now, rules = self.now, self.cfg.missile
        age = now.missile_age[missiles]
        burning = np.clip(rules.burn_s - age, 0, self.dt)
        burning[burning < EPS_S] = 0
        burning[burning > self.dt - EPS_S] = self.dt
        for seconds, thrust in ((burning, rules.thrust_g * GRAVITY), (self.dt - burning, 0.0)):
            some = seconds > 0
            slots = tuple(index[some] for index in missiles)
            given = (now.missile_pos[slots], now.missile_direction[slots], now.missile_speed[slots])
            moved = self.missile.fly(*given, wanted[some], np.full_like(wanted[some], thrust), seconds[some])
            now.missile_pos[slots], now.missile_direction[slots], now.missile_speed[slots] = moved
        now.missile_age[missiles] = age + self.dt

    def judge(self, on: Bools, fight: Ints, victim: Ints) -> None:
        """End fights in which a fighter was hit, or no missile is left."""
        now = self.now
        dead = np.zeros((len(on), 2), bool)
        dead[fight, victim] = True
        empty = (now.left == 0).all(1) & ~now.flying.any((1, 2))
        now.outcome[on & empty] = NO_MISSILES
        now.outcome[on & dead[:, 1]] = FIRST_WON
        now.outcome[on & dead[:, 0]] = SECOND_WON
        now.outcome[on & dead.all(1)] = DRAW
