"""A point-mass airframe in the horizontal plane. Fighters and missiles have the same equations with other parameters.

Per unit mass, with rudder u in [-1, 1] and speed v:

    Cd0 = g / Vt²      k = 1 / (4 Cd0 (L/D)²)      Cl = |u| / Rmin
    drag = (Cd0 + k Cl²) v²      dv/dt = thrust - drag      normal = v² u / Rmin

The normal acceleration makes a path of curvature u / Rmin at any speed, so a step is an exact circular arc. With constant
rudder and thrust dv/dt = T - c v² has a closed form (`speed_gain`); the path's length follows from the speeds and slopes of
both ends (Hermite). Results therefore hardly depend on the time step. Directions are unit vectors, not angles: a mirrored,
turned or side-swapped fight gives the same bits, if the kernel's module has `fuse_fp` off (a fused product rounds x and y
differently). Rudder is positive to the left (counter-clockwise).
"""

import warp as wp


@wp.struct
class Airframe:
    """Parameters of one kind of airframe."""

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
def flyer(pos: wp.vec2, dir: wp.vec2, speed: float) -> Flyer:
    out = Flyer()
    out.pos = pos
    out.dir = dir
    out.speed = speed
    return out


@wp.struct
class Leg:
    """Change of state over one or more steps. Sum the legs of several steps, and add the sum to the state: float32 rounds
    a short leg that is added to a position of 60 km."""

    step: wp.vec2  # m, world
    turn: wp.vec2  # of the direction's unit vector, world
    gain: float  # m/s


@wp.func
def drag_factor(frame: Airframe, u: float) -> float:
    """Return the drag at rudder u divided by v², 1/m."""
    cl = u * (1.0 / frame.rmin)
    return frame.cd0 + frame.k * cl * cl


@wp.func
def tanh_over_a(a2: float, t: float) -> float:
    """Return tanh(a t) / a, s, where `a2` is a². If a t is small, the result comes from the power series."""
    x = a2 * t * t
    if x < 0.05:
        return t * (1.0 - x * (1.0 / 3.0 - x * (2.0 / 15.0 - x * (17.0 / 315.0))))
    a = wp.sqrt(a2)
    return wp.tanh(a * t) / a


@wp.func
def speed_gain(c: float, thrust: float, v0: float, t: float) -> float:
    """Return the exact change of speed over t seconds, m/s, where dv/dt = T - c v².

    v1 = (v0 + T h) / (1 + c v0 h) with h = tanh(a t) / a and a² = T c.
    """
    h = tanh_over_a(thrust * c, t)
    return h * (thrust - c * v0 * v0) / (1.0 + c * v0 * h)


@wp.func
def path_length(c: float, thrust: float, v0: float, gain: float, t: float) -> float:
    """Return the metres flown in t seconds, where `gain` is the change of speed.

    With strong drag, this is the exact integral of the speed; else the integral of the cubic polynomial that has the same
    speeds and accelerations at both ends of the step.
    """
    v1 = v0 + gain
    if c * v0 * t > 0.3:  # strong drag: the cubic is too coarse
        h = tanh_over_a(thrust * c, t)
        at = wp.sqrt(thrust * c) * t
        if at > 4.0:  # log cosh, where tanh is 1 but for rounding
            return (wp.log(1.0 + c * v0 * h) + at - 0.6931472 + wp.exp(-2.0 * at)) / c
        return (wp.log(1.0 + c * v0 * h) - 0.5 * wp.log(1.0 - thrust * c * h * h)) / c
    return t * (v0 + 0.5 * gain + t / 12.0 * c * gain * (v0 + v1))


@wp.func
def bearable_rudder(frame: Airframe, u: float, thrust: float, v0: float, dt: float) -> float:
    """Return rudder `u`, limited to -1 .. 1 and reduced so that the load in the middle of the step is within the limit."""
    rudder = wp.clamp(u, -1.0, 1.0)
    fastest = v0 + 0.5 * dt * thrust
    if frame.max_load > 0.0 and wp.abs(rudder) * fastest * fastest > frame.max_load * frame.rmin:
        for _k in range(4):  # the error falls by a factor of about 50 each time
            middle = v0 + speed_gain(drag_factor(frame, rudder), thrust, v0, 0.5 * dt)
            bound = wp.min(1.0, frame.max_load * frame.rmin / wp.max(middle * middle, 1.0))
            rudder = wp.clamp(u, -bound, bound)
    return rudder


@wp.func
def advance(frame: Airframe, dir: wp.vec2, v0: float, u: float, thrust: float, dt: float) -> Leg:
    """Return the change of state over dt seconds of constant rudder and thrust (m/s²)."""
    rudder = bearable_rudder(frame, u, thrust, v0, dt)
    c = drag_factor(frame, rudder)
    gain = speed_gain(c, thrust, v0, dt)
    length = path_length(c, thrust, v0, gain, dt)
    half = (0.5 / frame.rmin) * length * rudder  # radians, half of the turn
    x = half * half
    cosine = float(1.0)
    sinc = float(1.0)
    if x < 0.1:  # the series are exact in float32
        cosine = 1.0 - x * (1.0 / 2.0 - x * (1.0 / 24.0 - x * (1.0 / 720.0 - x * (1.0 / 40320.0))))
        sinc = 1.0 - x * (1.0 / 6.0 - x * (1.0 / 120.0 - x * (1.0 / 5040.0)))
    else:
        cosine = wp.cos(half)
        sinc = wp.sin(half) / half
    sine = half * sinc
    middle = wp.vec2(cosine * dir[0] - sine * dir[1], sine * dir[0] + cosine * dir[1])
    leg = Leg()
    leg.step = (length * sinc) * middle
    leg.turn = (2.0 * sine) * wp.vec2(-middle[1], middle[0])
    leg.gain = gain
    return leg


@wp.func
def joined(a: Leg, b: Leg) -> Leg:
    """Return the leg of two successive steps: the sum of their legs."""
    leg = Leg()
    leg.step = a.step + b.step
    leg.turn = a.turn + b.turn
    leg.gain = a.gain + b.gain
    return leg


@wp.func
def after(body: Flyer, leg: Leg) -> Flyer:
    """Return the state `body`, changed by the leg."""
    dir = body.dir + leg.turn
    unit = (1.5 - 0.5 * wp.dot(dir, dir)) * dir  # Newton's step for 1 / sqrt
    return flyer(body.pos + leg.step, unit, body.speed + leg.gain)


@wp.func
def move(frame: Airframe, body: Flyer, u: float, thrust: float, dt: float) -> Flyer:
    """Return the state after dt seconds of constant rudder and thrust (m/s²)."""
    return after(body, advance(frame, body.dir, body.speed, u, thrust, dt))
