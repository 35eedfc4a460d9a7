"""Paths and reach of missiles and fighters over time, for drawing. One thread per curve; a curve has a point every `steps`
steps of `dt` seconds. `first` is the curve of a launch's first thread."""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, flyer, move
from fledge.tasks.aircombat.physics.fight import slew
from fledge.tasks.aircombat.physics.missile import closest_approach, fly_missile, guide, unit
from fledge.tasks.aircombat.physics.structs import FAR, Floats, Floats2d, Physics, Vec2s, Vec3s, Vec3s2d, Vec4s, Vec4s2d
from fledge.tasks.aircombat.spacetime.flyout import fly_out, launch_at
from fledge.tasks.aircombat.spacetime.manoeuvres import LATE, Manoeuvre, choose_rudder, left_angle, time_to_go, turn_by
from fledge.tasks.aircombat.spacetime.observe import judge_pair
from fledge.tasks.aircombat.spacetime.table import ReachTable


@wp.struct
class Shots:
    """C missiles, fired now or in flight, each with a target.

    Entries of `missile` and `target`: x and y (m) of the position, then x and y of the unit vector of the velocity.
    """

    missile: Vec4s  # [C]
    missile_speed: Floats  # [C] m/s
    burn: Floats  # [C] s that the motor still burns
    target: Vec4s  # [C]
    target_speed: Floats  # [C]
    rudder: Floats  # [C] position of the target's rudder
    manoeuvre: wp.array(dtype=wp.int32)  # [C] of the target
    delay: Floats  # [C] s that the target holds its course before the manoeuvre


@wp.kernel(enable_backward=False)
def reach_missile(
    first: int, p: Physics, speed: float, rudder: float, dt: float, steps: int, directions: Floats, out: Floats2d
):
    """Write to `out`, [direction, time], how far a missile has got along each direction, m; -1 once it is spent.

    Directions are angles from the nose, rad. The missile, launched at `speed` m/s, turns to the direction with at most
    `rudder`, and then flies straight.
    """
    i = first + wp.tid()
    wanted = unit(directions[i])
    missile = flyer(wp.vec2(), wp.vec2(1.0, 0.0), speed)
    left = float(p.motor.burn)
    spent = bool(False)
    for k in range(out.shape[1]):
        out[i, k] = wp.dot(missile.pos, wanted)
        if spent:
            out[i, k] = -1.0
        for _step in range(steps):
            u = wp.clamp(turn_by(p.motor.frame, missile, left_angle(missile.dir, wanted), dt), -rudder, rudder)
            missile = fly_missile(p.motor, missile, u, left, dt)
            left = wp.max(left - dt, 0.0)
            spent = spent or (left <= 0.0 and missile.speed < p.motor.min_speed)


@wp.kernel(enable_backward=False)
def trace_target(
    first: int, p: Physics, manoeuvre: int, dt: float, steps: int, geometries: Vec4s, ranges: Floats, out: Vec3s2d
):
    """Write to `out`, [geometry, time], x, y (m) and speed (m/s) of targets that evade a threat at the origin.

    Each target starts from its geometry and range (m) and flies `manoeuvre`; the threat does not move.
    """
    i = first + wp.tid()
    launch = launch_at(geometries[i], ranges[i])
    from_there = launch.shooter
    target = launch.target
    rudder = float(0.0)
    for k in range(out.shape[1]):
        out[i, k] = wp.vec3(target.pos[0], target.pos[1], target.speed)
        for _step in range(steps):
            asked = choose_rudder(p.fighter, target, from_there, manoeuvre, False, dt)
            rudder = slew(p.rudder_rate, rudder, asked, dt)
            target = move(p.fighter, target, rudder, p.fighter.thrust, dt)


@wp.kernel(enable_backward=False)
def hold_both(
    first: int, p: Physics, dt: float, geometries: Vec4s, ranges: Floats, later: Vec4s2d, later_ranges: Floats2d
):
    """Write geometry (`later`) and range (`later_ranges`, m) every dt seconds while both sides hold their course.

    Both results have the shape [geometry, time]. Both sides fly at full throttle.
    """
    i = first + wp.tid()
    launch = launch_at(geometries[i], ranges[i])
    one = launch.shooter
    two = launch.target
    for k in range(later.shape[1]):
        r = two.pos - one.pos
        later[i, k] = wp.vec4(one.speed, two.speed, left_angle(one.dir, r), left_angle(two.dir, -r))
        later_ranges[i, k] = wp.length(r)
        one = move(p.fighter, one, 0.0, p.fighter.thrust, dt)
        two = move(p.fighter, two, 0.0, p.fighter.thrust, dt)


@wp.func
def flyer_of(v: wp.vec4) -> Flyer:
    return flyer(wp.vec2(v[0], v[1]), unit(v[2]), v[3])


@wp.func
def flyer_at(place: wp.vec4, speed: float) -> Flyer:
    return flyer(wp.vec2(place[0], place[1]), wp.vec2(place[2], place[3]), speed)


@wp.kernel(enable_backward=False)
def fly_on(
    first: int, p: Physics, manoeuvre: int, dt: float, missiles: Vec4s, burns: Floats, targets: Vec4s, out: Floats
):
    """Write to `out` the closest approach, m, of each missile in flight to its target, which flies `manoeuvre`.

    Missiles and targets are given as x, y (m), heading (rad), speed (m/s); `burns` are the seconds of motor left.
    """
    i = first + wp.tid()
    out[i] = fly_out(p, flyer_of(missiles[i]), burns[i], flyer_of(targets[i]), manoeuvre, dt, 0.0).miss


@wp.kernel(enable_backward=False)
def trace_shots(first: int, p: Physics, dt: float, steps: int, shots: Shots, paths: Vec4s2d, ends: Vec3s):
    """Simulate shots with the physics of the env, and write their paths and how they ended.

    `paths`, [shot, time], has x, y of the target and x, y of the missile, m. `ends`, [shot], has killed (1 or 0), the time
    of the end (s) and the closest approach (m). A missile that has hit or is spent stays at its last position; the target
    flies on.
    """
    i = first + wp.tid()
    missile = flyer_at(shots.missile[i], shots.missile_speed[i])
    target = flyer_at(shots.target[i], shots.target_speed[i])
    left = shots.burn[i]
    rudder = shots.rudder[i]
    late = bool(False)
    flying = bool(True)
    killed = float(0.0)
    time = float(0.0)
    end = float(0.0)
    miss = float(FAR)
    for k in range(paths.shape[1]):
        paths[i, k] = wp.vec4(target.pos[0], target.pos[1], missile.pos[0], missile.pos[1])
        for _step in range(steps):
            late = late or (flying and time_to_go(missile, target) < LATE)
            manoeuvre = shots.manoeuvre[i]
            if time < shots.delay[i] - 0.5 * dt:
                manoeuvre = int(Manoeuvre.HOLD)
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
    first: int, p: Physics, t: ReachTable, ones: Vec4s, twos: Vec4s, speeds: Vec2s, ranges: Vec3s2d, times: Vec2s
):
    """Look up the shot ranges and the times to decide (see `observe`) of pairs of fighters in the table.

    `ones` and `twos` are the two fighters of each pair, as in `Shots`; `speeds` has both their speeds, m/s. `ranges`, [pair,
    shooter], gets R_max, R_tr and R_ne of the shooter's shot at the other fighter, m; `times`, [pair], both fighters' time
    to decide, s.
    """
    i = first + wp.tid()
    pair = judge_pair(p, t, flyer_at(ones[i], speeds[i][0]), flyer_at(twos[i], speeds[i][1]))
    ranges[i, 0] = pair.by_one
    ranges[i, 1] = pair.by_two
    times[i] = pair.times
