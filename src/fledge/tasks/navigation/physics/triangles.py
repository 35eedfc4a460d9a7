"""Distances to triangles, for kernels."""

import warp as wp

INF = 1.0e9


@wp.func
def ray_triangle(origin: wp.vec3, ray: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> float:
    """Return the distance along a unit ray to a triangle, seen from either side, m; INF if the ray misses it.

    Möller & Trumbore 1997.
    """
    ab = b - a
    ac = c - a
    cross = wp.cross(ray, ac)
    det = wp.dot(ab, cross)
    if wp.abs(det) < 1.0e-12:
        return INF
    to = origin - a
    u = wp.dot(to, cross) / det
    across = wp.cross(to, ab)
    v = wp.dot(ray, across) / det
    t = wp.dot(ac, across) / det
    if u < -1.0e-5 or v < -1.0e-5 or u + v > 1.00001 or t < 0.0:
        return INF
    return t


@wp.func
def triangle_distance(p: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> float:
    """Return the distance from a point to a triangle, m (Ericson, Real-Time Collision Detection, 5.1.5)."""
    ab = b - a
    ac = c - a
    ap = p - a
    d1 = wp.dot(ab, ap)
    d2 = wp.dot(ac, ap)
    if d1 <= 0.0 and d2 <= 0.0:
        return wp.length(ap)
    bp = p - b
    d3 = wp.dot(ab, bp)
    d4 = wp.dot(ac, bp)
    if d3 >= 0.0 and d4 <= d3:
        return wp.length(bp)
    vc = d1 * d4 - d3 * d2
    if vc <= 0.0 and d1 >= 0.0 and d3 <= 0.0:
        return wp.length(ap - (d1 / wp.max(d1 - d3, 1.0e-20)) * ab)
    cp = p - c
    d5 = wp.dot(ab, cp)
    d6 = wp.dot(ac, cp)
    if d6 >= 0.0 and d5 <= d6:
        return wp.length(cp)
    vb = d5 * d2 - d1 * d6
    if vb <= 0.0 and d2 >= 0.0 and d6 <= 0.0:
        return wp.length(ap - (d2 / wp.max(d2 - d6, 1.0e-20)) * ac)
    va = d3 * d6 - d5 * d4
    if va <= 0.0 and d4 - d3 >= 0.0 and d5 - d6 >= 0.0:
        w = (d4 - d3) / wp.max((d4 - d3) + (d5 - d6), 1.0e-20)
        return wp.length(bp - w * (c - b))
    scale = 1.0 / wp.max(va + vb + vc, 1.0e-20)
    return wp.length(ap - (vb * scale) * ab - (vc * scale) * ac)


@wp.func
def segment_distance(p: wp.vec2, a: wp.vec2, b: wp.vec2) -> float:
    """Return the distance from a point to a line segment in the plane."""
    ab = b - a
    t = wp.clamp(wp.dot(p - a, ab) / wp.max(wp.dot(ab, ab), 1.0e-20), 0.0, 1.0)
    return wp.length(p - a - t * ab)


@wp.func
def flat(a: wp.vec3) -> wp.vec2:
    return wp.vec2(a[0], a[1])


@wp.func
def clipped_edge(p: wp.vec2, a: wp.vec3, b: wp.vec3, low: float, high: float) -> float:
    """Return the horizontal distance from a point to the part of an edge at heights `low` to `high`; INF if it has none."""
    if wp.max(a[2], b[2]) < low or wp.min(a[2], b[2]) > high:
        return INF
    s0 = float(0.0)
    s1 = float(1.0)
    rise = b[2] - a[2]
    if wp.abs(rise) > 1.0e-9:
        t0 = (low - a[2]) / rise
        t1 = (high - a[2]) / rise
        s0 = wp.clamp(wp.min(t0, t1), 0.0, 1.0)
        s1 = wp.clamp(wp.max(t0, t1), 0.0, 1.0)
    return segment_distance(p, flat(a + s0 * (b - a)), flat(a + s1 * (b - a)))


@wp.func
def cut_distance(p: wp.vec2, a: wp.vec3, b: wp.vec3, c: wp.vec3, z: float) -> float:
    """Return the horizontal distance from a point to the line in which the plane at height z cuts a triangle; INF: none."""
    count = int(0)
    first = wp.vec2()
    second = wp.vec2()
    for e in range(3):
        u = a
        v = b
        if e == 1:
            u = b
            v = c
        elif e == 2:
            u = c
            v = a
        if (u[2] < z) != (v[2] < z):
            at = flat(u + ((z - u[2]) / (v[2] - u[2])) * (v - u))
            if count == 0:
                first = at
            else:
                second = at
            count = count + 1
    if count < 2:
        return INF
    return segment_distance(p, first, second)


@wp.func
def column_distance(p: wp.vec3, half: float, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> float:
    """Return the horizontal distance from a point to the part of a triangle at most `half` above or below it; INF: none.

    The nearest point of that part lies straight above or below p, on an edge of the triangle, or where the part is cut off.
    """
    low = p[2] - half
    high = p[2] + half
    if wp.max(wp.max(a[2], b[2]), c[2]) < low or wp.min(wp.min(a[2], b[2]), c[2]) > high:
        return INF
    q = flat(p)
    normal = wp.cross(b - a, c - a)
    if wp.abs(normal[2]) > 1.0e-12:
        z = a[2] - (normal[0] * (p[0] - a[0]) + normal[1] * (p[1] - a[1])) / normal[2]
        at = wp.vec3(p[0], p[1], z)
        inside = (
            wp.dot(wp.cross(b - a, at - a), normal) >= 0.0
            and wp.dot(wp.cross(c - b, at - b), normal) >= 0.0
            and wp.dot(wp.cross(a - c, at - c), normal) >= 0.0
        )
        if inside and z >= low and z <= high:
            return 0.0
    edges = wp.min(clipped_edge(q, a, b, low, high), clipped_edge(q, b, c, low, high))
    edges = wp.min(edges, clipped_edge(q, c, a, low, high))
    return wp.min(edges, wp.min(cut_distance(q, a, b, c, low), cut_distance(q, a, b, c, high)))
