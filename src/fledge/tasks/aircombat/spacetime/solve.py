"""Kill ranges of one geometry (see `flyout`), by fly-outs: the exact values that tables interpolate.

    r_max     the target holds its course
    r_left    it turns away to the left at launch, and runs        r_right   the same to the right
    r_ne      it flies any manoeuvre

Each is the largest range that kills, 0 if none beyond NEAREST does. The ranges that kill need not be an interval: the search
comes from outside, in steps of RATIO, to the first range that kills, and bisects from there. The answer is never below the
exact value, and above it by less than RATIO^(1 / 2^HALVINGS).

Each comes with the other end of that interval, or half the range if it kills down to there. Where an interval shrinks to
nothing (a missile fired far off its boresight cannot turn in time at any range), its ends meet, and tables show where.
"""

import warp as wp

from fledge.tasks.aircombat.physics.structs import Physics
from fledge.tasks.aircombat.spacetime.flyout import FlyOut, fly_out, launch_at
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre

RATIO = wp.constant(1.1)
HALVINGS = wp.constant(6)
NEAREST = wp.constant(1000.0)  # m; anything closer counts as within range
COARSE = wp.constant(2.0)  # steps of the search from outside are longer by this
NO_ESCAPE = wp.constant(-1)  # stands for all manoeuvres


@wp.func
def fly_at(p: Physics, geometry: wp.vec4, away: float, manoeuvre: int, dt: float) -> FlyOut:
    """Fly a shot at this geometry and range."""
    launch = launch_at(geometry, away)
    return fly_out(p, launch.shooter, p.motor.burn, launch.target, manoeuvre, dt, 0.0)


@wp.func
def kills_one(p: Physics, g: wp.vec4, away: float, manoeuvre: int, dt: float) -> bool:
    return fly_at(p, g, away, manoeuvre, dt).killed == 1


@wp.func
def kills(p: Physics, g: wp.vec4, away: float, manoeuvre: int, dt: float) -> bool:
    """Return whether a shot at this range kills; with NO_ESCAPE, whatever the target does, likeliest escapes first."""
    if manoeuvre != NO_ESCAPE:
        return kills_one(p, g, away, manoeuvre, dt)
    for escape in range(int(Manoeuvre.BREAK_LEFT), Manoeuvre.LATE_RIGHT + 1):
        if not kills_one(p, g, away, escape, dt):
            return False
    if not kills_one(p, g, away, Manoeuvre.AWAY_LEFT, dt) or not kills_one(p, g, away, Manoeuvre.AWAY_RIGHT, dt):
        return False
    for escape in range(int(Manoeuvre.HARD_LEFT), Manoeuvre.BEAM_RIGHT + 1):
        if not kills_one(p, g, away, escape, dt):
            return False
    return True


@wp.func
def bisect(p: Physics, g: wp.vec4, manoeuvre: int, killing: float, missing: float, dt: float) -> float:
    """Return the border between a range that kills and one that does not, from the side that does not."""
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
    """Return the largest range, up to `farthest`, at which a shot kills; 0 if none does."""
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
    """Return the other end of the interval of ranges that kill, at least half of the largest."""
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
    """Solve r_max, r_left, r_right, r_ne of geometries.

    `farthest` are bounds of r_max, and of r_left and r_right. `smallest` may have length 0; that of r_ne is not searched.
    """
    i = first + wp.tid()
    g = geometries[i]
    left = largest_range(p, g, Manoeuvre.AWAY_LEFT, farthest[1], dt)
    right = largest_range(p, g, Manoeuvre.AWAY_RIGHT, farthest[1], dt)
    hold = largest_range(p, g, Manoeuvre.HOLD, farthest[0], dt)
    no_escape = largest_range(p, g, NO_ESCAPE, wp.min(hold, wp.min(left, right)), dt)
    largest[i] = wp.vec4(hold, left, right, no_escape)
    if smallest.shape[0] > 0:
        smallest[i] = wp.vec4(
            smallest_range(p, g, Manoeuvre.HOLD, hold, dt),
            smallest_range(p, g, Manoeuvre.AWAY_LEFT, left, dt),
            smallest_range(p, g, Manoeuvre.AWAY_RIGHT, right, dt),
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
    """Fly a shot at each geometry and range: killed, time, closest approach."""
    i = first + wp.tid()
    end = fly_at(p, geometries[i], ranges[i], manoeuvre, dt)
    out[i] = wp.vec3(float(end.killed), end.time, end.miss)
