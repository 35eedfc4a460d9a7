"""Kill ranges of one geometry, by fly-outs: the truth that tables interpolate.

`geometry.py` says what a geometry is.

    r_max     the target holds its course
    r_left    it turns away to the left at launch, and runs        r_right   the same to the right
    r_ne      whatever it does, of DEFENCES

Each is the largest range that kills, 0 where none beyond NEAREST does. What kills need not be an interval: the search comes
from outside, in steps of RATIO, to the first range that kills, and bisects from there. The answer is never below the truth,
and above by less than RATIO^(1 / 2^HALVINGS).

With each goes the other end of that interval, or half the range if it kills down to there: where an interval shrinks and is
gone (a missile fired far off its boresight cannot turn in time at any range), its ends meet, and that tells tables where.
"""

import warp as wp

from fledge.tasks.aircombat.spacetime.flyout import FlyOut, Physics, fly_out
from fledge.tasks.aircombat.spacetime.geometry import launch_at
from fledge.tasks.aircombat.spacetime.manoeuvres import (
    AWAY_LEFT,
    AWAY_RIGHT,
    BEAM_LEFT,
    BEAM_RIGHT,
    BREAK_LEFT,
    BREAK_RIGHT,
    HARD_LEFT,
    HARD_RIGHT,
    HOLD,
    LATE_LEFT,
    LATE_RIGHT,
)

RATIO = wp.constant(1.1)
HALVINGS = wp.constant(6)
NEAREST = wp.constant(1000.0)  # m: closer, everything counts as within reach
COARSE = wp.constant(2.0)  # steps of the search from outside are longer by this
NO_ESCAPE = wp.constant(-1)  # stands for all of DEFENCES


@wp.func
def fly_at(p: Physics, geometry: wp.vec4, away: float, manoeuvre: int, dt: float) -> FlyOut:
    """A shot at this geometry and range."""
    launch = launch_at(geometry, away)
    return fly_out(p, launch.shooter, p.motor.burn, launch.target, manoeuvre, dt, 0.0)


@wp.func
def kills_one(p: Physics, g: wp.vec4, away: float, manoeuvre: int, dt: float) -> bool:
    return fly_at(p, g, away, manoeuvre, dt).killed == 1


@wp.func
def kills(p: Physics, g: wp.vec4, away: float, manoeuvre: int, dt: float) -> bool:
    """Whether a shot at this range kills. The likeliest escapes come first."""
    if manoeuvre != NO_ESCAPE:
        return kills_one(p, g, away, manoeuvre, dt)
    if not kills_one(p, g, away, BREAK_LEFT, dt) or not kills_one(p, g, away, BREAK_RIGHT, dt):
        return False
    if not kills_one(p, g, away, LATE_LEFT, dt) or not kills_one(p, g, away, LATE_RIGHT, dt):
        return False
    if not kills_one(p, g, away, AWAY_LEFT, dt) or not kills_one(p, g, away, AWAY_RIGHT, dt):
        return False
    if not kills_one(p, g, away, HARD_LEFT, dt) or not kills_one(p, g, away, HARD_RIGHT, dt):
        return False
    return kills_one(p, g, away, BEAM_LEFT, dt) and kills_one(p, g, away, BEAM_RIGHT, dt)


@wp.func
def bisect(p: Physics, g: wp.vec4, manoeuvre: int, killing: float, missing: float, dt: float) -> float:
    """The border between a range that kills and one that does not; on the side that does not."""
    inside = killing
    outside = missing
    for _k in range(HALVINGS):
        middle = 0.5 * (inside + outside)
        if kills(p, g, middle, manoeuvre, dt):
            inside = middle
        else:
            outside = middle
    return outside


@wp.func
def largest_range(p: Physics, g: wp.vec4, manoeuvre: int, farthest: float, dt: float) -> float:
    """The largest range, up to `farthest`, at which a shot kills; 0 if none does."""
    if farthest <= NEAREST:
        return 0.0
    inside = float(farthest)
    while inside > NEAREST and not kills(p, g, inside, manoeuvre, COARSE * dt):
        inside = inside / RATIO
    outside = inside * RATIO
    while outside <= farthest and kills(p, g, outside, manoeuvre, dt):
        inside = outside
        outside = outside * RATIO
    while inside > NEAREST and not kills(p, g, inside, manoeuvre, dt):
        outside = inside
        inside = inside / RATIO
    if inside <= NEAREST:
        return 0.0
    if inside >= farthest:
        return inside
    return bisect(p, g, manoeuvre, inside, outside, dt)


@wp.func
def smallest_range(p: Physics, g: wp.vec4, manoeuvre: int, largest: float, dt: float) -> float:
    """The other end of the interval of ranges that kill, at least half of the largest."""
    if largest == 0.0 or kills(p, g, 0.7 * largest, manoeuvre, dt):
        return 0.5 * largest
    killing = 0.995 * largest
    away = killing
    while away > 0.5 * largest and kills(p, g, away, manoeuvre, dt):
        killing = away
        away = away / wp.sqrt(RATIO)
    return bisect(p, g, manoeuvre, killing, away, dt)


@wp.kernel(enable_backward=False)
def solve_ranges(
    first: int,
    p: Physics,
    farthest: wp.vec2,
    dt: float,
    geometries: wp.array(dtype=wp.vec4),
    largest: wp.array(dtype=wp.vec4),
    smallest: wp.array(dtype=wp.vec4),
):
    """r_max, r_left, r_right, r_ne of geometries (own speed, target's speed, off-boresight, aspect).

    `farthest` are bounds of r_max, and of r_left and r_right. `smallest` of r_ne is not worked out, and of length 0 none is.
    """
    i = first + wp.tid()
    g = geometries[i]
    left = largest_range(p, g, AWAY_LEFT, farthest[1], dt)
    right = largest_range(p, g, AWAY_RIGHT, farthest[1], dt)
    hold = largest_range(p, g, HOLD, farthest[0], dt)
    no_escape = largest_range(p, g, NO_ESCAPE, wp.min(hold, wp.min(left, right)), dt)
    largest[i] = wp.vec4(hold, left, right, no_escape)
    if smallest.shape[0] > 0:
        smallest[i] = wp.vec4(
            smallest_range(p, g, HOLD, hold, dt),
            smallest_range(p, g, AWAY_LEFT, left, dt),
            smallest_range(p, g, AWAY_RIGHT, right, dt),
            0.5 * no_escape,
        )


@wp.kernel(enable_backward=False)
def fly_outs(
    first: int,
    p: Physics,
    manoeuvre: int,
    dt: float,
    geometries: wp.array(dtype=wp.vec4),
    ranges: wp.array(dtype=wp.float32),
    out: wp.array(dtype=wp.vec3),
):
    """A shot at each geometry and range: killed, time, closest approach."""
    i = first + wp.tid()
    end = fly_at(p, geometries[i], ranges[i], manoeuvre, dt)
    out[i] = wp.vec3(float(end.killed), end.time, end.miss)
