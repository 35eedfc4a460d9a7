"""ORCA on the drone's sensors: half-spaces from movers, beams and height limits. One thread per drone."""

import torch
import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.solver import half_space, safest
from fledge.tasks.navigation.planner.local_map import GROUND_M
from fledge.tasks.navigation.planner.readings import FAR, Movers, Own, Seen, read_movers, read_own, sensor_turn
from fledge.tasks.navigation.sensing.observations import NEAREST

HORIZON_S = 2.0  # for movers
NEAR_HORIZON_S = 1.0  # for static obstacles
LAG_S = 0.4  # the drone responds to a command this late: 68 % of a change of speed after 0.5 s
SKIN_M = 0.1
HEIGHTS = 2


@wp.struct
class Caution:
    """Parameters of the velocity obstacles."""

    body: float  # m: radius of the drone plus safety distance
    limit: float  # m/s
    floor: float  # m
    ceiling: float  # m
    step_s: float  # s: time to separate from an obstacle in contact
    horizon: float  # s
    near_horizon: float  # s
    lag: float  # s


@wp.func
def mover_plane(q: Caution, movers: Movers, i: int, k: int, own: Own, wanted: wp.vec3) -> wp.vec4:
    """Return the half-space of commands that avoid mover k.

    The mover counts as a ball around the point of its vertical axis that is nearest in height to the drone.
    """
    place = movers.place[i, k]
    motion = movers.motion[i, k]
    vel = wp.vec3(motion[0], motion[1], motion[2])
    away = place[2] + own.lead * vel[2] - own.pos[2]
    up = away - wp.clamp(away, -motion[3], motion[3])
    if up == 0.0:
        vel = wp.vec3(vel[0], vel[1], 0.0)
    p = wp.vec3(place[0] + own.lead * vel[0] - own.pos[0], place[1] + own.lead * vel[1] - own.pos[1], up)
    p = p + (q.lag + own.slower) * (vel - own.vel)
    return half_space(p, wanted - vel, wanted, q.body + place[3], q.horizon - q.lag, q.step_s)


@wp.func
def beam_plane(q: Caution, seen: Seen, i: int, h: int, own: Own, wanted: wp.vec3) -> wp.vec4:
    """Return the half-space of commands that avoid the nearest LiDAR hit at azimuth h; all commands if there is no hit.

    The half-space of all commands is (0, 0, 0, -1).
    """
    angle = own.yaw + TWO_PI * float(h) / float(seen.azimuths)
    elevations = seen.cosine.shape[0]
    height = own.pos[2] - own.moved[2]
    least = float(FAR)
    p = wp.vec3()
    turn = wp.quat_identity()
    if seen.rays.shape[0] > 0:
        turn = sensor_turn(seen, i, own.yaw)
    for v in range(elevations):
        value = seen.lidar[i, h * elevations + v]
        d = seen.range_m - value
        if seen.rays.shape[0] > 0:
            if value > 0.0 and d < least:
                hit = d * wp.quat_rotate(turn, seen.rays[h * elevations + v])
                flat = wp.sqrt(hit[0] * hit[0] + hit[1] * hit[1])
                if height + hit[2] > GROUND_M + seen.angle_error * flat:
                    least = d
                    p = hit
        elif value > 0.0 and d < least and height + d * seen.sine[v] > GROUND_M:
            least = d
            p = d * wp.vec3(seen.cosine[v] * wp.cos(angle), seen.cosine[v] * wp.sin(angle), seen.sine[v])
    if least == FAR:
        return wp.vec4(0.0, 0.0, 0.0, -1.0)
    p = p - own.moved - (q.lag + own.slower) * own.vel
    return half_space(p, wanted, wanted, q.body, q.near_horizon - q.lag, q.step_s)


@wp.func
def allowed(
    i: int, own: Own, seen: Seen, q: Caution, movers: Movers, planes: wp.array2d(dtype=wp.vec4), wanted: wp.vec3
) -> wp.vec3:
    """Write the half-spaces of drone i to `planes`, and return the allowed command nearest to `wanted`."""
    count = int(0)
    for k in range(NEAREST):
        if movers.place[i, k][0] < FAR:
            planes[i, count] = mover_plane(q, movers, i, k, own, wanted)
            count = count + 1
    for h in range(seen.azimuths):
        plane = beam_plane(q, seen, i, h, own, wanted)
        if plane[0] != 0.0 or plane[1] != 0.0 or plane[2] != 0.0:
            planes[i, count] = plane
            count = count + 1
    coasting = own.pos[2] + (q.lag + own.slower) * own.vel[2]
    ahead = q.near_horizon - q.lag
    planes[i, count] = wp.vec4(0.0, 0.0, 1.0, wp.min((q.floor - coasting) / ahead, 0.5))
    planes[i, count + 1] = wp.vec4(0.0, 0.0, -1.0, wp.min((coasting - q.ceiling) / ahead, 0.5))
    return safest(planes, i, count + 2, wanted, wp.max(q.limit, wp.length(wanted)))


@wp.struct
class Guard:
    """ORCA as a filter of commands: whether it is on, its parameters, and its buffer of half-spaces."""

    on: int
    caution: Caution
    planes: wp.array2d(dtype=wp.vec4)  # [N, half-spaces]


@wp.func
def guarded(g: Guard, i: int, own: Own, seen: Seen, movers: Movers, command: wp.vec3) -> wp.vec3:
    """Return the allowed command nearest to `command`, outside all velocity obstacles; if the guard is off, `command`.

    `read_movers` must have been called before.
    """
    if g.on == 0:
        return command
    return allowed(i, own, seen, g.caution, movers, g.planes, command)


@wp.kernel(enable_backward=False)
def avoid(
    first: int,
    seen: Seen,
    movers: Movers,
    guard: Guard,
    wanted: wp.array(dtype=wp.vec3),
    command: wp.array(dtype=wp.vec3),
):
    """Write each drone's command, m/s in the goal frame: the allowed command nearest to the wanted command."""
    i = first + wp.tid()
    own = read_own(seen, i)
    read_movers(seen, i, own.pos, movers)
    command[i] = guarded(guard, i, own, seen, movers, wanted[i])


def num_planes(env_cfg: NavigationConfig) -> int:
    """Return the largest number of half-spaces that one drone can have."""
    return NEAREST + env_cfg.lidar_azimuths + HEIGHTS


def guard_of(env_cfg: NavigationConfig, planes: torch.Tensor, on: bool = True) -> Guard:
    """Return ORCA as a filter of commands in an env; if `on` is false, commands pass unchanged.

    The filter writes its half-spaces to `planes`, [N, num_planes, 4].
    """
    guard, q = Guard(), Caution()
    q.body, q.limit = env_cfg.collision_radius_m + SKIN_M, env_cfg.speed_limit
    q.floor, q.ceiling = env_cfg.lowest_m + SKIN_M, env_cfg.max_height_m - SKIN_M
    q.step_s = env_cfg.dt_s * env_cfg.decimation
    q.horizon, q.near_horizon, q.lag = HORIZON_S, NEAR_HORIZON_S, LAG_S
    guard.on, guard.caution = int(on), q
    if on:
        guard.planes = wp.from_torch(planes, dtype=wp.vec4)
    return guard
