"""Kill ranges of any geometry, interpolated in a table of geometries that `flyout` solved.

Axes: own speed, target's speed, off-boresight 0 to pi, aspect -pi to pi. Negative off-boresights are the mirror image, with
left and right swapped. Speeds outside the axes are clipped.

A missile kills from a smallest to a largest range. The table interpolates the middle of this interval, and the square of half
its length. Both are smooth where the interval shrinks to nothing; the range itself falls like a square root there, and jumps.
Nodes beyond such a border, at which no range kills, have a negative square (`build.complete`).
"""

import warp as wp

PI = wp.constant(3.14159265358979)
BOTH_WAYS = wp.constant(
    1.0471976
)  # rad, 60 degrees; with the shooter farther off its nose, a target turns the short way


@wp.struct
class Axis:
    """Grid nodes of one axis. They are unevenly spaced; `index` has for each whole unit the node at or below it."""

    origin: float
    per_unit: float  # units (m/s or degrees) in 1 of the value (m/s or rad)
    index: wp.array(dtype=wp.int32)  # [units + 1]
    nodes: wp.array(dtype=wp.float32)  # units after the origin


@wp.struct
class ReachTable:
    """Intervals of kill ranges over [own speed, target's speed, off-boresight, aspect].

    An interval is stored as its middle (m) and its square: that of half its length (m²), negative if no range kills.
    """

    own: Axis
    target: Axis
    off_boresight: Axis
    aspect: Axis
    turning: wp.array4d(dtype=wp.vec4)  # middle and square of r_left, then of r_right
    others: wp.array4d(dtype=wp.vec4)  # middle and square of r_max, then of r_ne
    margin: float  # share by which r_max and r_tr are enlarged, for safety
    nearest: float  # m; anything closer counts as within range


@wp.struct
class Place:
    """Position of a geometry in the table: the lower grid node on each axis, and the fraction of the way to the next node."""

    node: wp.vec4i
    share: wp.vec4
    mirrored: int  # 1 if left and right are swapped


@wp.func
def place_on(axis: Axis, value: float) -> wp.vec2:
    """Return the lower grid node of a value on an axis, and the fraction of the way to the next node."""
    last = axis.index.shape[0] - 1
    at = wp.clamp((value - axis.origin) * axis.per_unit, 0.0, float(last))
    node = axis.index[int(at)]
    before = axis.nodes[node]
    return wp.vec2(float(node), (at - before) / (axis.nodes[node + 1] - before))


@wp.func
def wrap(angle: float) -> float:
    """Return the same angle between -pi and pi, from an angle between -3 pi and 3 pi."""
    if angle > PI:
        return angle - 2.0 * PI
    if angle < -PI:
        return angle + 2.0 * PI
    return angle


@wp.func
def find_place(t: ReachTable, own_speed: float, target_speed: float, off_boresight: float, aspect: float) -> Place:
    off = wrap(off_boresight)
    seen = wrap(aspect)
    out = Place()
    if off < 0.0:
        off = -off
        seen = -seen
        out.mirrored = 1
    a = place_on(t.own, own_speed)
    b = place_on(t.target, target_speed)
    c = place_on(t.off_boresight, off)
    e = place_on(t.aspect, seen)
    out.node = wp.vec4i(int(a[0]), int(b[0]), int(c[0]), int(e[0]))
    out.share = wp.vec4(a[1], b[1], c[1], e[1])
    return out


@wp.func
def interpolate(values: wp.array4d(dtype=wp.vec4), p: Place) -> wp.vec4:
    """Return the value at a place: the mean of the 16 grid nodes around it, weighted by its fractions."""
    out = wp.vec4()
    for a in range(2):
        by_own = wp.abs(float(1 - a) - p.share[0])
        for b in range(2):
            by_target = by_own * wp.abs(float(1 - b) - p.share[1])
            for c in range(2):
                by_off = by_target * wp.abs(float(1 - c) - p.share[2])
                i = p.node[0] + a
                j = p.node[1] + b
                k = p.node[2] + c
                out += by_off * (1.0 - p.share[3]) * values[i, j, k, p.node[3]]
                out += by_off * p.share[3] * values[i, j, k, p.node[3] + 1]
    return out


@wp.func
def far_end(middle: float, square: float) -> float:
    """Return the larger end, m, of the interval with this middle and square (see `ReachTable`); 0 if it is empty."""
    if square <= 0.0:
        return 0.0
    return middle + wp.sqrt(square)


@wp.func
def turning_range(t: ReachTable, p: Place, aspect: float) -> float:
    """Return r_tr, m: the range within which turning away does not save the target.

    The target turns to the side that saves it best if the shooter is within 60 degrees of its nose, else the shorter way.
    """
    ends = interpolate(t.turning, p)
    left = far_end(ends[0], ends[1])
    right = far_end(ends[2], ends[3])
    seen = wrap(aspect)
    if p.mirrored == 1:
        seen = -seen
    found = wp.min(left, right)
    if seen > BOTH_WAYS:
        found = right
    elif seen < -BOTH_WAYS:
        found = left
    return wp.max((1.0 + t.margin) * found, t.nearest)


@wp.func
def lookup_turning(t: ReachTable, own_speed: float, target_speed: float, off_boresight: float, aspect: float) -> float:
    """Return r_tr alone, m, at half the cost of `lookup`."""
    return turning_range(t, find_place(t, own_speed, target_speed, off_boresight, aspect), aspect)


@wp.func
def lookup(t: ReachTable, own_speed: float, target_speed: float, off_boresight: float, aspect: float) -> wp.vec3:
    """Return r_max, r_tr and r_ne, m, each at least `t.nearest`.

    Speeds are in m/s, angles in rad, -2 pi to 2 pi, positive to the left.
    """
    p = find_place(t, own_speed, target_speed, off_boresight, aspect)
    ends = interpolate(t.others, p)
    r_max = wp.max((1.0 + t.margin) * far_end(ends[0], ends[1]), t.nearest)
    r_tr = turning_range(t, p, aspect)
    r_ne = wp.clamp(far_end(ends[2], ends[3]), t.nearest, r_tr)
    return wp.vec3(r_max, r_tr, r_ne)


@wp.kernel(enable_backward=False)
def look_up(first: int, t: ReachTable, geometries: wp.array(dtype=wp.vec4), out: wp.array(dtype=wp.vec3)):
    """Write to `out` r_max, r_tr and r_ne, m, of each geometry; `first` is the index of the launch's first geometry.

    A geometry is own speed, target's speed (m/s), off-boresight and aspect (rad).
    """
    i = first + wp.tid()
    g = geometries[i]
    out[i] = lookup(t, g[0], g[1], g[2], g[3])
