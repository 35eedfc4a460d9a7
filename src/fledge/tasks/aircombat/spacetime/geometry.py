"""Where shooter and target are at a launch: what all fly-outs and curves start from.

A geometry is own speed, target's speed (m/s), off-boresight and aspect (rad, left positive): the angle from the shooter's nose
to the target, and from the target's nose to the shooter. Aspect 0 is a target that comes nose-on, pi a tail chase.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer

PI = wp.constant(3.14159265358979)


@wp.struct
class Launch:
    """Both sides at a launch."""

    shooter: Flyer  # and so its missile: at the origin, pointing east
    target: Flyer


@wp.func
def unit(angle: float) -> wp.vec2:
    return wp.vec2(wp.cos(angle), wp.sin(angle))


@wp.func
def launch_at(geometry: wp.vec4, away: float) -> Launch:
    """A geometry, in the order above, at a range, m."""
    out = Launch()
    out.shooter.dir = wp.vec2(1.0, 0.0)
    out.shooter.speed = geometry[0]
    line = unit(geometry[2])
    out.target.pos = wp.vec2(away * line[0], away * line[1])
    out.target.dir = unit(geometry[2] + PI - geometry[3])
    out.target.speed = geometry[1]
    return out
