"""Defences of a target against a missile: its rudder, at full throttle, step by step.

    HOLD                        straight on
    AWAY                        full rudder to the nearer side until the missile is straight behind, then run, keeping it there
    AWAY_LEFT, AWAY_RIGHT       the same, but to that side while the missile is within 60 degrees of the nose
    HARD_LEFT, HARD_RIGHT       full rudder all the time
    BEAM_LEFT, BEAM_RIGHT       turn, by the shorter way, until the missile is abeam, and keep it there: the path leads to the
                                left, or right, of the line from the missile
    BREAK_LEFT, BREAK_RIGHT     AWAY, and full rudder once the missile is less than LATE seconds away
    LATE_LEFT, LATE_RIGHT       HOLD, and full rudder once the missile is less than LATE seconds away

A turn that ends within a step takes the rudder that ends it there, so that results do not depend on the step. The manoeuvres
to the left and to the right are mirror images.
"""

import enum

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Airframe, Flyer
from fledge.tasks.aircombat.physics.missile import cross2
from fledge.tasks.aircombat.physics.structs import FAR


class Manoeuvre(enum.IntEnum):
    """Defence of a target against a missile; the module's docstring describes each."""

    HOLD = 0
    AWAY_LEFT = 1
    AWAY_RIGHT = 2
    AWAY = 3
    HARD_LEFT = 4
    HARD_RIGHT = 5
    BEAM_LEFT = 6
    BEAM_RIGHT = 7
    BREAK_LEFT = 8
    BREAK_RIGHT = 9
    LATE_LEFT = 10
    LATE_RIGHT = 11


LATE = wp.constant(3.0)  # s
LONG_WAY = wp.constant(2.09)  # rad from straight away: a missile at 60 degrees off the nose, plus a margin


@wp.func
def left_angle(a: wp.vec2, b: wp.vec2) -> float:
    """Return the angle from a to b, rad, positive to the left, -pi to pi."""
    return wp.atan2(cross2(a, b), wp.dot(a, b))


@wp.func
def turn_by(frame: Airframe, body: Flyer, angle: float, dt: float) -> float:
    """Return the rudder that turns by an angle (rad) within dt, or as far as possible."""
    return wp.clamp(angle * frame.rmin / wp.max(body.speed * dt, 1.0e-3), -1.0, 1.0)


@wp.func
def time_to_go(missile: Flyer, target: Flyer) -> float:
    """Return the time until the missile reaches its target, s, at a constant closing speed; FAR if it is not closing."""
    r = target.pos - missile.pos
    closing = wp.dot(missile.speed * missile.dir - target.speed * target.dir, r)  # m/s times range
    if closing <= 0.0:
        return FAR
    return wp.dot(r, r) / closing


@wp.func
def side_of(manoeuvre: int) -> float:
    """Return 1 for a manoeuvre to the left, -1 for one to the right, 0 for HOLD and AWAY."""
    if manoeuvre == Manoeuvre.HOLD or manoeuvre == Manoeuvre.AWAY:
        return 0.0
    if manoeuvre == Manoeuvre.AWAY_LEFT or (manoeuvre > Manoeuvre.AWAY and manoeuvre % 2 == 0):
        return 1.0
    return -1.0


@wp.func
def choose_rudder(frame: Airframe, body: Flyer, missile: Flyer, manoeuvre: int, late: bool, dt: float) -> float:
    """Return the target's rudder in the next step; `late` is true once the missile has been less than LATE seconds away."""
    side = side_of(manoeuvre)
    if manoeuvre == Manoeuvre.HOLD:
        return 0.0
    if (
        manoeuvre == Manoeuvre.HARD_LEFT
        or manoeuvre == Manoeuvre.HARD_RIGHT
        or (manoeuvre >= Manoeuvre.BREAK_LEFT and late)
    ):
        return side
    if manoeuvre >= Manoeuvre.LATE_LEFT:
        return 0.0
    from_it = body.pos - missile.pos
    wanted = from_it
    if manoeuvre == Manoeuvre.BEAM_LEFT or manoeuvre == Manoeuvre.BEAM_RIGHT:
        wanted = wp.vec2(-side * from_it[1], side * from_it[0])
    angle = left_angle(body.dir, wanted)
    if (manoeuvre == Manoeuvre.AWAY_LEFT or manoeuvre == Manoeuvre.AWAY_RIGHT) and side * angle < -LONG_WAY:
        return side
    return turn_by(frame, body, angle, dt)
