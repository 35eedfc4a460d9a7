"""The movers that a drone's detector reports: late, noisy, hidden, missed, and some that do not exist."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import TWO_PI, normal2, uniform4
from fledge.tasks.navigation.perception.config import MAX_GHOSTS
from fledge.tasks.navigation.perception.structs import Faults
from fledge.tasks.navigation.physics.crowd import CEILING_M, MAX_SPEED
from fledge.tasks.navigation.physics.quadrotor import yaw_of
from fledge.tasks.navigation.physics.shapes import (
    KINDS,
    STANDING_Z_M,
    WIDTHS,
    height_of,
    is_standing,
    width_class,
    width_of,
)
from fledge.tasks.navigation.physics.structs import Drones, Maps, Obs, Params, goal_frame, turned
from fledge.tasks.navigation.physics.voxels import cast_voxels
from fledge.tasks.navigation.sensing.observations import NEAREST
from fledge.tasks.navigation.sensing.observe import clear_mover, distances, indices, write_mover
from fledge.tasks.navigation.sensing.raycast import cast_four

P_LEVEL = wp.uint32(int(Purpose.FAULT_LEVEL))
P_TRACK = wp.uint32(int(Purpose.TRACK))
P_GHOST = wp.uint32(int(Purpose.GHOST))
P_NOISE = wp.uint32(int(Purpose.MOVER_NOISE))
P_SIZE = wp.uint32(int(Purpose.MOVER_SIZE))
EPISODE_BITS = wp.uint32(
    14
)  # a draw number is episode << 14, plus 4 times the mover's number (below 4096), plus 0 to 3
GHOST_NEAR_M = 0.5  # ghosts appear at least this far away
GHOST_RISE_M = 1.0  # boxes appear within this of the drone's height

# faults whose level each episode draws
MISS, LOSE, GHOSTS, DELAY, POSITION, VELOCITY, SIZE, SCAN_DELAY, DRIFT, DRIFT_YAW = range(10)


@wp.struct
class Sighting:
    """A mover as the detector reports it, in the world's frame."""

    seen: bool
    kind: int
    offset: wp.vec3  # m from the drone to its centre; horizontal for a cylinder
    flat: float  # m, horizontal length of `offset`
    vel: wp.vec3  # m/s


@wp.func
def level(f: Faults, p: Params, drones: Drones, i: int, fault: int) -> float:
    """Return the factor on a fault's setting in drone i's episode, 1 - vary to 1."""
    if f.vary == 0.0:
        return 1.0
    drone = wp.uint32(i + p.env_offset)
    u = uniform4(drone, wp.uint32(drones.episode[i]), P_LEVEL, wp.uint32(fault / 4), p.seed)
    return 1.0 - f.vary * u[fault % 4]


@wp.func
def draw_number(drones: Drones, i: int, j: int, k: int) -> wp.uint32:
    """Return the fourth word of the random-number counter (`core.random`): draw k, 0 to 3, of mover j in this episode."""
    return (wp.uint32(drones.episode[i]) << EPISODE_BITS) + wp.uint32(4 * j + k)


@wp.func
def frame_clock(f: Faults, maps: Maps) -> int:
    """Return the clock at which the detector took its last frame."""
    clock = maps.clock[0]
    if f.frame_steps > 0:
        clock = clock / f.frame_steps * f.frame_steps
    return clock


@wp.func
def position_at(p: Params, f: Faults, maps: Maps, slot: int, j: int, clock: int) -> wp.vec3:
    """Return where mover j was at a clock, m, world; before its map came into use it was at its origin."""
    if clock >= maps.clock[0]:
        return maps.crowd.trail[p.decimation - 1, slot, j]
    if clock <= maps.crowd.born[slot]:
        return maps.crowd.origin[slot, j]
    return f.trail[clock % f.trail.shape[0], slot, j]


@wp.func
def velocity_at(p: Params, f: Faults, maps: Maps, slot: int, j: int, clock: int) -> wp.vec3:
    """Return the velocity of mover j at a clock, m/s, world."""
    if clock >= maps.clock[0]:
        return maps.crowd.vel[slot, j]
    if clock <= maps.crowd.born[slot]:
        return wp.vec3()
    return (position_at(p, f, maps, slot, j, clock) - position_at(p, f, maps, slot, j, clock - 1)) / p.dt_s


@wp.func
def is_in_view(f: Faults, drones: Drones, i: int, offset: wp.vec3) -> bool:
    """Return whether the direction of `offset` (world) is inside the detector's horizontal field of view."""
    turn = wp.atan2(offset[1], offset[0]) - yaw_of(drones.quat[i])
    return wp.abs(turn - TWO_PI * wp.floor(turn / TWO_PI + 0.5)) <= f.half_view


@wp.func
def is_hidden(maps: Maps, slot: int, pos: wp.vec3, kind: int, offset: wp.vec3) -> bool:
    """Return whether a static obstacle lies between a drone and a mover's centre (of a tall one: its axis).

    `offset` points from the drone to the mover's centre, m.
    """
    flat = wp.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
    if flat < 1.0e-3:
        return False
    half = 0.5 * height_of(kind)
    rise = wp.clamp(0.0, offset[2] - half, offset[2] + half)  # to the point of the axis nearest to the drone's height
    slope = rise / flat
    cosine = 1.0 / wp.sqrt(1.0 + slope * slope)
    reach = flat / cosine - 0.5 * width_of(kind)
    if reach <= 0.0:
        return False
    if maps.voxels.world.shape[0] > 0:
        ray = cosine * wp.vec3(offset[0] / flat, offset[1] / flat, slope)
        return cast_voxels(maps.voxels, maps.voxels.world[slot], pos, ray, reach) < reach
    slopes = wp.vec4(slope, slope, slope, slope)
    cosines = wp.vec4(cosine, cosine, cosine, cosine)
    return cast_four(maps.grid, slot, pos, offset[0] / flat, offset[1] / flat, slopes, cosines, reach)[0] < reach


@wp.func
def sight(i: int, p: Params, f: Faults, maps: Maps, drones: Drones, j: int, clock: int, when: int) -> Sighting:
    """Return how drone i sees mover j in the frame taken at clock `when`, which shows positions of `clock`."""
    slot = drones.slot[i]
    pos = drones.pos[i]
    s = Sighting()
    s.kind = maps.crowd.kinds[j]
    offset = position_at(p, f, maps, slot, j, clock) - pos
    flat = wp.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
    if flat > p.lidar_range_m or f.lost[i, j] == 1 or not is_in_view(f, drones, i, offset):
        return s
    drone = wp.uint32(i + p.env_offset)
    time = wp.uint32(when)
    if f.miss_rate > 0.0:
        u = uniform4(drone, time, P_NOISE, draw_number(drones, i, j, 0), p.seed)
        if u[0] < f.miss_rate * level(f, p, drones, i, MISS):
            return s
    if f.occlusion == 1 and is_hidden(maps, slot, pos, s.kind, offset):
        return s
    vel = velocity_at(p, f, maps, slot, j, clock)
    if f.position_noise + f.velocity_noise > 0.0:
        a = uniform4(drone, time, P_NOISE, draw_number(drones, i, j, 1), p.seed)
        b = uniform4(drone, time, P_NOISE, draw_number(drones, i, j, 2), p.seed)
        n0 = normal2(a[0], a[1])
        n1 = normal2(a[2], a[3])
        n2 = normal2(b[0], b[1])
        away = wp.length(offset)
        if is_standing(s.kind):
            away = flat
        near = f.position_noise * level(f, p, drones, i, POSITION) * away
        fast = f.velocity_noise * level(f, p, drones, i, VELOCITY) * away
        offset = offset + near * wp.vec3(n0[0], n0[1], n2[0])
        vel = vel + fast * wp.vec3(n1[0], n1[1], wp.where(is_standing(s.kind), 0.0, n2[1]))
    if is_standing(s.kind):
        offset = wp.vec3(offset[0], offset[1], 0.0)
    s.offset = offset
    s.flat = wp.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
    s.vel = vel
    s.seen = s.flat <= p.lidar_range_m
    return s


@wp.func
def sight_ghost(i: int, p: Params, f: Faults, drones: Drones, g: int) -> Sighting:
    """Return ghost g of drone i as the detector reports it."""
    s = Sighting()
    s.kind = f.ghost_kind[i, g]
    if s.kind < 0:
        return s
    offset = f.ghost_pos[i, g] - drones.pos[i]
    if is_standing(s.kind):
        offset = wp.vec3(offset[0], offset[1], 0.0)
    s.offset = offset
    s.flat = wp.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
    s.vel = f.ghost_vel[i, g]
    s.seen = s.flat <= p.lidar_range_m and is_in_view(f, drones, i, offset)
    return s


@wp.func
def sized(i: int, p: Params, f: Faults, drones: Drones, j: int, kind: int) -> float:
    """Return the width class that the detector reports for mover j, 0 to 3; its error lasts for the episode."""
    if f.size_error == 0.0:
        return width_class(kind)
    u = uniform4(wp.uint32(i + p.env_offset), wp.uint32(drones.episode[i]), P_SIZE, wp.uint32(j), p.seed)
    share = f.size_error * level(f, p, drones, i, SIZE) * normal2(u[0], u[1])[0]
    width = width_of(kind) * (1.0 + share)
    return wp.clamp(wp.round(4.0 * width) - 1.0, 0.0, float(WIDTHS - 1))


@wp.func
def perceive_movers(i: int, p: Params, f: Faults, maps: Maps, drones: Drones, obs: Obs):
    """Write the observation `dynamic_obstacle` of drone i: the nearest movers that its detector reports, and ghosts."""
    count = maps.crowd.count[drones.slot[i]]
    when = frame_clock(f, maps)
    clock = when - int(wp.round(float(f.delay_steps) * level(f, p, drones, i, DELAY)))
    near = distances(1.0e9)
    index = indices(-1)
    for j in range(count + MAX_GHOSTS):
        s = Sighting()
        if j < count:
            s = sight(i, p, f, maps, drones, j, clock, when)
        else:
            s = sight_ghost(i, p, f, drones, j - count)
        if s.seen and s.flat < near[NEAREST - 1]:
            d = s.flat
            carried = j
            for k in range(NEAREST):
                if d < near[k]:
                    shifted = near[k]
                    near[k] = d
                    d = shifted
                    moved = index[k]
                    index[k] = carried
                    carried = moved
    x_axis = goal_frame(drones.start[i], drones.goal[i])
    yaw = drones.drift[i][3]
    for k in range(NEAREST):
        j = index[k]
        if j < 0:
            clear_mover(i, k, obs)
        else:
            s = Sighting()
            width = float(0.0)
            if j < count:
                s = sight(i, p, f, maps, drones, j, clock, when)
                width = sized(i, p, f, drones, j, s.kind)
            else:
                s = sight_ghost(i, p, f, drones, j - count)
                width = width_class(s.kind)
            write_mover(i, k, s.kind, turned(s.offset, yaw), s.flat, turned(s.vel, yaw), width, x_axis, obs)


@wp.func
def advance_tracks(i: int, p: Params, f: Faults, maps: Maps, drones: Drones):
    """Lose and find tracks of drone i's movers in one decision; times until then are exponentially distributed."""
    if f.lose_rate == 0.0:
        return
    lose = 1.0 - wp.exp(-f.lose_rate * level(f, p, drones, i, LOSE) * f.decision_s)
    find = 1.0 - wp.exp(-f.decision_s / f.lose_s)
    drone = wp.uint32(i + p.env_offset)
    clock = wp.uint32(maps.clock[0])
    u = wp.vec4()
    for j in range(f.lost.shape[1]):
        if j % 4 == 0:  # four numbers for four movers
            u = uniform4(drone, clock, P_TRACK, draw_number(drones, i, j, 0), p.seed)
        if u[j % 4] < wp.where(f.lost[i, j] == 1, find, lose):
            f.lost[i, j] = 1 - f.lost[i, j]


@wp.func
def appear(i: int, p: Params, f: Faults, maps: Maps, drones: Drones, g: int):
    """Let ghost g appear somewhere around drone i, with a mover's shape, size and speed."""
    drone = wp.uint32(i + p.env_offset)
    clock = wp.uint32(maps.clock[0])
    u = uniform4(drone, clock, P_GHOST, draw_number(drones, i, g, 1), p.seed)
    v = uniform4(drone, clock, P_GHOST, draw_number(drones, i, g, 2), p.seed)
    pos = drones.pos[i]
    kind = int(u[0] * float(KINDS))
    angle = TWO_PI * u[1]
    inner = GHOST_NEAR_M * GHOST_NEAR_M
    away = wp.sqrt(inner + (p.lidar_range_m * p.lidar_range_m - inner) * u[2])  # evenly over the ring
    z = wp.clamp(pos[2] + GHOST_RISE_M * (2.0 * u[3] - 1.0), 0.0, CEILING_M)
    if is_standing(kind):
        z = STANDING_Z_M
    heading = TWO_PI * v[0]
    f.ghost_kind[i, g] = kind
    f.ghost_pos[i, g] = wp.vec3(pos[0] + away * wp.cos(angle), pos[1] + away * wp.sin(angle), z)
    f.ghost_vel[i, g] = MAX_SPEED * v[1] * wp.vec3(wp.cos(heading), wp.sin(heading), 0.0)


@wp.func
def advance_ghosts(i: int, p: Params, f: Faults, maps: Maps, drones: Drones, begin: bool):
    """Move ghosts of drone i by one decision; some vanish, others appear. With `begin`, draw those of a new episode.

    A slot is full with probability share = ghosts / MAX_GHOSTS at any time, which the two chances keep.
    """
    if f.ghosts == 0.0:
        return
    share = f.ghosts * level(f, p, drones, i, GHOSTS) / float(MAX_GHOSTS)
    end = 1.0 - wp.exp(-f.decision_s / f.ghost_s)
    chance = end * share / (1.0 - share)
    if begin:
        chance = share
    drone = wp.uint32(i + p.env_offset)
    for g in range(MAX_GHOSTS):
        if begin:
            f.ghost_kind[i, g] = -1
        u = uniform4(drone, wp.uint32(maps.clock[0]), P_GHOST, draw_number(drones, i, g, 0), p.seed)
        if f.ghost_kind[i, g] < 0:
            if u[0] < chance:
                appear(i, p, f, maps, drones, g)
        elif u[0] < end:
            f.ghost_kind[i, g] = -1
        else:
            f.ghost_pos[i, g] = f.ghost_pos[i, g] + f.ghost_vel[i, g] * drones.elapsed[i]
