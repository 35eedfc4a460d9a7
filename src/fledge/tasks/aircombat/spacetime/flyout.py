"""Fly-outs: one guided missile against one target that flies a manoeuvre, with the simulator's own physics.

A fly-out goes on until the missile has killed or is spent. It may stop earlier where the end is certain: a missile whose
motor is out and that is slower than a target that flies straight, and is ahead of it, never gets nearer along the target's
path. Steps may be long: rudder and thrust are constant in a step, but the arc is exact and the closest approach is that
within the step.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Airframe, Flyer, move
from fledge.tasks.aircombat.physics.fight import slew
from fledge.tasks.aircombat.physics.missile import Motor, closest_approach, fly_missile, guide
from fledge.tasks.aircombat.spacetime.manoeuvres import AWAY, LATE, choose_rudder, time_to_go

FAR = wp.constant(1.0e9)
STRAIGHT = wp.constant(0.05)  # rudder of a target that runs
LONGEST = wp.constant(600.0)  # s; no missile flies longer
LONGEST_STEP = wp.constant(4.0)  # s
LAST = wp.constant(2.0)  # s before the end that are foreseen


@wp.struct
class Physics:
    """All that decides a fly-out."""

    fighter: Airframe
    motor: Motor
    rudder_rate: float  # 1/s, of the fighter; 0: at once
    top_speed: float  # m/s, of the fighter at full throttle without turning


@wp.struct
class FlyOut:
    """How a fly-out ended."""

    killed: int
    time: float  # s, until the kill, or until the missile was spent
    miss: float  # m, closest approach


@wp.func
def outrun(p: Physics, missile: Flyer, target: Flyer) -> bool:
    """Whether a coasting missile can never get at a target that keeps straight on."""
    ahead = wp.dot(target.pos - missile.pos, target.dir)
    return missile.speed < wp.min(target.speed, p.top_speed) and ahead > 2.0 * p.motor.kill_radius


@wp.func
def foresee(p: Physics, so_far: FlyOut, missile: Flyer, target: Flyer, togo: float) -> FlyOut:
    """The end of a fly-out: where both would pass each other going straight, less what the missile can steer until then."""
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

    A step lasts dt, or `share` of the time that the missile still needs to its target, if that is longer. With a share, the
    last seconds are foreseen instead of flown.
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
            return foresee(p, out, missile, target, togo)
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
        straight = manoeuvre <= AWAY and wp.abs(rudder) < STRAIGHT
        if left <= 0.0 and (missile.speed < p.motor.min_speed or (straight and outrun(p, missile, target))):
            return out
    return out
