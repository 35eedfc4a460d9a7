"""Where missiles and fighters get to over time, for drawing. One thread a curve; every `steps` physics steps a point.

A missile fired now, towards every direction: it turns there by some rudder, and flies on. A hard turn costs more speed than a
wide one, so several are tried, and the farthest place along the direction at each time counts.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, move
from fledge.tasks.aircombat.physics.fight import slew
from fledge.tasks.aircombat.physics.missile import fly_missile
from fledge.tasks.aircombat.spacetime.flyout import Physics, fly_out
from fledge.tasks.aircombat.spacetime.geometry import launch_at, unit
from fledge.tasks.aircombat.spacetime.manoeuvres import choose_rudder, left_angle, turn_by


@wp.kernel(enable_backward=False)
def reach_missile(
    first: int,
    p: Physics,
    speed: float,
    rudder: float,
    dt: float,
    steps: int,
    directions: wp.array(dtype=wp.float32),
    out: wp.array2d(dtype=wp.float32),
):
    """Distance from the launch along each direction (rad from the nose) [direction, time], m; -1 once the missile is spent."""
    i = first + wp.tid()
    wanted = unit(directions[i])
    missile = Flyer()
    missile.dir = wp.vec2(1.0, 0.0)
    missile.speed = speed
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
    first: int,
    p: Physics,
    manoeuvre: int,
    dt: float,
    steps: int,
    geometries: wp.array(dtype=wp.vec4),
    ranges: wp.array(dtype=wp.float32),
    out: wp.array2d(dtype=wp.vec3),
):
    """The target's place and speed [geometry, time], as it flies a manoeuvre against one who stays where the shooter is."""
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
    first: int,
    p: Physics,
    dt: float,
    geometries: wp.array(dtype=wp.vec4),
    ranges: wp.array(dtype=wp.float32),
    later: wp.array2d(dtype=wp.vec4),
    later_ranges: wp.array2d(dtype=wp.float32),
):
    """Geometry and range [geometry, time], every dt, as both sides hold their course at full throttle."""
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
    out = Flyer()
    out.pos = wp.vec2(v[0], v[1])
    out.dir = unit(v[2])
    out.speed = v[3]
    return out


@wp.kernel(enable_backward=False)
def fly_on(
    first: int,
    p: Physics,
    manoeuvre: int,
    dt: float,
    missiles: wp.array(dtype=wp.vec4),
    burns: wp.array(dtype=wp.float32),
    targets: wp.array(dtype=wp.vec4),
    out: wp.array(dtype=wp.float32),
):
    """Closest approach of missiles in flight; both as x, y, heading, speed."""
    i = first + wp.tid()
    out[i] = fly_out(p, flyer_of(missiles[i]), burns[i], flyer_of(targets[i]), manoeuvre, dt, 0.0).miss
