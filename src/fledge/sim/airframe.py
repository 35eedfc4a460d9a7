"""A point-mass airframe in the horizontal plane: fighters and missiles are the same equations with other numbers.

Per unit mass, with rudder u in [-1, 1] and speed v:

    Cd0 = g / Vt²      k = 1 / (4 Cd0 (L/D)²)      Cl = |u| / Rmin
    drag = (Cd0 + k Cl²) v²      dv/dt = thrust - drag      normal = v² u / Rmin

The normal acceleration makes a path of curvature u / Rmin whatever the speed, so a step is an exact circular arc: only its
length has to be integrated. Speed is integrated by Runge and Kutta's fourth-order rule, the length from it by Hermite's
(both ends and their slopes), so results hardly depend on the time step. Directions are unit vectors, not angles: a mirrored
or side-swapped world gives the same bits. Rudder is positive to the left (counter-clockwise).
"""

import warp as wp


@wp.struct
class Airframe:
    """Numbers of one kind of airframe."""

    cd0: float  # 1/m, drag without lift
    k: float  # m, induced drag
    rmin: float  # m, radius of the tightest turn
    thrust: float  # m/s², at full throttle
    max_load: float  # m/s², limit of the normal acceleration; 0: none


@wp.struct
class Flyer:
    """State of one airframe."""

    pos: wp.vec2  # m, world
    dir: wp.vec2  # unit vector of the velocity, world
    speed: float  # m/s


@wp.func
def limit_rudder(frame: Airframe, u: float, speed: float) -> float:
    """The rudder that the airframe bears at this speed."""
    bound = float(1.0)
    if frame.max_load > 0.0:
        bound = wp.min(1.0, frame.max_load * frame.rmin / wp.max(speed * speed, 1.0))
    return wp.clamp(u, -bound, bound)


@wp.func
def drag_factor(frame: Airframe, u: float) -> float:
    """Drag over v², 1/m."""
    cl = u / frame.rmin
    return frame.cd0 + frame.k * cl * cl


@wp.func
def rotate(v: wp.vec2, c: float, s: float) -> wp.vec2:
    return wp.vec2(c * v[0] - s * v[1], s * v[0] + c * v[1])


@wp.func
def move(frame: Airframe, body: Flyer, u: float, thrust: float, dt: float) -> Flyer:
    """The state after dt seconds of constant rudder and thrust (m/s²)."""
    v0 = body.speed
    rudder = limit_rudder(frame, u, v0)
    if frame.max_load > 0.0:  # the load that counts is that of the middle of the step
        slope = thrust - drag_factor(frame, rudder) * v0 * v0
        rudder = limit_rudder(frame, u, v0 + 0.5 * dt * slope)
    c = drag_factor(frame, rudder)
    k1 = thrust - c * v0 * v0
    v2 = v0 + 0.5 * dt * k1
    k2 = thrust - c * v2 * v2
    v3 = v0 + 0.5 * dt * k2
    k3 = thrust - c * v3 * v3
    v4 = v0 + dt * k3
    k4 = thrust - c * v4 * v4
    v1 = wp.max(v0 + dt / 6.0 * (k1 + 2.0 * (k2 + k3) + k4), 0.0)
    length = 0.5 * dt * (v0 + v1) + dt * dt / 12.0 * (k1 - (thrust - c * v1 * v1))
    half = 0.5 * length * rudder / frame.rmin  # radians, half of the turn
    cosine = wp.cos(half)
    sine = wp.sin(half)
    middle = rotate(body.dir, cosine, sine)
    chord = length
    if wp.abs(half) > 1.0e-3:
        chord = length * sine / half
    after = rotate(middle, cosine, sine)
    out = Flyer()
    out.pos = body.pos + chord * middle
    out.dir = after / wp.length(after)
    out.speed = v1
    return out
