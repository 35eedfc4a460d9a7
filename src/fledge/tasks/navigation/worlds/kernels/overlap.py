"""Voxels that triangles overlap, by the separating axes of a triangle and a box (Akenine-Möller, 2001)."""

import warp as wp

MARGIN = 1.0e-3  # voxels by which a box is enlarged, so that rounding never loses an overlap


@wp.func
def apart(axis: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> bool:
    """Return whether an axis separates a triangle from the unit box around the origin."""
    reach = (0.5 + MARGIN) * (wp.abs(axis[0]) + wp.abs(axis[1]) + wp.abs(axis[2]))
    pa = wp.dot(axis, a)
    pb = wp.dot(axis, b)
    pc = wp.dot(axis, c)
    return wp.min(pa, wp.min(pb, pc)) > reach or wp.max(pa, wp.max(pb, pc)) < -reach


@wp.func
def apart_by_edge(edge: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> bool:
    """Return whether the cross product of a triangle's edge and a box's edge separates them."""
    if apart(wp.vec3(0.0, -edge[2], edge[1]), a, b, c):
        return True
    if apart(wp.vec3(edge[2], 0.0, -edge[0]), a, b, c):
        return True
    return apart(wp.vec3(-edge[1], edge[0], 0.0), a, b, c)


@wp.func
def overlaps(normal: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3) -> bool:
    """Return whether a triangle overlaps the unit box around the origin; its bounding box is known to."""
    if apart(normal, a, b, c):
        return False
    return not (apart_by_edge(b - a, a, b, c) or apart_by_edge(c - b, a, b, c) or apart_by_edge(a - c, a, b, c))


@wp.kernel
def overlapped_cells(
    triangles: wp.array2d(dtype=wp.vec3),
    normals: wp.array(dtype=wp.vec3),
    base: wp.array(dtype=wp.vec3i),
    shape: wp.vec3i,
    fill: int,
    place: wp.array(dtype=wp.int64),
    cells: wp.array(dtype=wp.int32),
    ids: wp.array(dtype=wp.int32),
):
    """Count the voxels of each triangle into `place`, or with `fill` write its voxels and its number from there on.

    Args:
        triangles: [T, 3] corners, in voxels from voxel `base`.
        normals: [T] any length but 0; of a triangle without area, a normal of a plane that contains it.
        base: [T] voxel.
    """
    t = wp.tid()
    a = triangles[t, 0]
    b = triangles[t, 1]
    c = triangles[t, 2]
    normal = normals[t]
    low = wp.min(a, wp.min(b, c))
    high = wp.max(a, wp.max(b, c))
    # w is the axis along which the plane is a function of the two others, with slopes of at most 1
    w = int(0)
    for axis in range(1, 3):
        if wp.abs(normal[axis]) > wp.abs(normal[w]):
            w = axis
    u = (w + 1) % 3
    v = (w + 2) % 3
    slope_u = normal[u] / normal[w]
    slope_v = normal[v] / normal[w]
    spread = 0.5 * (wp.abs(slope_u) + wp.abs(slope_v)) + 2.0 * MARGIN
    found = int(0)
    start = place[t]
    u0 = wp.max(int(wp.floor(low[u] - MARGIN)), -base[t][u])
    u1 = wp.min(int(wp.floor(high[u] + MARGIN)), shape[u] - 1 - base[t][u])
    v0 = wp.max(int(wp.floor(low[v] - MARGIN)), -base[t][v])
    v1 = wp.min(int(wp.floor(high[v] + MARGIN)), shape[v] - 1 - base[t][v])
    for i in range(u0, u1 + 1):
        for j in range(v0, v1 + 1):
            middle = a[w] - slope_u * (float(i) + 0.5 - a[u]) - slope_v * (float(j) + 0.5 - a[v])
            from_w = wp.max(middle - spread, low[w] - MARGIN)
            to_w = wp.min(middle + spread, high[w] + MARGIN)
            k0 = wp.max(int(wp.floor(from_w)), -base[t][w])
            k1 = wp.min(int(wp.floor(to_w)), shape[w] - 1 - base[t][w])
            for k in range(k0, k1 + 1):
                cell = wp.vec3i(0, 0, 0)
                cell[u] = i
                cell[v] = j
                cell[w] = k
                centre = wp.vec3(float(cell[0]) + 0.5, float(cell[1]) + 0.5, float(cell[2]) + 0.5)
                if overlaps(normal, a - centre, b - centre, c - centre):
                    if fill != 0:
                        cell = cell + base[t]
                        at = int(start) + found
                        cells[at] = (cell[0] * shape[1] + cell[1]) * shape[2] + cell[2]
                        ids[at] = t
                    found += 1
    if fill == 0:
        place[t] = wp.int64(found)
