"""Fly-outs: one guided missile against one target that flies a manoeuvre, with the simulator's own physics.

A geometry is own speed, target's speed (m/s), off-boresight and aspect (rad, left positive): the angle from the shooter's nose
to the target, and from the target's nose to the shooter. Aspect 0 is a target that comes nose-on, pi a tail chase.

A fly-out ends when the missile has killed or is spent, or when the end is certain: a coasting missile that is slower than a
target flying straight ahead of it never gets nearer. Steps may be long: the arc of a step is exact, and the closest approach
is that within the step.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, flyer, move
from fledge.tasks.aircombat.physics.fight import slew
from fledge.tasks.aircombat.physics.missile import closest_approach, fly_missile, guide
from fledge.tasks.aircombat.physics.structs import FAR, Physics
from fledge.tasks.aircombat.spacetime.manoeuvres import LATE, Manoeuvre, choose_rudder, time_to_go

PI = wp.constant(3.14159265358979)
STRAIGHT = wp.constant(0.05)  # largest rudder of a target that counts as flying straight
LONGEST = wp.constant(600.0)  # s; no missile flies longer
LONGEST_STEP = wp.constant(4.0)  # s
LAST = wp.constant(2.0)  # s before the end that are extrapolated


@wp.struct
class Launch:
    """Both sides at a launch."""

    shooter: Flyer  # and its missile: at the origin, pointing east
    target: Flyer


@wp.func
def unit(angle: float) -> wp.vec2:
    return wp.vec2(wp.cos(angle), wp.sin(angle))


@wp.func
def launch_at(geometry: wp.vec4, away: float) -> Launch:
    """Place both sides in a geometry at a range, m."""
    out = Launch()
    out.shooter = flyer(wp.vec2(), wp.vec2(1.0, 0.0), geometry[0])
    out.target = flyer(away * unit(geometry[2]), unit(geometry[2] + PI - geometry[3]), geometry[1])
    return out


@wp.struct
class FlyOut:
    """How a fly-out ended."""

    killed: int
    time: float  # s, until the kill, or until the missile was spent
    miss: float  # m, closest approach


@wp.func
def outrun(p: Physics, missile: Flyer, target: Flyer) -> bool:
    """Return whether a coasting missile can never reach a target that flies straight."""
    ahead = wp.dot(target.pos - missile.pos, target.dir)
    return missile.speed < wp.min(target.speed, p.top_speed) and ahead > 2.0 * p.motor.kill_radius


@wp.func
def extrapolate_end(p: Physics, so_far: FlyOut, missile: Flyer, target: Flyer, togo: float) -> FlyOut:
    """End a fly-out: the distance at which both pass going straight, less what the missile can steer until then."""
    v = target.speed * target.dir - missile.speed * missile.dir
    passing = wp.length(target.pos - missile.pos + togo * v)
    turn = missile.speed * missile.speed / p.motor.frame.rmin
    if p.motor.frame.max_load > 0.0:
        turn = wp.min(turn, p.motor.frame.max_load)
    out = so_far
    out.time = out.time + togo
    out.miss = wp.min(out.miss, wp.max(passing - 0.5 * turn * togo * togo, 0.0))
    if out.miss <= p.motor.kill_radius:
        out.killed = 1
    return out


@wp.func
def fly_out(p: Physics, start: Flyer, burn: float, prey: Flyer, manoeuvre: int, dt: float, share: float) -> FlyOut:
    """Fly a missile, with `burn` seconds of motor left, against a target that flies a manoeuvre.

    A step lasts dt, or `share` of the time to go, if that is longer. With a share, the last seconds are extrapolated.
    """
    missile = start
    target = prey
    left = burn
    rudder = float(0.0)
    late = bool(False)
    out = FlyOut()
    out.miss = FAR
    while out.time < LONGEST:
        togo = time_to_go(missile, target)
        if share > 0.0 and togo < LAST:
            return extrapolate_end(p, out, missile, target, togo)
        late = late or togo < LATE
        step = wp.clamp(share * togo, dt, wp.max(dt, LONGEST_STEP))
        rudder = slew(p.rudder_rate, rudder, choose_rudder(p.fighter, target, missile, manoeuvre, late, step), step)
        after = move(p.fighter, target, rudder, p.fighter.thrust, step)
        next = fly_missile(p.motor, missile, guide(p.motor, missile, target), left, step)
        out.miss = wp.min(out.miss, closest_approach(target.pos - missile.pos, after.pos - next.pos))
        out.time = out.time + step
        left = wp.max(left - step, 0.0)
        missile = next
        target = after
        if out.miss <= p.motor.kill_radius:
            out.killed = 1
            return out
        straight = manoeuvre <= Manoeuvre.AWAY and wp.abs(rudder) < STRAIGHT
        if left <= 0.0 and (missile.speed < p.motor.min_speed or (straight and outrun(p, missile, target))):
            return out
    return out
