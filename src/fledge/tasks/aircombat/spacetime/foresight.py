"""What becomes of shots: fly-outs with the ways that missile and target take, for drawing. One thread a case.

A case is a missile, fired now or in the air, and a target that flies a manoeuvre. It is flown as the simulator flies: fine
steps, the missile's own guidance and hit test. The target flies on after the missile has killed or is spent, so that its whole
way shows.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, move
from fledge.tasks.aircombat.physics.fight import slew
from fledge.tasks.aircombat.physics.missile import closest_approach, fly_missile, guide
from fledge.tasks.aircombat.spacetime.features import both_reaches, times_to_decide
from fledge.tasks.aircombat.spacetime.flyout import Physics
from fledge.tasks.aircombat.spacetime.manoeuvres import FAR, HOLD, LATE, choose_rudder, left_angle, time_to_go
from fledge.tasks.aircombat.spacetime.table import ReachTable, lookup


@wp.struct
class Cases:
    """Missiles and targets; position and direction in one vector, speed beside it."""

    missile: wp.array(dtype=wp.vec4)  # [C] m; unit vector
    missile_speed: wp.array(dtype=wp.float32)  # [C] m/s
    burn: wp.array(dtype=wp.float32)  # [C] s that the motor still burns
    target: wp.array(dtype=wp.vec4)  # [C]
    target_speed: wp.array(dtype=wp.float32)  # [C]
    rudder: wp.array(dtype=wp.float32)  # [C] where the target's rudder stands
    manoeuvre: wp.array(dtype=wp.int32)  # [C]
    delay: wp.array(dtype=wp.float32)  # [C] s that the target holds its course before


@wp.func
def flyer(place: wp.vec4, speed: float) -> Flyer:
    out = Flyer()
    out.pos = wp.vec2(place[0], place[1])
    out.dir = wp.vec2(place[2], place[3])
    out.speed = speed
    return out


@wp.kernel(enable_backward=False)
def foresee_shots(
    first: int,
    p: Physics,
    dt: float,
    steps: int,
    cases: Cases,
    ways: wp.array2d(dtype=wp.vec4),
    ends: wp.array(dtype=wp.vec3),
):
    """Where target and missile are [case, time], every `steps` steps, and how it ends [case]: killed, time, closest approach.

    A missile that is gone stays where it was last.
    """
    i = first + wp.tid()
    missile = flyer(cases.missile[i], cases.missile_speed[i])
    target = flyer(cases.target[i], cases.target_speed[i])
    left = cases.burn[i]
    rudder = cases.rudder[i]
    late = bool(False)
    flying = bool(True)
    killed = float(0.0)
    time = float(0.0)
    end = float(0.0)
    miss = float(FAR)
    for k in range(ways.shape[1]):
        ways[i, k] = wp.vec4(target.pos[0], target.pos[1], missile.pos[0], missile.pos[1])
        for _step in range(steps):
            late = late or (flying and time_to_go(missile, target) < LATE)
            manoeuvre = cases.manoeuvre[i]
            if time < cases.delay[i] - 0.5 * dt:
                manoeuvre = HOLD
            asked = choose_rudder(p.fighter, target, missile, manoeuvre, late, dt)
            rudder = slew(p.rudder_rate, rudder, asked, dt)
            after = move(p.fighter, target, rudder, p.fighter.thrust, dt)
            time = time + dt
            if flying:
                next = fly_missile(p.motor, missile, guide(p.motor, missile, target), left, dt)
                miss = wp.min(miss, closest_approach(target.pos - missile.pos, after.pos - next.pos))
                left = wp.max(left - dt, 0.0)
                missile = next
                end = time
                if miss <= p.motor.kill_radius:
                    killed = 1.0
                    flying = False
                elif left <= 0.0 and missile.speed < p.motor.min_speed:
                    flying = False
            target = after
    ends[i] = wp.vec3(killed, end, miss)


@wp.kernel(enable_backward=False)
def judge_pairs(
    first: int,
    p: Physics,
    t: ReachTable,
    ones: wp.array(dtype=wp.vec4),
    twos: wp.array(dtype=wp.vec4),
    speeds: wp.array(dtype=wp.vec2),
    ranges: wp.array2d(dtype=wp.vec3),
    times: wp.array(dtype=wp.vec2),
):
    """R_max, R_tr, R_ne of both sides' shots [pair, shooter], and both sides' times to decide [pair], by the table."""
    i = first + wp.tid()
    one = flyer(ones[i], speeds[i][0])
    two = flyer(twos[i], speeds[i][1])
    r = two.pos - one.pos
    off_one = left_angle(one.dir, r)
    off_two = left_angle(two.dir, -r)
    ranges[i, 0] = lookup(t, one.speed, two.speed, off_one, off_two)
    ranges[i, 1] = lookup(t, two.speed, one.speed, off_two, off_one)
    times[i] = times_to_decide(p, t, one, two, both_reaches(t, one, two))
