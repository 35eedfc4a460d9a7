"""Kill ranges of any geometry, interpolated in a table of solved ones (`solve`).

Axes, evenly spaced: own speed, target's speed, off-boresight 0 to pi, aspect -pi to pi. The other half of the off-boresights
is the mirror image, with left and right swapped. Outside of the speeds, the nearest is taken.

Between nodes, both ends of the interval of ranges that kill are interpolated, by their middle and the signed square of half
their distance. Both are smooth where the interval shrinks and is gone, and the range itself is not: there it falls like a
square root, and jumps. Nodes beyond such a border have ends in the wrong order (`build.complete`): the square is negative.
"""

import warp as wp

PI = wp.constant(3.14159265358979)


@wp.struct
class ReachTable:
    """Ends of the ranges that kill: r_max, r_left, r_right, r_ne."""

    largest: wp.array4d(dtype=wp.vec4)  # m [own speed, target's speed, off-boresight, aspect]
    smallest: wp.array4d(dtype=wp.vec4)  # m
    origin: wp.vec4  # first value of each axis
    per_unit: wp.vec4  # nodes per m/s, and per rad
    margin: float  # share by which r_max and r_tr are made larger, to be on the safe side
    nearest: float  # m: closer, everything counts as within reach


@wp.func
def locate(x: float, origin: float, per_unit: float, count: int) -> wp.vec2:
    """Number of the node before x, and the share of the way to the next."""
    place = wp.clamp((x - origin) * per_unit, 0.0, float(count - 1))
    node = wp.min(wp.floor(place), float(count - 2))
    return wp.vec2(node, place - node)


@wp.func
def interpolate(t: ReachTable, own_speed: float, target_speed: float, off_boresight: float, aspect: float) -> wp.vec4:
    """r_max, r_left, r_right, r_ne of an off-boresight that is not negative; 0: none."""
    at_own = locate(own_speed, t.origin[0], t.per_unit[0], t.largest.shape[0])
    at_target = locate(target_speed, t.origin[1], t.per_unit[1], t.largest.shape[1])
    at_off = locate(off_boresight, t.origin[2], t.per_unit[2], t.largest.shape[2])
    at_aspect = locate(aspect, t.origin[3], t.per_unit[3], t.largest.shape[3])
    middle = wp.vec4()
    square = wp.vec4()
    for a in range(2):
        weight_a = 1.0 - at_own[1] + float(a) * (2.0 * at_own[1] - 1.0)
        for b in range(2):
            weight_b = weight_a * (1.0 - at_target[1] + float(b) * (2.0 * at_target[1] - 1.0))
            for c in range(2):
                weight_c = weight_b * (1.0 - at_off[1] + float(c) * (2.0 * at_off[1] - 1.0))
                for e in range(2):
                    weight = weight_c * (1.0 - at_aspect[1] + float(e) * (2.0 * at_aspect[1] - 1.0))
                    i = int(at_own[0]) + a
                    j = int(at_target[0]) + b
                    k = int(at_off[0]) + c
                    m = int(at_aspect[0]) + e
                    high = t.largest[i, j, k, m]
                    low = t.smallest[i, j, k, m]
                    half = high - low
                    middle = middle + weight * (high + low)
                    square = square + weight * wp.cw_mul(half, wp.abs(half))
    out = wp.vec4()
    for k in range(4):
        if square[k] > 0.0:
            out[k] = 0.5 * (middle[k] + wp.sqrt(square[k]))
    return out


@wp.func
def wrap(angle: float) -> float:
    """The same angle between -pi and pi."""
    if angle > PI:
        return angle - 2.0 * PI
    if angle < -PI:
        return angle + 2.0 * PI
    return angle


@wp.func
def lookup(t: ReachTable, own_speed: float, target_speed: float, off_boresight: float, aspect: float) -> wp.vec3:
    """r_max, r_tr, r_ne, m; at least `nearest`. Angles in radians, left positive, -2 pi to 2 pi."""
    off = wrap(off_boresight)
    seen = wrap(aspect)
    if off < 0.0:
        off = -off
        seen = -seen
    found = interpolate(t, own_speed, target_speed, off, seen)
    r_max = wp.max((1.0 + t.margin) * found[0], t.nearest)
    r_tr = wp.max((1.0 + t.margin) * wp.min(found[1], found[2]), t.nearest)
    return wp.vec3(r_max, r_tr, wp.clamp(found[3], t.nearest, r_tr))


@wp.kernel(enable_backward=False)
def look_up(first: int, t: ReachTable, geometries: wp.array(dtype=wp.vec4), out: wp.array(dtype=wp.vec3)):
    """Geometries as own speed, target's speed, off-boresight, aspect."""
    i = first + wp.tid()
    g = geometries[i]
    out[i] = lookup(t, g[0], g[1], g[2], g[3])
