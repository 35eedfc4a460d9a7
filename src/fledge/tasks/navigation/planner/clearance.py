"""Clearances of the search: how near a candidate command leads to remembered hits and to movers, and what that costs."""

import warp as wp

from fledge.tasks.navigation.planner.local_map import LocalMap, bands_between, ring_at
from fledge.tasks.navigation.planner.readings import FAR, Movers, Own, crowd
from fledge.tasks.navigation.sensing.observations import NEAREST

UPRIGHT_M = 0.1  # safety distance above and below the body
FLOOR_M, CEILING_M = 0.1, 0.1  # distance to keep from the height limits

TOUCH = 0.02  # m
ROUNDING = 1.0e-3  # m: larger than rounding errors of costs
USUAL_SPEED = 1.5  # m/s: faster movers get a further margin
BLOCK = 32  # commands
EVERY_MOVER = sum((k + 1) << (4 * k) for k in range(NEAREST))  # all rows, as in `Movers.near`

commands = wp.types.vector(length=BLOCK, dtype=wp.float32)


@wp.struct
class Search:
    """Settings and buffers of the search. In shapes: C candidates, T prediction steps, F and U rates (`Response`)."""

    commands: wp.array(dtype=wp.vec3)  # [C] m/s, x to the goal
    blocks: wp.array2d(dtype=commands)  # [3, C / BLOCK, rounded up] the same: x, y and z
    drift: wp.array2d(dtype=wp.vec3)  # [N, 2 T] m: position under a command of 0, held and brief
    last: wp.array(dtype=wp.int32)  # [N] number of the last choice, which is tried first
    flat: wp.array2d(
        dtype=wp.vec3
    )  # [2 F, T] a, b, c of the horizontal position: of each rate, held and brief commands
    upright: wp.array2d(dtype=wp.vec3)  # [2 U, T] a, b, c of the vertical position
    kinds: int  # 2 with brief commands, else 1
    price: wp.array(dtype=wp.float32)  # [T] cost per metre of clearance missing to static obstacles
    mover_price: wp.array(dtype=wp.float32)  # [T] cost per metre of clearance missing to movers
    ring_m: wp.array(dtype=wp.float32)  # [9] distance of each ring, m
    step_s: float
    body: float  # m: radius of the drone plus safety distance
    skin: float  # m: safety distance
    reach_z: float  # m: hits up to this far above or below the drone's centre are obstacles
    margin: float
    mover_margin: float
    fast_mover_s: float
    crash_cost: float
    crash_relief: float
    depth_cost: float
    goal_radius: float
    floor: float
    ceiling: float
    gain: float  # m towards the goal within the horizon at full speed
    alarm: int  # prediction steps within which a shield avoids a collision
    furthest: wp.vec3  # largest a, b and c of the horizontal position within the horizon
    least_crash: float  # m: cost of a collision at the end of the horizon
    top_speed: float  # m/s: largest horizontal speed of a candidate


@wp.func
def column_gap(s: Search, m: LocalMap, i: int, at: wp.vec3) -> float:
    """Return the distance from a point to the nearest remembered hit at its height, m."""
    return s.ring_m[ring_at(m, i, at[0], at[1], bands_between(at[2] - s.reach_z, at[2] + s.reach_z))]


@wp.func
def further_margins(s: Search, movers: Movers, i: int) -> crowd:
    """Return the clearance from each mover that is desired beyond the usual one because the mover is fast, m."""
    further = crowd()
    for k in range(NEAREST):
        v = movers.motion[i, k]
        speed = wp.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])
        further[k] = s.fast_mover_s * wp.max(speed - USUAL_SPEED, 0.0)
    return further


@wp.func
def squared_reaches(s: Search, movers: Movers, i: int, further: crowd) -> crowd:
    """Return the squared horizontal distance at which each mover ceases to have an effect, m²; 0 in an empty row."""
    reach = crowd()
    for k in range(NEAREST):
        p = movers.place[i, k]
        if p[0] < FAR:
            away = p[3] + s.body + s.mover_margin + further[k] + 2.0 * TOUCH
            reach[k] = away * away
    return reach


@wp.func
def list_near_movers(s: Search, movers: Movers, i: int, own: Own, top_speed: float):
    """Write to `movers.near` which movers can have an effect at each prediction step, under any command up to a speed.

    An entry lists the movers' rows, counted from 1, in four bits each, the nearest first; the rest is 0.
    """
    away = crowd()
    for n in range(NEAREST):
        away[n] = wp.sqrt(own.reach[n])
    for k in range(s.flat.shape[1]):
        f = s.flat[2 * own.flat, k]
        x = s.drift[i, k][0]
        y = s.drift[i, k][1]
        reach = top_speed * wp.max(wp.abs(f[2]), wp.abs(s.flat[2 * own.flat + 1, k][2])) + ROUNDING
        t = own.lead + float(k + 1) * s.step_s
        listed = int(0)
        for m in range(NEAREST):
            n = NEAREST - 1 - m
            p = movers.place[i, n]
            v = movers.motion[i, n]
            dx = p[0] + t * v[0] - x
            dy = p[1] + t * v[1] - y
            if away[n] > 0.0 and dx * dx + dy * dy < (away[n] + reach) * (away[n] + reach):
                listed = (listed << 4) | (n + 1)
        movers.near[i, k] = listed


@wp.func
def nearest_mover(movers: Movers, i: int, own: Own, at: wp.vec3, t: float, listed: int) -> wp.vec2:
    """Return the distance from a point to the nearest mover at time t, m, and by how much less it counts for the margin.

    The distance from a mover is the larger of horizontal and vertical distance; movers beyond `own.reach` count as FAR. For
    the margin, the nearest mover is the one with the least distance after its further margin is subtracted. `listed` has the
    movers to examine, as in `movers.near`.
    """
    gap = float(FAR)
    counted = float(FAR)
    while listed != 0:
        k = (listed & 15) - 1
        listed = listed >> 4
        p = movers.place[i, k]
        v = movers.motion[i, k]
        x = p[0] + t * v[0] - at[0]
        y = p[1] + t * v[1] - at[1]
        square = x * x + y * y
        if square < own.reach[k]:
            each = wp.max(wp.sqrt(square) - p[3], wp.abs(p[2] + t * v[2] - at[2]) - v[3])
            gap = wp.min(gap, each)
            counted = wp.min(counted, each - own.further[k])
    return wp.vec2(gap, gap - counted)


@wp.func
def body_now(s: Search, m: LocalMap, i: int, movers: Movers, own: Own) -> wp.vec2:
    """Return the distances to columns and to movers below which the drone collides, m.

    Each is the drone's radius plus the safety distance or, if the drone is already nearer, its present distance. A drone that
    is stuck does without the safety distance to columns.
    """
    columns = s.body - (1.0 - own.patience) * s.skin
    if s.depth_cost > 0.0:
        gap = wp.max(column_gap(s, m, i, own.pos), s.body - s.skin)
        away = wp.max(nearest_mover(movers, i, own, own.pos, own.lead, EVERY_MOVER)[0] - TOUCH, s.body - s.skin)
        return wp.vec2(wp.min(columns, gap), wp.min(s.body, away))
    return wp.vec2(
        wp.min(columns, column_gap(s, m, i, own.pos)),
        wp.min(s.body, nearest_mover(movers, i, own, own.pos, own.lead, EVERY_MOVER)[0] - TOUCH),
    )


@wp.func
def is_within_heights(s: Search, own: Own, z: float) -> bool:
    """Return whether a height, m, is within the limits; a drone beyond them may return."""
    return (z >= s.floor or z >= own.pos[2]) and (z <= s.ceiling or z <= own.pos[2])


@wp.func
def gaps_at(s: Search, m: LocalMap, i: int, movers: Movers, own: Own, at: wp.vec3, k: int) -> wp.vec3:
    """Return the gaps to columns and to movers, m, of a drone at a point at prediction step k; a negative gap is a collision.

    Both are -1 if the point is too low or too high. The third number, at least 0, is by how much less the gap to movers counts
    for the margin, as `nearest_mover` returns it.
    """
    if not is_within_heights(s, own, at[2]):
        return wp.vec3(-1.0, -1.0, 0.0)
    mover = wp.vec2(FAR, 0.0)
    listed = movers.near[i, k]
    if listed != 0:
        mover = nearest_mover(movers, i, own, at, own.lead + float(k + 1) * s.step_s, listed)
    return wp.vec3(column_gap(s, m, i, at) - own.body[0], mover[0] - own.body[1], mover[1])


@wp.func
def collides(gaps: wp.vec3) -> bool:
    return gaps[0] < 0.0 or gaps[1] < 0.0


@wp.func
def nearness(s: Search, gaps: wp.vec3, k: int, patience: float) -> float:
    """Return the cost of being near obstacles at prediction step k; `gaps` are those of `gaps_at`.

    `patience` is a factor on the cost of columns.
    """
    missing = wp.max(s.mover_margin - gaps[1] + gaps[2], 0.0)
    return patience * s.price[k] * wp.max(s.margin - gaps[0], 0.0) + s.mover_price[k] * missing


@wp.func
def predict_drift(s: Search, i: int, own: Own):
    """Write to `s.drift` where drone i will be under a command of 0."""
    for brief in range(2):
        for k in range(s.flat.shape[1]):
            f = s.flat[2 * own.flat + brief, k]
            u = s.upright[2 * own.upright + brief, k]
            s.drift[i, brief * s.flat.shape[1] + k] = wp.vec3(
                own.pos[0] + f[0] * own.vel[0] + f[1] * own.acc[0],
                own.pos[1] + f[0] * own.vel[1] + f[1] * own.acc[1],
                own.pos[2] + u[0] * own.vel[2] + u[1] * own.acc[2],
            )


@wp.func
def position_at(s: Search, i: int, own: Own, command: wp.vec3, brief: int, k: int) -> wp.vec3:
    """Return drone i's predicted position at prediction step k, m; `brief` is 1 if the command ends in a stop."""
    f = s.flat[2 * own.flat + brief, k][2]
    u = s.upright[2 * own.upright + brief, k][2]
    at = s.drift[i, brief * s.flat.shape[1] + k]
    return wp.vec3(at[0] + f * command[0], at[1] + f * command[1], at[2] + u * command[2])
