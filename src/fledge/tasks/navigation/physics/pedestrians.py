"""Pedestrians: standing obstacles that walk to waypoints and avoid walls and each other by ORCA, not the drone.

Every `plan_steps` physics steps a pedestrian chooses the velocity nearest to the one straight to its waypoint that keeps it
apart from others for `HORIZON_S`, each doing half of the avoiding (`orca.solver`), and from walls for `WALL_S`. Walls are the
solid cells at waist height; of those within reach the nearest in each of `SECTORS` directions bounds the velocity. Where no
velocity does all that, the one that violates it least is taken, but never one that leads into a wall.

Velocities are planned from the state of all pedestrians before any of them moves, so results do not depend on threads.
Random numbers depend only on (seed, map key, obstacle, age of the map in steps).
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI, uniform4
from fledge.tasks.navigation.orca.solver import half_space, safest
from fledge.tasks.navigation.physics.crowd import (
    AREA_HALF_M,
    GOAL_REACHED_M,
    MAX_SPEED,
    MIN_SPEED,
    P_GOAL,
    P_ORIGIN,
    P_SPEED,
    ROAM_M,
    SPEED_SPAN,
    SPEED_STEPS,
    is_apart,
    mover_of,
    place,
    spread,
    stream,
)
from fledge.tasks.navigation.physics.shapes import STANDING_Z_M, width_of
from fledge.tasks.navigation.physics.structs import Maps
from fledge.tasks.navigation.physics.terrain import CELL_M, HALF_M, SOLID, cell_at, free_distance
from fledge.tasks.navigation.physics.voxels import distance_at

PLAN_S = 0.1
HORIZON_S = 2.0
WALL_S = 0.4
MARGIN_M = 0.05  # between two pedestrians, and to walls
SIGHT_M = 5.0  # others farther away do not count
WAIST_M = 1.0
APART_M = 1.5  # between origins, if there is room
ORIGINS, WAYPOINTS = 64, 12  # tries
NEAREST_M = 1.0  # a waypoint is at least this far away
SLOW = 0.2  # m/s: slower ones look for another waypoint
NEIGHBOURS = 8
SECTORS = 12
PLANES = NEIGHBOURS + SECTORS

neighbours = wp.types.vector(length=NEIGHBOURS, dtype=wp.float32)
numbers = wp.types.vector(length=NEIGHBOURS, dtype=wp.int32)
sectors = wp.types.vector(length=SECTORS, dtype=wp.float32)


@wp.func
def is_blocked(maps: Maps, voxels: int, slot: int, x: float, y: float) -> bool:
    """Return whether a point at waist height is solid or outside of the pedestrians' area."""
    if voxels == 1:
        return distance_at(maps.voxels, maps.voxels.world[slot], wp.vec3(x, y, WAIST_M)) <= 0
    if wp.max(wp.abs(x), wp.abs(y)) > AREA_HALF_M:
        return True
    return int(maps.grid[slot, cell_at(x, y)]) >= SOLID


@wp.func
def free_around(maps: Maps, voxels: int, slot: int, pos: wp.vec3) -> float:
    """Return a distance within which nothing is blocked around a point at waist height, m; the nearest may be farther."""
    if voxels == 1:
        w = maps.voxels.world[slot]
        return float(distance_at(maps.voxels, w, wp.vec3(pos[0], pos[1], WAIST_M)) - 1) * maps.voxels.cell_m[w]
    edge = AREA_HALF_M - wp.max(wp.abs(pos[0]), wp.abs(pos[1]))
    if edge < 0.0:
        return 0.0
    value = int(maps.grid[slot, cell_at(pos[0], pos[1])])
    return wp.where(value >= SOLID, 0.0, wp.min(free_distance(value), edge))


@wp.func
def cells_of(maps: Maps, voxels: int, slot: int) -> wp.vec3:
    """Return the side of the map's cells and the place of its corner in x and y, m."""
    if voxels == 1:
        w = maps.voxels.world[slot]
        return wp.vec3(maps.voxels.cell_m[w], maps.voxels.corner[w][0], maps.voxels.corner[w][1])
    return wp.vec3(CELL_M, -HALF_M, -HALF_M)


@wp.func
def wall_gap(maps: Maps, voxels: int, slot: int, pos: wp.vec3, reach: float) -> float:
    """Return the horizontal distance from a point to the nearest blocked cell, m, or `reach` if there is none within it."""
    frame = cells_of(maps, voxels, slot)
    cell = frame[0]
    least = float(reach)
    for ix in range(int(wp.floor((pos[0] - reach - frame[1]) / cell)), int((pos[0] + reach - frame[1]) / cell) + 1):
        for iy in range(int(wp.floor((pos[1] - reach - frame[2]) / cell)), int((pos[1] + reach - frame[2]) / cell) + 1):
            x = frame[1] + (float(ix) + 0.5) * cell
            y = frame[2] + (float(iy) + 0.5) * cell
            dx = wp.max(wp.abs(x - pos[0]) - 0.5 * cell, 0.0)
            dy = wp.max(wp.abs(y - pos[1]) - 0.5 * cell, 0.0)
            away = wp.sqrt(dx * dx + dy * dy)
            if away < least and is_blocked(maps, voxels, slot, x, y):
                least = away
    return least


@wp.func
def add_walls(
    maps: Maps, voxels: int, slot: int, pos: wp.vec3, radius: float, planes: wp.array2d(dtype=wp.vec4), row: int
) -> int:
    """Write half-spaces of velocities that keep away from walls to the first columns of `planes`; return their number."""
    reach = radius + MARGIN_M + maps.crowd.speed * MAX_SPEED * WALL_S
    if free_around(maps, voxels, slot, pos) > reach:
        return 0
    frame = cells_of(maps, voxels, slot)
    cell = frame[0]
    least = sectors(reach)
    px = sectors()
    py = sectors()
    for ix in range(int(wp.floor((pos[0] - reach - frame[1]) / cell)), int((pos[0] + reach - frame[1]) / cell) + 1):
        for iy in range(int(wp.floor((pos[1] - reach - frame[2]) / cell)), int((pos[1] + reach - frame[2]) / cell) + 1):
            x = frame[1] + (float(ix) + 0.5) * cell
            y = frame[2] + (float(iy) + 0.5) * cell
            dx = wp.clamp(pos[0], x - 0.5 * cell, x + 0.5 * cell) - pos[0]
            dy = wp.clamp(pos[1], y - 0.5 * cell, y + 0.5 * cell) - pos[1]
            away = wp.sqrt(dx * dx + dy * dy)
            if away < reach and away > 1.0e-6 and is_blocked(maps, voxels, slot, x, y):
                k = wp.min(int((wp.atan2(dy, dx) / TWO_PI + 0.5) * float(SECTORS)), SECTORS - 1)
                if away < least[k]:
                    least[k] = away
                    px[k] = dx / away
                    py[k] = dy / away
    count = int(0)
    for k in range(SECTORS):
        if least[k] < reach:
            slack = (least[k] - radius - MARGIN_M) / WALL_S
            planes[row, count] = wp.vec4(-px[k], -py[k], 0.0, -slack)
            count = count + 1
    return count


@wp.func
def reciprocal(p: wp.vec3, own: wp.vec3, other: wp.vec3, radius: float, horizon: float, step: float) -> wp.vec4:
    """Return the half-space of velocities of a pedestrian that does half of the avoiding; arguments as of `half_space`."""
    plane = half_space(p, own - other, own, radius, horizon, step)
    along = plane[0] * own[0] + plane[1] * own[1] + plane[2] * own[2]
    return wp.vec4(plane[0], plane[1], plane[2], 0.5 * (plane[3] + along))


@wp.func
def add_neighbours(
    maps: Maps, slot: int, j: int, k: int, step_s: float, planes: wp.array2d(dtype=wp.vec4), row: int, count: int
) -> int:
    """Append the half-spaces of the nearest others, whose positions are those after physics step k; return the number."""
    near = neighbours(SIGHT_M * SIGHT_M)
    index = numbers(-1)
    pos = maps.crowd.trail[k, slot, j]
    for o in range(maps.crowd.placed[slot]):
        away = maps.crowd.trail[k, slot, o] - pos
        d = away[0] * away[0] + away[1] * away[1]
        if o != j and d < near[NEIGHBOURS - 1]:
            carried = o
            for m in range(NEIGHBOURS):
                if d < near[m]:
                    shifted = near[m]
                    near[m] = d
                    d = shifted
                    moved = index[m]
                    index[m] = carried
                    carried = moved
    own = maps.crowd.vel[slot, j]
    for m in range(NEIGHBOURS):
        o = index[m]
        if o >= 0:
            radius = 0.5 * (width_of(maps.crowd.kinds[j]) + width_of(maps.crowd.kinds[o])) + MARGIN_M
            p = maps.crowd.trail[k, slot, o] - pos
            planes[row, count] = reciprocal(p, own, maps.crowd.vel[slot, o], radius, HORIZON_S, step_s)
            count = count + 1
    return count


@wp.func
def is_way_clear(maps: Maps, voxels: int, slot: int, pos: wp.vec3, to: wp.vec3, half_width: float) -> bool:
    """Return whether the straight way to a point is free at its middle and at both sides."""
    way = to - pos
    length = wp.length(way)
    side = half_width / wp.max(length, 1.0e-6) * wp.vec3(-way[1], way[0], 0.0)
    steps = int(wp.ceil(length / CELL_M))
    for k in range(steps + 1):
        at = pos + (float(k) / float(wp.max(steps, 1))) * way
        for s in range(-1, 2):
            if is_blocked(maps, voxels, slot, at[0] + float(s) * side[0], at[1] + float(s) * side[1]):
                return False
    return True


@wp.func
def waypoint(maps: Maps, voxels: int, slot: int, j: int, age: int, pos: wp.vec3, seed: wp.vec2ui) -> wp.vec3:
    """Return a random point that pedestrian j can reach on a straight line, or its own position if none is found."""
    key = maps.keys[slot]
    for t in range(WAYPOINTS):
        u = uniform4(key[0], key[1], stream(P_GOAL, j), wp.uint32(age + (t << 27)), seed)
        away = NEAREST_M + (ROAM_M - NEAREST_M) * u[0]
        to = pos + away * wp.vec3(wp.cos(TWO_PI * u[1]), wp.sin(TWO_PI * u[1]), 0.0)
        if is_way_clear(maps, voxels, slot, pos, to, 0.5 * width_of(maps.crowd.kinds[j])):
            return to
    return pos


@wp.kernel(enable_backward=False)
def place_pedestrians(slots: wp.array(dtype=wp.int32), seed: wp.vec2ui, voxels: int, maps: Maps):
    """Place pedestrians at rest, clear of walls and apart from each other if there is room; one thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    key = maps.keys[slot]
    for j in range(maps.crowd.placed[slot]):
        radius = 0.5 * width_of(maps.crowd.kinds[j]) + MARGIN_M
        spacing = float(APART_M)
        origin = wp.vec3()
        for t in range(ORIGINS):
            u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(t), seed)
            x = spread(u[0])
            y = spread(u[1])
            if voxels == 1:
                w = maps.voxels.world[slot]
                routes = maps.voxels.start.shape[1]
                start = maps.voxels.start[w, wp.min(int(u[0] * float(routes)), routes - 1)]
                x = start[0]
                y = start[1]
            origin = wp.vec3(x, y, STANDING_Z_M)
            if t == ORIGINS / 2:
                spacing = 1.0 + 2.0 * MARGIN_M  # the widest fit beside each other
            clear = wall_gap(maps, voxels, slot, origin, radius) >= radius
            if clear and is_apart(maps.crowd, slot, j, x, y, spacing):
                break
        place(maps.crowd, slot, j, origin, origin, wp.vec3())


@wp.kernel(enable_backward=False)
def plan_pedestrians(
    first: int,
    begin: int,
    steps: int,
    plan_steps: int,
    dt: float,
    seed: wp.vec2ui,
    voxels: int,
    maps: Maps,
    planes: wp.array2d(dtype=wp.vec4),
    planned: wp.array2d(dtype=wp.vec3),
):
    """Write each pedestrian's velocity for the physics steps `begin` to `begin` + `steps` - 1 of the decision.

    It is a new one if one of these steps is the `plan_steps`-th of the map, else the present one; one thread per pedestrian.
    """
    slot, j = mover_of(first, wp.tid(), maps.crowd)
    vel = maps.crowd.vel[slot, j]
    planned[slot, j] = vel
    age = maps.clock[0] - maps.crowd.born[slot] + begin
    due = (age + steps - 1) / plan_steps >= (age + plan_steps - 1) / plan_steps
    if j >= maps.crowd.placed[slot] or age < 0 or not due:
        return
    last = maps.crowd.trail.shape[0] - 1
    k = wp.where(begin == 0, last, begin - 1)
    pos = maps.crowd.trail[k, slot, j]
    goal = maps.crowd.goal[slot, j]
    epoch = age - age % SPEED_STEPS
    renewed = age - epoch < plan_steps
    if wp.length(goal - pos) < GOAL_REACHED_M or (renewed and wp.length(vel) < SLOW):
        goal = waypoint(maps, voxels, slot, j, age, pos, seed)
        maps.crowd.goal[slot, j] = goal
    key = maps.keys[slot]
    u = uniform4(key[0], key[1], stream(P_SPEED, j), wp.uint32(epoch), seed)
    wanted = wp.vec3()
    if wp.length(goal - pos) >= GOAL_REACHED_M:
        wanted = wp.normalize(goal - pos) * (maps.crowd.speed * (MIN_SPEED + SPEED_SPAN * u[0]))
    radius = 0.5 * width_of(maps.crowd.kinds[j])
    row = slot * maps.crowd.origin.shape[1] + j
    ahead = float(2 * plan_steps) * dt  # the velocity is kept for less than this
    walls = add_walls(maps, voxels, slot, pos, radius, planes, row)
    count = add_neighbours(maps, slot, j, k, ahead, planes, row, walls)
    vel = safest(planes, row, count, wanted, maps.crowd.speed * MAX_SPEED)
    if walls > 0:
        gap = wall_gap(maps, voxels, slot, pos, radius)
        for n in range(4):
            middle = wall_gap(maps, voxels, slot, pos + 0.5 * ahead * vel, radius)
            if wp.min(middle, wall_gap(maps, voxels, slot, pos + ahead * vel, radius)) < gap:
                vel = wp.where(n < 3, 0.5, 0.0) * vel
    planned[slot, j] = vel


@wp.kernel(enable_backward=False)
def walk_pedestrians(first: int, begin: int, steps: int, dt: float, maps: Maps, planned: wp.array2d(dtype=wp.vec3)):
    """Move pedestrians by the physics steps `begin` to `begin` + `steps` - 1 of the decision, one thread per pedestrian."""
    slot, j = mover_of(first, wp.tid(), maps.crowd)
    if j >= maps.crowd.placed[slot] or maps.clock[0] < maps.crowd.born[slot]:
        return
    vel = planned[slot, j]
    pos = maps.crowd.trail[wp.where(begin == 0, maps.crowd.trail.shape[0] - 1, begin - 1), slot, j]
    if begin == 0:
        maps.crowd.before[slot, j] = pos
    for k in range(begin, begin + steps):
        pos = pos + vel * dt
        maps.crowd.trail[k, slot, j] = pos
    maps.crowd.vel[slot, j] = vel
