"""Starts, goals and maps of episodes. All random numbers depend only on (seed, global index, episode).

Formations of several drones, with M drones in a world and small random shifts of starts and goals:

    circle     on a circle, each goal on the opposite side
    streams    one half flies along x, the other along y; they meet in the middle
    corridor   one half flies along y, the other against it, between the walls of the arena
"""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import TWO_PI, uniform4
from fledge.tasks.navigation.config import CROSSING_HALF_M
from fledge.tasks.navigation.physics.structs import CIRCLE, EDGE_M, STREAMS, Maps, Params
from fledge.tasks.navigation.physics.terrain import SOLID, cell_at, free_distance

INSIDE_M = 19.0
CIRCLE_M = 8.0  # radius of the circle, larger if the drones would be less than SPACING_M apart
SPACING_M, ROW_M = 2.0, 2.5  # between drones of a formation, sideways and from row to row
MEETING_M = 8.0  # from the first row of a stream to the middle
FORMATION_HEIGHT_M = 1.5
SHIFT_M = 0.2  # largest random shift of a start or goal along x and y; half of it in height
BACK_M, BACK_STEPS = 0.2, 9  # a start or goal near an obstacle moves back in such steps
P_START = wp.uint32(int(Purpose.START))
P_GOAL = wp.uint32(int(Purpose.GOAL))
P_MAP = wp.uint32(int(Purpose.MAP_CHOICE))


@wp.func
def edge_point(u: wp.vec4) -> wp.vec3:
    """Return a random point on one of the four edges at ±24 m, 0.5 to 2.5 m high.

    `u` has uniform random numbers in [0, 1).
    """
    along = EDGE_M * (2.0 * u[1] - 1.0)
    z = 0.5 + 2.0 * u[2]
    side = int(u[0] * 4.0)
    across = wp.where(side % 2 == 0, EDGE_M, -EDGE_M)
    return wp.where(side < 2, wp.vec3(along, across, z), wp.vec3(across, along, z))


@wp.func
def side_point(axis: int, sign: float, u: wp.vec4) -> wp.vec3:
    """Return a random point, 0.5 to 2.5 m high, on the edge where x (`axis` 0) or y (`axis` 1) is `sign` * 24 m.

    `u` has uniform random numbers in [0, 1).
    """
    along = CROSSING_HALF_M * (2.0 * u[1] - 1.0)
    if axis == 0:
        return wp.vec3(sign * EDGE_M, along, 0.5 + 2.0 * u[2])
    return wp.vec3(along, sign * EDGE_M, 0.5 + 2.0 * u[2])


@wp.func
def has_mover_near(p: Params, maps: Maps, slot: int, x: float, y: float) -> bool:
    """Return whether a moving obstacle is within 2 m of a point, horizontally."""
    for j in range(maps.crowd.count[slot]):
        c = maps.crowd.trail[p.decimation - 1, slot, j]
        if (c[0] - x) * (c[0] - x) + (c[1] - y) * (c[1] - y) < 4.0:
            return True
    return False


@wp.func
def is_clear(p: Params, maps: Maps, slot: int, x: float, y: float) -> bool:
    """Return whether a point is at least 0.5 m from columns and 2 m from moving obstacles."""
    cell = cell_at(x, y)
    if cell < 0:
        return True
    value = int(maps.grid[slot, cell])
    if value >= SOLID or free_distance(value) < 0.5:
        return False
    return not has_mover_near(p, maps, slot, x, y)


@wp.func
def clear_inside(p: Params, maps: Maps, slot: int, drone: wp.uint32, when: wp.uint32, fallback: wp.vec3) -> wp.vec3:
    """Return a random point inside the forest with free space around it, or the fallback if none is found."""
    for t in range(16):
        u = uniform4(drone, when, P_START, wp.uint32(t + 1), p.seed)
        x = INSIDE_M * (2.0 * u[0] - 1.0)
        y = INSIDE_M * (2.0 * u[1] - 1.0)
        if is_clear(p, maps, slot, x, y):
            return wp.vec3(x, y, 0.5 + 2.0 * u[2])
    return fallback


@wp.func
def deal_map(p: Params, maps: Maps, i: int, drone: wp.uint32, when: wp.uint32) -> int:
    """Return the slot of the next episode's map: the drone's own slot with `fresh_maps`, else that of a random map in use.

    Drones that fly together get the same map. Scenes go round: a deterministic policy would repeat its flight in one of them.
    In use at clock t are the maps with the numbers head .. head + active - 1, where head = t // map_refresh_steps.
    """
    if p.fresh_maps == 1:
        return i
    if p.scene == 1:
        return int((drone + when) % wp.uint32(p.slots))
    u = uniform4(drone / wp.uint32(p.drones), when, P_MAP, wp.uint32(0), p.seed)
    position = int(u[0] * float(p.active))
    if p.map_refresh_steps > 0:
        position = position + maps.clock[0] / p.map_refresh_steps
    return position % p.slots


@wp.func
def deal_route(p: Params, maps: Maps, slot: int, drone: wp.uint32, when: wp.uint32) -> int:
    """Return the number of a random route of the slot's world, if possible one without a moving obstacle at its start."""
    w = maps.voxels.world[slot]
    routes = maps.voxels.start.shape[1]
    route = int(0)
    for t in range(8):
        u = uniform4(drone, when, P_START, wp.uint32(t), p.seed)
        route = wp.min(int(u[0] * float(routes)), routes - 1)
        start = maps.voxels.start[w, route]
        if not has_mover_near(p, maps, slot, start[0], start[1]):
            return route
    return route


@wp.func
def shifted(point: wp.vec3, u: wp.vec4) -> wp.vec3:
    """Return a point with a small random shift; `u` has uniform random numbers in [0, 1)."""
    return point + SHIFT_M * wp.vec3(2.0 * u[0] - 1.0, 2.0 * u[1] - 1.0, u[2] - 0.5)


@wp.func
def formation(p: Params, m: int, turn: float) -> wp.spatial_vector:
    """Return start (first three numbers) and goal of drone m of a formation, m, world; `turn` in [0, 1) turns the circle."""
    if p.starts == CIRCLE:
        radius = wp.max(CIRCLE_M, SPACING_M * float(p.drones) / TWO_PI)
        angle = TWO_PI * (float(m) + turn) / float(p.drones)
        x = radius * wp.cos(angle)
        y = radius * wp.sin(angle)
        return wp.spatial_vector(x, y, FORMATION_HEIGHT_M, -x, -y, FORMATION_HEIGHT_M)
    half = (p.drones + 1) / 2
    n = wp.where(m < half, m, m - half)
    columns = wp.max(int(wp.ceil(wp.sqrt(float(half)))), 1)
    rows = (half + columns - 1) / columns
    across = SPACING_M * (float(n % columns) - 0.5 * float(columns - 1))
    along = -MEETING_M - ROW_M * float(n / columns)
    end = along + 2.0 * MEETING_M + ROW_M * float(rows - 1)
    if p.starts == STREAMS:
        if m < half:
            return wp.spatial_vector(along, across, FORMATION_HEIGHT_M, end, across, FORMATION_HEIGHT_M)
        return wp.spatial_vector(across, along, FORMATION_HEIGHT_M, across, end, FORMATION_HEIGHT_M)
    sign = wp.where(m < half, 1.0, -1.0)
    return wp.spatial_vector(across, sign * along, FORMATION_HEIGHT_M, across, sign * end, FORMATION_HEIGHT_M)


@wp.func
def clear_behind(p: Params, maps: Maps, slot: int, point: wp.vec3, away: wp.vec3) -> wp.vec3:
    """Return the first clear point from `point` on along the unit vector `away`; the last one tried if none is clear."""
    for k in range(BACK_STEPS):
        tried = point + BACK_M * float(k) * away
        if is_clear(p, maps, slot, tried[0], tried[1]):
            return tried
    return point + BACK_M * float(BACK_STEPS - 1) * away


@wp.func
def place_in_formation(p: Params, maps: Maps, slot: int, drone: wp.uint32, when: wp.uint32) -> wp.spatial_vector:
    """Return start and goal of a drone that flies in a formation, shifted at random, and back from obstacles."""
    group = drone / wp.uint32(p.drones)
    m = int(drone - group * wp.uint32(p.drones))
    turn = uniform4(group, when, P_START, wp.uint32(1), p.seed)[0]
    both = formation(p, m, turn)
    start = shifted(wp.vec3(both[0], both[1], both[2]), uniform4(drone, when, P_START, wp.uint32(0), p.seed))
    goal = shifted(wp.vec3(both[3], both[4], both[5]), uniform4(drone, when, P_GOAL, wp.uint32(0), p.seed))
    back = wp.normalize(wp.vec3(both[0] - both[3], both[1] - both[4], 0.0))
    start = clear_behind(p, maps, slot, start, back)
    goal = clear_behind(p, maps, slot, goal, -back)
    return wp.spatial_vector(start[0], start[1], start[2], goal[0], goal[1], goal[2])
