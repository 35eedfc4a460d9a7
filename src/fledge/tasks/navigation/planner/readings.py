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
SAME_M = 0.6  # a mover this near to where an unseen one should be is the same

crowd = wp.types.vector(length=NEAREST, dtype=wp.float32)
rows = wp.types.matrix(shape=(NEAREST, 4), dtype=wp.float32)


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
    late_s: float  # mean age of a scan when it arrives


@wp.struct
class Own:
    """State of the drone itself in the goal frame, in m and m/s, with the goal at (0, 0) and heights above the ground."""

    pos: wp.vec3
    vel: wp.vec3
    acc: wp.vec3  # predicted from the last commands; 0 in a new episode
    goal: wp.vec3
    yaw: float
    ahead: wp.vec2  # horizontal unit vector to the goal
    to_go: float  # m to the goal
    body: wp.vec2  # m: distances to static obstacles and movers that count as a collision
    further: crowd  # m: clearance from each mover that is desired beyond the usual one because it is fast
    reach: crowd  # m²: a mover has no effect at this squared horizontal distance or more; 0 in an empty row
    patience: float  # factor on the cost of missing clearance from static obstacles; less than 1 if the drone is stuck
    delay: int  # its response to commands: numbers of the delay and of the horizontal and vertical rate in `Response`
    flat: int
    upright: int
    slower: float  # s: how much longer than usual its velocity takes to follow
    lead: float  # s: pos, vel and acc are those after this time, when a new command takes effect
    moved: wp.vec3  # m: flown in that time


@wp.struct
class Movers:
    """The nearest movers of every drone, [N, NEAREST]; goal frame as in `Own`."""

    place: wp.array2d(dtype=wp.vec4)  # x, y, z, half the width; x is FAR in an empty row
    motion: wp.array2d(dtype=wp.vec4)  # velocity, half the height (FAR: unlimited)
    box_width: float  # factor on the width of boxes, whose corners lie outside of a circle of that width
    unseen: wp.array2d(dtype=wp.float32)  # s since it was last seen
    near: wp.array2d(dtype=wp.int32)  # [N, T] movers that matter at each prediction step, from `list_near_movers`
    coast_s: float  # time for which a mover that is no longer seen is remembered; 0: no memory
    decision_s: float
    late_s: float  # mean age of a detection


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
    vel = wp.vec3(rows[i, row + M_VEL], rows[i, row + M_VEL + 1], rows[i, row + M_VEL + 2])
    at = pos + wp.vec3(scale * ux, scale * uy, rows[i, row + M_UP]) + movers.late_s * vel
    movers.place[i, k] = wp.vec4(at[0], at[1], at[2], half_width)
    movers.motion[i, k] = wp.vec4(vel[0], vel[1], vel[2], half)


@wp.func
def read_movers(seen: Seen, i: int, pos: wp.vec3, movers: Movers):
    """Write all rows of the observation `dynamic_obstacle` of drone i to `movers`, as positions and velocities."""
    for k in range(NEAREST):
        read_mover(seen.dynamic_obstacle, i, k, pos, movers)


@wp.func
def is_seen(movers: Movers, i: int, x: float, y: float, z: float) -> bool:
    """Return whether drone i sees a mover near a point."""
    for k in range(NEAREST):
        p = movers.place[i, k]
        tall = movers.motion[i, k][3] >= FAR
        if p[0] < FAR and movers.unseen[i, k] == 0.0 and (tall or wp.abs(p[2] - z) < SAME_M):
            if (p[0] - x) * (p[0] - x) + (p[1] - y) * (p[1] - y) < SAME_M * SAME_M:
                return True
    return False


@wp.func
def track_movers(seen: Seen, i: int, pos: wp.vec3, movers: Movers, fresh: bool):
    """Do as `read_movers`, and fill empty rows with movers that were seen up to `coast_s` ago.

    They fly on at their last velocity. Detectors miss movers, lose them, and hide those beyond the nearest few.
    """
    place = rows()
    motion = rows()
    unseen = crowd()
    for k in range(NEAREST):
        place[k] = movers.place[i, k]
        motion[k] = movers.motion[i, k]
        unseen[k] = movers.unseen[i, k] + movers.decision_s
        movers.unseen[i, k] = 0.0
    read_movers(seen, i, pos, movers)
    if fresh or movers.coast_s == 0.0:
        return
    row = int(0)
    for k in range(NEAREST):
        if place[k][0] < FAR and unseen[k] <= movers.coast_s:
            x = place[k][0] + movers.decision_s * motion[k][0]
            y = place[k][1] + movers.decision_s * motion[k][1]
            z = place[k][2] + movers.decision_s * motion[k][2]
            if not is_seen(movers, i, x, y, z):
                while row < NEAREST and movers.place[i, wp.min(row, NEAREST - 1)][0] < FAR:
                    row = row + 1
                if row < NEAREST:
                    movers.place[i, row] = wp.vec4(x, y, z, place[k][3])
                    movers.motion[i, row] = motion[k]
                    movers.unseen[i, row] = unseen[k]


@wp.func
def read_own(seen: Seen, i: int) -> Own:
    """Return the observed state of drone i at present; `acc` and what is derived from it stays 0."""
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
