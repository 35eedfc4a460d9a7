"""A guided missile: a motor that burns out, proportional navigation, and a kill by closest approach within the step.

Guidance is pure proportional navigation: the turn rate is N times the rate of the line of sight, computed from positions and
velocities, not from differences in time, so it does not depend on the step. Towards a target behind it, the missile turns
with full rudder. The hit test is the closest approach while both move from their old to their new places.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Airframe, Flyer, move


@wp.struct
class Motor:
    """Parameters of a missile: airframe, guidance, burn time and kill radius."""

    frame: Airframe
    navigation: float  # N, turn rate over the rate of the line of sight
    burn: float  # s
    min_speed: float  # m/s, below which the missile is spent once the motor has burnt out
    kill_radius: float  # m


@wp.func
def cross2(a: wp.vec2, b: wp.vec2) -> float:
    return a[0] * b[1] - a[1] * b[0]


@wp.func
def unit(angle: float) -> wp.vec2:
    return wp.vec2(wp.cos(angle), wp.sin(angle))


@wp.func
def guide(motor: Motor, missile: Flyer, target: Flyer) -> float:
    """Return the rudder that steers towards the target, not yet limited to -1 .. 1."""
    r = target.pos - missile.pos
    if wp.dot(r, missile.dir) < 0.0:
        if cross2(missile.dir, r) < 0.0:
            return -1.0
        return 1.0
    v = target.speed * target.dir - missile.speed * missile.dir
    rate = cross2(r, v) / wp.max(wp.dot(r, r), 1.0)  # rad/s
    return motor.navigation * rate * motor.frame.rmin / wp.max(missile.speed, 1.0)


@wp.func
def fly_missile(motor: Motor, missile: Flyer, u: float, burn: float, dt: float) -> Flyer:
    """Return the missile after dt seconds, of which the motor burns for at most `burn`; the step is split at burn-out."""
    powered = wp.clamp(burn, 0.0, dt)
    if powered >= dt:
        return move(motor.frame, missile, u, motor.frame.thrust, dt)
    if powered <= 0.0:
        return move(motor.frame, missile, u, 0.0, dt)
    return move(motor.frame, move(motor.frame, missile, u, motor.frame.thrust, powered), u, 0.0, dt - powered)


@wp.func
def closest_approach(r0: wp.vec2, r1: wp.vec2) -> float:
    """Return the closest approach within a step, m, from the relative positions before (r0) and after the step (r1)."""
    step = r1 - r0
    along = wp.clamp(-wp.dot(r0, step) / wp.max(wp.dot(step, step), 1.0e-9), 0.0, 1.0)
    return wp.length(r0 + along * step)
