"""Other drones of the same world, as a drone sees them.

A drone has M - 1 peers, which are observed like moving obstacles: as a floating box of the body's width in
`dynamic_obstacle` (boxes count as 1 m tall), and with the body's true height by beams. Peers that have landed are not seen.
"""

import warp as wp

from fledge.tasks.navigation.physics.shapes import INF, circle, slab
from fledge.tasks.navigation.physics.structs import SPHERE, Drones, Maps, Params, has_landed
from fledge.tasks.navigation.sensing.raycast import cast_four

PEER_KIND = 0  # a box, which may float


@wp.func
def num_peers(p: Params) -> int:
    return p.drones - 1


@wp.func
def peer(p: Params, i: int, m: int) -> int:
    """Return the row of peer m of drone i; peers are numbered from 0 in the order of rows."""
    group = i - i % p.drones
    return wp.where(group + m < i, group + m, group + m + 1)


@wp.func
def peer_class(p: Params) -> float:
    """Return the width class of a drone, as a fraction: classes 0 to 3 are 0.25 to 1 m wide."""
    return 8.0 * p.collision_radius_m - 1.0


@wp.func
def peer_distance(p: Params, origin: wp.vec3, ray: wp.vec3, centre: wp.vec3) -> float:
    """Return the distance along a unit ray to a drone's body; 0 if the origin is inside, INF if the ray misses it.

    The body is an upright cylinder; with collision=sphere as tall as wide.
    """
    o = origin - centre
    up = slab(o[2], ray[2], wp.where(p.collision == SPHERE, p.collision_radius_m, 0.5 * p.body_height_m))
    level = circle(o, ray, p.collision_radius_m)
    enter = wp.max(up[0], level[0])
    leave = wp.min(up[1], level[1])
    if enter > leave or leave < 0.0:
        return INF
    return wp.max(enter, 0.0)


@wp.func
def sees_peer(p: Params, maps: Maps, drones: Drones, i: int, o: int) -> bool:
    """Return whether drone i knows where drone o is: it flies and, without broadcast, no column is between their centres."""
    if has_landed(drones, o):
        return False
    if p.broadcast == 1:
        return True
    pos = drones.pos[i]
    offset = drones.pos[o] - pos
    flat = wp.max(wp.sqrt(offset[0] * offset[0] + offset[1] * offset[1]), 1.0e-6)
    length = wp.length(offset)
    slope = offset[2] / flat
    cosine = flat / wp.max(length, 1.0e-6)
    slopes = wp.vec4(slope, slope, slope, slope)
    cosines = wp.vec4(cosine, cosine, cosine, cosine)
    dx = offset[0] / flat
    dy = offset[1] / flat
    return cast_four(maps.grid, drones.slot[i], pos, dx, dy, slopes, cosines, length)[0] >= length
