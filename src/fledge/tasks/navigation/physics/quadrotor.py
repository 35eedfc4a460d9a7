"""A Hummingbird quadrotor under Lee's geometric velocity controller, and a first-order model of both.

Controller: T. Lee, M. Leok, N. H. McClamroch, "Geometric tracking control of a quadrotor UAV on SE(3)", CDC 2010,
without the position term; the desired yaw is the present yaw. Rotors respond as a first-order filter on throttle, and
thrust is proportional to its square. Integration is semi-implicit Euler with linear and angular damping.

Frames: `_w` world (z up), `_b` body. Attitude is a unit quaternion (x, y, z, w), body to world.
"""

import warp as wp

GRAVITY = 9.81
MASS = 0.716  # kg
ARM = 0.17  # m
INERTIA = (0.007, 0.007, 0.012)  # kg m²
THRUST_CONSTANT = 8.54858e-6  # N s²
TORQUE_CONSTANT = 1.36777e-7  # N m s²
MAX_ROTOR_SPEED = 838.0  # rad/s
ROTOR_FILTER = 0.43  # share of the throttle error removed per step
MAX_THRUST = THRUST_CONSTANT * MAX_ROTOR_SPEED**2  # N per rotor
HOVER_THROTTLE = (MASS * GRAVITY / (4.0 * MAX_THRUST)) ** 0.5
VELOCITY_GAIN = 2.2
ATTITUDE_GAIN = (0.7, 0.7, 0.035)
RATE_GAIN = (0.1, 0.1, 0.025)
DAMPING = 0.2  # 1/s, linear and angular

IX, IY, IZ = INERTIA
KAPPA = TORQUE_CONSTANT / THRUST_CONSTANT  # m: rotor drag torque per thrust
KR_XY, _, KR_Z = ATTITUDE_GAIN
KW_XY, _, KW_Z = RATE_GAIN


@wp.struct
class Body:
    """Rigid-body state of one drone."""

    pos: wp.vec3  # m, world
    vel: wp.vec3  # m/s, world
    quat: wp.quat  # body to world
    rate: wp.vec3  # rad/s, body
    throttle: wp.vec4  # 0..1 per rotor


@wp.struct
class Airframe:
    """Airframe, controller and wind of one drone. All but `lag` and `wind` are factors on the nominal values."""

    mass: float
    thrust: float
    damping: float
    velocity_gain: float
    attitude_gain: float  # of attitude and rates
    drag: float  # of the damping of velocity alone
    lag: float  # share of the throttle error removed per step, nominally ROTOR_FILTER
    wind: wp.vec3  # m/s², world


@wp.func
def yaw_of(q: wp.quat) -> float:
    """Return the heading of the body x axis, radians counter-clockwise from world x."""
    return wp.atan2(2.0 * (q[3] * q[2] + q[0] * q[1]), 1.0 - 2.0 * (q[1] * q[1] + q[2] * q[2]))


@wp.func
def heading_of(q: wp.quat) -> wp.vec2:
    """Return the cosine and sine of `yaw_of`."""
    x = 1.0 - 2.0 * (q[1] * q[1] + q[2] * q[2])
    y = 2.0 * (q[3] * q[2] + q[0] * q[1])
    length = wp.sqrt(x * x + y * y)
    if length == 0.0:
        return wp.vec2(1.0, 0.0)
    return wp.vec2(x / length, y / length)


@wp.func
def lee_wrench(body: Body, cmd_vel_w: wp.vec3, frame: Airframe) -> wp.vec4:
    """Return the body torque, N m (3), and the collective thrust, N (1), that steer the nominal drone towards a velocity."""
    rot = wp.quat_to_matrix(body.quat)
    acc = (VELOCITY_GAIN * frame.velocity_gain) * (cmd_vel_w - body.vel) + wp.vec3(0.0, 0.0, GRAVITY)
    b3 = wp.normalize(acc)
    # b2 = b3 x heading, heading = (cos yaw, sin yaw, 0) of the present attitude
    heading = wp.normalize(wp.vec3(rot[0, 0], rot[1, 0], 0.0))
    b2 = wp.normalize(wp.cross(b3, heading))
    b1 = wp.cross(b2, b3)
    r1 = wp.vec3(rot[0, 0], rot[1, 0], rot[2, 0])
    r2 = wp.vec3(rot[0, 1], rot[1, 1], rot[2, 1])
    r3 = wp.vec3(rot[0, 2], rot[1, 2], rot[2, 2])
    # e_R = vee(R_d' R - R' R_d) / 2
    ex = 0.5 * (wp.dot(b3, r2) - wp.dot(r3, b2))
    ey = 0.5 * (wp.dot(b1, r3) - wp.dot(r1, b3))
    ez = 0.5 * (wp.dot(b2, r1) - wp.dot(r2, b1))
    gain = frame.attitude_gain
    return wp.vec4(
        gain * (-KR_XY * ex - KW_XY * body.rate[0]),
        gain * (-KR_XY * ey - KW_XY * body.rate[1]),
        gain * (-KR_Z * ez - KW_Z * body.rate[2]),
        MASS * wp.dot(acc, r3),
    )


@wp.func
def rotor_response(thrust: float, throttle: float, lag: float) -> float:
    """Return the throttle of a rotor after one physics step, 0 to 1, for a desired thrust, N."""
    target = wp.sqrt(wp.clamp(thrust / MAX_THRUST, 0.0, 1.0))
    return throttle + lag * (target - throttle)


@wp.func
def step_quadrotor(body: Body, cmd_vel_w: wp.vec3, frame: Airframe, damping: float, dt: float) -> Body:
    """Return the body after one physics step under a velocity command.

    Rotors are at 0, 90, 180, -90 degrees and spin -1, +1, -1, +1.
    """
    wrench = lee_wrench(body, cmd_vel_w, frame)
    # least-norm mixing: the rotors that act on an axis share it equally
    roll = 0.5 * wrench[0] / ARM
    pitch = 0.5 * wrench[1] / ARM
    yaw = 0.25 * wrench[2] / KAPPA
    lift = 0.25 * wrench[3]
    t0 = rotor_response(lift - pitch + yaw, body.throttle[0], frame.lag)
    t1 = rotor_response(lift + roll - yaw, body.throttle[1], frame.lag)
    t2 = rotor_response(lift + pitch + yaw, body.throttle[2], frame.lag)
    t3 = rotor_response(lift - roll - yaw, body.throttle[3], frame.lag)
    f = MAX_THRUST * frame.thrust
    f0 = f * t0 * t0
    f1 = f * t1 * t1
    f2 = f * t2 * t2
    f3 = f * t3 * t3
    wx = body.rate[0]
    wy = body.rate[1]
    wz = body.rate[2]
    # inertia is proportional to mass: it divides the torques and cancels in the gyroscopic terms
    ax = ARM * (f1 - f3) / (IX * frame.mass) - (IZ - IY) / IX * wy * wz
    ay = ARM * (f2 - f0) / (IY * frame.mass) - (IX - IZ) / IY * wz * wx
    az = KAPPA * (f0 - f1 + f2 - f3) / (IZ * frame.mass)
    keep = 1.0 - damping * frame.damping * dt
    rate = (body.rate + wp.vec3(ax, ay, az) * dt) * keep
    up = wp.quat_rotate(body.quat, wp.vec3(0.0, 0.0, 1.0))
    acc = up * ((f0 + f1 + f2 + f3) / (MASS * frame.mass)) - wp.vec3(0.0, 0.0, GRAVITY)
    vel = (body.vel + (acc + frame.wind) * dt) * (1.0 - damping * frame.damping * frame.drag * dt)
    out = Body()
    out.vel = vel
    out.pos = body.pos + vel * dt
    out.rate = rate
    # exact rotation by the body rate over the step
    angle = wp.length(rate) * dt
    quat = body.quat
    if angle > 1.0e-9:
        quat = wp.normalize(quat * wp.quat_from_axis_angle(wp.normalize(rate), angle))
    out.quat = quat
    out.throttle = wp.vec4(t0, t1, t2, t3)
    return out


@wp.func
def step_first_order(body: Body, cmd_vel_w: wp.vec3, frame: Airframe, damping: float, dt: float) -> Body:
    """Return the body after one step of the first-order model: velocity follows the command, attitude does not change."""
    gain = VELOCITY_GAIN * frame.velocity_gain * dt * frame.thrust / frame.mass
    vel = body.vel + (cmd_vel_w - body.vel) * gain + frame.wind * dt
    body.vel = vel * (1.0 - damping * frame.damping * frame.drag * dt)
    body.pos = body.pos + body.vel * dt
    return body
