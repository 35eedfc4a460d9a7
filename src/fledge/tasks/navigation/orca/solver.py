"""Velocity obstacles: the commands that lead to a collision within a horizon, and the nearest command that does not.

Optimal reciprocal collision avoidance (J. van den Berg, S. Guy, M. Lin, D. Manocha, ISRR 2009), in three dimensions, where
obstacles do not give way. An obstacle of joint radius R at p (from the drone) with relative velocity v forbids a cone with a
rounded tip; with u the vector from v to its surface and n the normal there, the allowed commands v' are the half-space

    (v' - command - u) . n >= 0

where `command` is the command at which the relative velocity is v.

The result is the allowed command nearest to the wanted command, no faster than the limit. If no command is allowed, the result
violates the half-spaces least: all are enlarged by the same distance, the smallest that allows a command (by bisection).

The drone follows a command with a lag L: within t it moves by L * velocity + (t - L) * command. So obstacles are placed
as for a drone that keeps its velocity for L, and the horizon is shorter by L.
"""

import warp as wp

EPSILON = 1.0e-5
BISECTIONS = 14


@wp.struct
class Answer:
    """Result of a search: whether an allowed command was found, and the command, m/s."""

    found: bool
    v: wp.vec3


@wp.func
def half_space(p: wp.vec3, v: wp.vec3, command: wp.vec3, radius: float, horizon: float, step: float) -> wp.vec4:
    """Return the half-space of allowed commands v' as (n, b): n . v' >= b.

    Args:
        p: Position of the obstacle's centre relative to the drone, m.
        v: `command` minus the obstacle's velocity, m/s.
        radius: Sum of the radii of drone and obstacle, m.
        horizon: Time without a collision, s, for a drone outside the obstacle (|p| > radius). The forbidden velocities are
            a cone whose tip is a ball of radius `radius / horizon` around `p / horizon`.
        step: Time in which a drone inside the obstacle must leave it, s. The forbidden velocities are a ball of radius
            `radius / step` around `p / step`.
    """
    inside = wp.length_sq(p) <= radius * radius
    t = wp.where(inside, step, horizon)
    w = v - p / t
    scale = radius / t
    wp_dot = wp.dot(w, p)
    ball = inside or (wp_dot < 0.0 and wp_dot * wp_dot > radius * radius * wp.length_sq(w))
    if not ball:
        a = wp.length_sq(p)
        b = wp.dot(p, v)
        # sqrt(b² - a c) with c = |v|² - |p x v|² / (|p|² - R²), by Lagrange's identity, without its cancellation
        root = wp.length(wp.cross(p, v)) * radius / wp.sqrt(a - radius * radius)
        along = (b + root) / a
        w = v - along * p
        scale = radius * along
    length = wp.length(w)
    n = -wp.normalize(p)  # at the centre of a ball any direction leads out
    if length > EPSILON:
        n = w / length
    u = (scale - length) * n
    return wp.vec4(n[0], n[1], n[2], wp.dot(command + u, n))


@wp.func
def normal_of(plane: wp.vec4) -> wp.vec3:
    return wp.vec3(plane[0], plane[1], plane[2])


@wp.func
def on_line(
    planes: wp.array2d(dtype=wp.vec4), i: int, a: int, b: int, back: float, wanted: wp.vec3, limit: float
) -> Answer:
    """Return the allowed point nearest to `wanted` on the line where planes a and b meet.

    A point is allowed if it is within the speed `limit` and in the half-spaces 0 .. b - 1 of drone i. All half-spaces are
    enlarged by `back`, m/s.
    """
    answer = Answer()
    na = normal_of(planes[i, a])
    nb = normal_of(planes[i, b])
    way = wp.cross(na, nb)
    square = wp.length_sq(way)
    if square < EPSILON:
        return answer
    cosine = wp.dot(na, nb)
    ba = planes[i, a][3] - back
    bb = planes[i, b][3] - back
    point = ((ba - bb * cosine) * na + (bb - ba * cosine) * nb) / square
    rest = limit * limit - wp.length_sq(point)
    if rest < 0.0:
        return answer
    way = way / wp.sqrt(square)
    high = wp.sqrt(rest)  # `point` is the line's point nearest to the origin
    low = -high
    for k in range(b):
        slope = wp.dot(normal_of(planes[i, k]), way)
        lack = planes[i, k][3] - back - wp.dot(normal_of(planes[i, k]), point)
        if wp.abs(slope) < EPSILON:
            if lack > EPSILON:
                return answer
        elif slope > 0.0:
            low = wp.max(low, lack / slope)
        else:
            high = wp.min(high, lack / slope)
    if low > high:
        return answer
    answer.found = True
    answer.v = point + wp.clamp(wp.dot(way, wanted - point), low, high) * way
    return answer


@wp.func
def on_plane(planes: wp.array2d(dtype=wp.vec4), i: int, a: int, back: float, wanted: wp.vec3, limit: float) -> Answer:
    """Return the allowed point nearest to `wanted` on plane a.

    A point is allowed if it is within the speed `limit` and in the half-spaces 0 .. a - 1 of drone i. All half-spaces are
    enlarged by `back`, m/s.
    """
    answer = Answer()
    n = normal_of(planes[i, a])
    b = planes[i, a][3] - back
    if wp.abs(b) > limit:
        return answer
    middle = b * n
    radius = wp.sqrt(limit * limit - b * b)
    offset = wanted - wp.dot(wanted, n) * n  # from the centre of the disc to the projection of `wanted`
    length = wp.length(offset)
    if length > radius:
        offset = offset * (radius / length)
    v = middle + offset
    for k in range(a):
        if wp.dot(normal_of(planes[i, k]), v) < planes[i, k][3] - back - EPSILON:
            edge = on_line(planes, i, a, k, back, wanted, limit)
            if not edge.found:
                return answer
            v = edge.v
    answer.found = True
    answer.v = v
    return answer


@wp.func
def nearest_allowed(
    planes: wp.array2d(dtype=wp.vec4), i: int, count: int, back: float, wanted: wp.vec3, limit: float
) -> Answer:
    """Return the allowed point nearest to `wanted`, by R. Seidel's incremental linear programming (1991).

    A point is allowed if it is within the speed `limit` and in the first `count` half-spaces of drone i. All half-spaces are
    enlarged by `back`, m/s.
    """
    answer = Answer()
    v = wanted
    length = wp.length(v)
    if length > limit:
        v = v * (limit / length)
    for a in range(count):
        if wp.dot(normal_of(planes[i, a]), v) < planes[i, a][3] - back - EPSILON:
            face = on_plane(planes, i, a, back, wanted, limit)
            if not face.found:
                return answer
            v = face.v
    answer.found = True
    answer.v = v
    return answer


@wp.func
def safest(planes: wp.array2d(dtype=wp.vec4), i: int, count: int, wanted: wp.vec3, limit: float) -> wp.vec3:
    """Return the allowed command nearest to `wanted`; if none is allowed, the command that violates the planes least."""
    best = nearest_allowed(planes, i, count, 0.0, wanted, limit)
    if best.found:
        return best.v
    low = float(0.0)
    high = float(0.0)
    for a in range(count):
        high = wp.max(high, planes[i, a][3])  # hovering violates no plane by more than this
    high = high + 0.01
    best = nearest_allowed(planes, i, count, high, wanted, limit)
    for _k in range(BISECTIONS):
        middle = 0.5 * (low + high)
        trial = nearest_allowed(planes, i, count, middle, wanted, limit)
        if trial.found:
            best = trial
            high = middle
        else:
            low = middle
    return best.v
