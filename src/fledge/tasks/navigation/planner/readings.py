"""Read the observations for the planner and ORCA: the drone's own state, and the moving obstacles."""

import warp as wp

from fledge.tasks.navigation.physics.shapes import BOX_M
from fledge.tasks.navigation.sensing.observations import ATTITUDE, DYNAMIC_OBSTACLE, NEAREST, POSE, STATE

TO_GOAL, FLAT, UP, VEL = STATE.starts
M_UNIT, M_FLAT, M_UP, M_VEL, M_WIDTH, M_BOX = DYNAMIC_OBSTACLE.starts
M_COLUMNS = DYNAMIC_OBSTACLE.width
HEIGHT, YAW = POSE.starts
ROLL, PITCH = ATTITUDE.starts
FAR = 1.0e6


@wp.struct
class Seen:
    """Observations of N drones, and how to read their LiDAR. In shapes: H azimuths, V elevations."""

    state: wp.array2d(dtype=wp.float32)  # [N, STATE.width]
    dynamic_obstacle: wp.array2d(dtype=wp.float32)  # [N, NEAREST * M_COLUMNS]
    pose: wp.array2d(dtype=wp.float32)  # [N, POSE.width]
    lidar: wp.array2d(dtype=wp.float32)  # [N, H * V] range - distance
    azimuths: int
    cosine: wp.array(dtype=wp.float32)  # [V]
    sine: wp.array(dtype=wp.float32)  # [V]
    rays: wp.array(dtype=wp.vec3)  # [H * V] unit vectors in the sensor's frame; empty if rays are upright, 360 degrees
    attitude: wp.array2d(dtype=wp.float32)  # [N, ATTITUDE.width], if `tilts`
    tilts: int  # 1 if rays turn with roll and pitch
    angle_error: float  # rad: largest error of a ray's elevation
    reach_m: float  # hits beyond this horizontal distance are not remembered
    range_m: float
    standing: int  # 1 if obstacles reach down to the ground
    memory: int


@wp.struct
class Own:
    """State of the drone itself in the goal frame, in m and m/s, with the goal at (0, 0) and heights above the ground."""

    pos: wp.vec3
    vel: wp.vec3
    acc: wp.vec3  # predicted from the last command; 0 in a new episode
    goal: wp.vec3
    yaw: float
    ahead: wp.vec2  # horizontal unit vector to the goal
    to_go: float  # m to the goal
    body: wp.vec2  # m: distances to static obstacles and movers that count as a collision
    patience: float  # factor on the cost of missing clearance from static obstacles; less than 1 if the drone is stuck


@wp.struct
class Movers:
    """The nearest movers of every drone, [N, NEAREST]; goal frame as in `Own`."""

    place: wp.array2d(dtype=wp.vec4)  # x, y, z, half the width; x is FAR in an empty row
    motion: wp.array2d(dtype=wp.vec4)  # velocity, half the height (FAR: unlimited)
    box_width: float  # factor on the width of boxes, whose corners lie outside of a circle of that width


@wp.func
def read_mover(rows: wp.array2d(dtype=wp.float32), i: int, k: int, pos: wp.vec3, movers: Movers):
    """Write row k of the observation `dynamic_obstacle` of drone i to `movers`, as positions and velocities."""
    row = M_COLUMNS * k
    flat = rows[i, row + M_FLAT]
    ux = rows[i, row + M_UNIT]
    uy = rows[i, row + M_UNIT + 1]
    uz = rows[i, row + M_UNIT + 2]
    if ux == 0.0 and uy == 0.0 and uz == 0.0:
        movers.place[i, k] = wp.vec4(FAR, FAR, 0.0, 0.0)
        movers.motion[i, k] = wp.vec4()
        return
    scale = flat / wp.max(wp.sqrt(ux * ux + uy * uy), 1.0e-6)
    half = wp.where(rows[i, row + M_BOX] > 0.5, 0.5 * BOX_M, FAR)
    half_width = 0.125 * (rows[i, row + M_WIDTH] + 1.0)
    if half < FAR:
        half_width = movers.box_width * half_width
    up = pos[2] + rows[i, row + M_UP]
    movers.place[i, k] = wp.vec4(pos[0] + scale * ux, pos[1] + scale * uy, up, half_width)
    movers.motion[i, k] = wp.vec4(rows[i, row + M_VEL], rows[i, row + M_VEL + 1], rows[i, row + M_VEL + 2], half)


@wp.func
def read_movers(seen: Seen, i: int, pos: wp.vec3, movers: Movers):
    """Write all rows of the observation `dynamic_obstacle` of drone i to `movers`, as positions and velocities."""
    for k in range(NEAREST):
        read_mover(seen.dynamic_obstacle, i, k, pos, movers)


@wp.func
def read_own(seen: Seen, i: int) -> Own:
    """Return the observed state of drone i; `acc`, `to_go` and `body` stay 0."""
    own = Own()
    own.patience = 1.0
    ux = seen.state[i, TO_GOAL]
    uy = seen.state[i, TO_GOAL + 1]
    flat = seen.state[i, FLAT]
    length = wp.sqrt(ux * ux + uy * uy)
    own.ahead = wp.vec2(1.0, 0.0)
    if length > 1.0e-6:
        own.ahead = wp.vec2(ux / length, uy / length)
    height = seen.pose[i, HEIGHT]
    own.yaw = seen.pose[i, YAW]
    own.pos = wp.vec3(-flat * own.ahead[0], -flat * own.ahead[1], height)
    own.goal = wp.vec3(0.0, 0.0, height + seen.state[i, UP])
    own.vel = wp.vec3(seen.state[i, VEL], seen.state[i, VEL + 1], seen.state[i, VEL + 2])
    return own


@wp.func
def sensor_turn(seen: Seen, i: int, yaw: float) -> wp.quat:
    """Return the rotation from the sensor's frame to the frame in which drone i has this yaw, rad."""
    q = wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), yaw)
    if seen.tilts == 1:
        q = q * wp.quat_from_axis_angle(wp.vec3(0.0, 1.0, 0.0), seen.attitude[i, PITCH])
        q = q * wp.quat_from_axis_angle(wp.vec3(1.0, 0.0, 0.0), seen.attitude[i, ROLL])
    return q


@wp.func
def predicted_acc(own: Own, command: wp.vec3, step: wp.array(dtype=wp.vec3)) -> wp.vec3:
    """Return the predicted acceleration at the next decision, m/s², if the drone flies this command until then.

    `step` has the coefficients, as in `Planner.step`.
    """
    f = step[0]
    u = step[1]
    return wp.vec3(
        f[0] * own.vel[0] + f[1] * own.acc[0] + f[2] * command[0],
        f[0] * own.vel[1] + f[1] * own.acc[1] + f[2] * command[1],
        u[0] * own.vel[2] + u[1] * own.acc[2] + u[2] * command[2],
    )
