"""Fly-outs: one guided missile against one target that flies a manoeuvre, with the env's own physics.

A geometry is own speed, target's speed (m/s), off-boresight and aspect (rad, left positive): the angle from the shooter's nose
to the target, and from the target's nose to the shooter. Aspect 0 is a target that comes nose-on, pi a tail chase.

A fly-out ends when the missile has killed or is spent, or when the end is certain: a coasting missile that is slower than a
target flying straight ahead of it never gets nearer. Steps may be long: the arc of a step is exact, and the closest approach
is computed within the step.

Kill ranges of a geometry, the exact values that tables interpolate:

    r_max     the target holds its course
    r_left    it turns away to the left at launch, and runs        r_right   the same to the right
    r_ne      it flies any manoeuvre

Each is the largest range at which a shot kills, or 0 if no shot from beyond NEAREST kills. The ranges that kill need not be
one interval. So the search starts far out, comes nearer by the factor RATIO until a shot kills, and bisects from there. The
result is never below the exact value, and exceeds it by less than the factor RATIO^(1 / 2^HALVINGS).

Below each largest range, a missile kills down to a smallest range; the search for that ends at half the largest range. Both
are equal at geometries where the interval between them shrinks to nothing: far off its boresight, a missile cannot turn in
time.
"""

import warp as wp

from fledge.tasks.aircombat.physics.airframe import Flyer, flyer, move
from fledge.tasks.aircombat.physics.fight import slew
from fledge.tasks.aircombat.physics.missile import closest_approach, fly_missile, guide, unit
from fledge.tasks.aircombat.physics.structs import FAR, Floats, Physics, Vec3s, Vec4s
from fledge.tasks.aircombat.spacetime.manoeuvres import LATE, Manoeuvre, choose_rudder, time_to_go

# Loops stay loops: unrolled, they would copy the fly-out into so many places that compiling takes 20 s longer.
wp.set_module_options({"max_unroll": 0})

PI = wp.constant(3.14159265358979)
STRAIGHT = wp.constant(0.05)  # largest rudder of a target that counts as flying straight
LONGEST = wp.constant(600.0)  # s; no missile flies longer
LONGEST_STEP = wp.constant(4.0)  # s
LAST = wp.constant(2.0)  # s before the end of a fly-out that are extrapolated
RATIO = wp.constant(1.1)
HALVINGS = wp.constant(6)
NEAREST = wp.constant(1000.0)  # m; anything closer counts as within range
COARSE = wp.constant(2.0)  # factor on the time step in the search from outside
NO_ESCAPE = wp.constant(-1)  # stands for all manoeuvres


@wp.struct
class Launch:
    """State of both sides when the missile is launched."""

    shooter: Flyer  # and its missile: at the origin, pointing east
    target: Flyer


@wp.func
def launch_at(geometry: wp.vec4, away: float) -> Launch:
    """Return the states of shooter and target in a geometry, `away` metres apart."""
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
    """Return whether a coasting missile is too slow ever to reach a target that flies straight."""
    ahead = wp.dot(target.pos - missile.pos, target.dir)
    return missile.speed < wp.min(target.speed, p.top_speed) and ahead > 2.0 * p.motor.kill_radius


@wp.func
def extrapolate_end(p: Physics, so_far: FlyOut, missile: Flyer, target: Flyer, togo: float) -> FlyOut:
    """Return how a fly-out ends if its last `togo` seconds are not simulated.

    Missile and target fly straight for that time. The miss is their distance then, less what the missile can still correct
    by turning.
    """
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
    """Return the result of a missile in the state `start` against a target (`prey`) that flies a manoeuvre.

    The motor burns for `burn` more seconds. A step lasts dt seconds or, if that is longer, the fraction `share` of the time to
    go. If `share` is not 0, the last seconds are extrapolated.
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


@wp.func
def fly_at(p: Physics, geometry: wp.vec4, away: float, manoeuvre: int, dt: float) -> FlyOut:
    """Return the result of a shot at this geometry from `away` metres, at a target that flies a manoeuvre."""
    launch = launch_at(geometry, away)
    return fly_out(p, launch.shooter, p.motor.burn, launch.target, manoeuvre, dt, 0.0)


@wp.func
def kills_one(p: Physics, g: wp.vec4, away: float, manoeuvre: int, dt: float) -> bool:
    return fly_at(p, g, away, manoeuvre, dt).killed == 1


@wp.func
def kills(p: Physics, g: wp.vec4, away: float, manoeuvre: int, dt: float) -> bool:
    """Return whether a shot from `away` metres kills a target that flies `manoeuvre`.

    With NO_ESCAPE, return whether it kills whatever the target flies; the manoeuvres likeliest to escape are tried first.
    """
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
    """Return by bisection the range, m, at which shots cease to kill, between `killing` and `missing`.

    A shot from `killing` kills, a shot from `missing` does not, nor does a shot from the range returned.
    """
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
    """Return the largest range up to `farthest` at which a shot kills, m; 0 if no shot kills."""
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
    """Return the smallest range, m, such that shots kill from there up to the range `largest`.

    The search ends at about half of `largest`.
    """
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
    first: int, p: Physics, farthest: wp.vec2, dt: float, geometries: Vec4s, largest: Vec4s, smallest: Vec4s
):
    """Find for each geometry the launch ranges at which the missile kills, m.

    Their upper limits go to `largest`, their lower limits to `smallest`, each as (r_max, r_left, r_right, r_ne). If `smallest`
    has length 0, it is not written. The lower limit of r_ne is not searched: it is half the upper limit.

    Args:
        first: Index of the launch's first geometry.
        farthest: Ranges, m, at which the search starts: for r_max, and for r_left and r_right.
    """
    i = first + wp.tid()
    g = geometries[i]
    upper = wp.vec4()
    lower = wp.vec4()
    for column in range(4):  # HOLD, AWAY_LEFT, AWAY_RIGHT and NO_ESCAPE
        manoeuvre = column
        outermost = farthest[1]
        if column == int(Manoeuvre.HOLD):
            outermost = farthest[0]
        if column == 3:
            manoeuvre = NO_ESCAPE
            outermost = wp.min(upper[0], wp.min(upper[1], upper[2]))
        upper[column] = largest_range(p, g, manoeuvre, outermost, dt)
        lower[column] = 0.5 * upper[column]
        if smallest.shape[0] > 0 and manoeuvre != NO_ESCAPE:
            lower[column] = smallest_range(p, g, manoeuvre, upper[column], dt)
    largest[i] = upper
    if smallest.shape[0] > 0:
        smallest[i] = lower


@wp.kernel(enable_backward=False)
def fly_outs(first: int, p: Physics, manoeuvre: int, dt: float, geometries: Vec4s, ranges: Floats, out: Vec3s):
    """Fly a shot at each geometry and range (m); write killed (1 or 0), time (s) and closest approach (m) to `out`.

    `first` is the index of the launch's first shot.
    """
    i = first + wp.tid()
    end = fly_at(p, geometries[i], ranges[i], manoeuvre, dt)
    out[i] = wp.vec3(float(end.killed), end.time, end.miss)
