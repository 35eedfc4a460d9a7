"""How a drone responds to commands, identified from its last seconds of flight.

A bank of hypotheses runs beside the flight: every delay of `Response.delays` with every horizontal and every vertical rate
(`responses.py`). Each predicts the velocity at the next decision from the commands that were flown. Its state follows the
measured velocity slowly, by FOLLOW of the error at a decision, so an error tells how well it predicts about the next half
second. The sum of squared errors, which fades with FADING_S, is its score. Delay and rates with the lowest score are taken;
the horizontal and the vertical axes share the delay.

A command in flight takes effect after the delay: the planner starts its predictions from where the drone will be then.
"""

import warp as wp

from fledge.tasks.navigation.planner.readings import Own

FOLLOW = 0.3
FADING_S = 4.0
DOUBT = 0.02  # m²/s²: initial score of all hypotheses but the given response
STATE = ("sent", "flat_state", "flat_score", "up_state", "up_score")  # arrays of `Response` that flights change


@wp.struct
class Response:
    """Hypotheses about the response, and their state for N drones. In shapes: M delays, F horizontal, U vertical rates."""

    on: int  # 1: identify; 0: the given response, which is the only hypothesis
    keep: float  # factor on scores from one decision to the next
    decision_s: float
    delays: wp.array(dtype=wp.int32)  # [M] decisions
    flat: wp.array2d(dtype=wp.vec3)  # [F, 3] position's change, velocity and acceleration after a decision, ...
    upright: wp.array2d(dtype=wp.vec3)  # [U, 3] ... per velocity, acceleration and command before it
    hasten: int
    limit: float
    flat_shape: wp.array(dtype=wp.vec2)  # [F] exaggeration
    up_shape: wp.array(dtype=wp.vec2)  # [U]
    slower: wp.array(dtype=wp.float32)  # [F] s: how much longer than usual a velocity takes to follow
    sent: wp.array2d(dtype=wp.vec3)  # [N, largest delay + 1] m/s, goal frame: commands flown, the last one first
    flat_state: wp.array2d(dtype=wp.vec4)  # [N, M * F] velocity and acceleration, x and y
    flat_score: wp.array2d(dtype=wp.float32)  # [N, M * F] m²/s²
    up_state: wp.array2d(dtype=wp.vec2)  # [N, M * U] velocity and acceleration
    up_score: wp.array2d(dtype=wp.float32)  # [N, M * U] m²/s²


@wp.func
def flat_step(r: Response, f: int, x: wp.vec4, command: wp.vec3) -> wp.vec4:
    """Return horizontal velocity and acceleration (x, y each) after one decision under a command."""
    v = r.flat[f, 1]
    a = r.flat[f, 2]
    return wp.vec4(
        v[0] * x[0] + v[1] * x[2] + v[2] * command[0],
        v[0] * x[1] + v[1] * x[3] + v[2] * command[1],
        a[0] * x[0] + a[1] * x[2] + a[2] * command[0],
        a[0] * x[1] + a[1] * x[3] + a[2] * command[1],
    )


@wp.func
def up_step(r: Response, u: int, x: wp.vec2, command: wp.vec3) -> wp.vec2:
    """Return vertical velocity and acceleration after one decision under a command."""
    v = r.upright[u, 1]
    a = r.upright[u, 2]
    return wp.vec2(
        v[0] * x[0] + v[1] * x[1] + v[2] * command[2],
        a[0] * x[0] + a[1] * x[1] + a[2] * command[2],
    )


@wp.func
def forget_flight(r: Response, i: int, own: Own):
    """Begin a flight of drone i: no command was flown, and the given response is the likeliest."""
    for n in range(r.sent.shape[1]):
        r.sent[i, n] = wp.vec3()
    for h in range(r.flat_state.shape[1]):
        r.flat_state[i, h] = wp.vec4(own.vel[0], own.vel[1], 0.0, 0.0)
        r.flat_score[i, h] = wp.where(h == 0, 0.0, DOUBT)
    for h in range(r.up_state.shape[1]):
        r.up_state[i, h] = wp.vec2(own.vel[2], 0.0)
        r.up_score[i, h] = wp.where(h == 0, 0.0, DOUBT)


@wp.func
def note_command(r: Response, i: int, command: wp.vec3):
    """Add a command that drone i flies from now on to those that it has flown."""
    last = r.sent.shape[1] - 1
    for n in range(last):
        r.sent[i, last - n] = r.sent[i, last - n - 1]
    r.sent[i, 0] = command


@wp.func
def flown_now(r: Response, i: int) -> wp.vec3:
    """Return the command that takes effect on drone i until its next decision by the given delay, once it is noted."""
    return r.sent[i, r.delays[0]]


@wp.func
def compare(r: Response, i: int, own: Own):
    """Advance all hypotheses of drone i by one decision, and compare them with its measured velocity."""
    rates = r.flat.shape[0]
    climbs = r.upright.shape[0]
    for m in range(r.delays.shape[0]):
        command = r.sent[i, r.delays[m]]
        for f in range(rates):
            h = m * rates + f
            x = flat_step(r, f, r.flat_state[i, h], command)
            ex = own.vel[0] - x[0]
            ey = own.vel[1] - x[1]
            r.flat_state[i, h] = x + FOLLOW * wp.vec4(ex, ey, 0.0, 0.0)
            r.flat_score[i, h] = r.keep * r.flat_score[i, h] + (ex * ex + ey * ey)
        for u in range(climbs):
            h = m * climbs + u
            z = up_step(r, u, r.up_state[i, h], command)
            ez = own.vel[2] - z[0]
            r.up_state[i, h] = z + FOLLOW * wp.vec2(ez, 0.0)
            r.up_score[i, h] = r.keep * r.up_score[i, h] + ez * ez


@wp.func
def likeliest(r: Response, i: int) -> wp.vec3i:
    """Return the delay (its number), the horizontal and the vertical rate with the lowest score; the first of equals."""
    rates = r.flat.shape[0]
    climbs = r.upright.shape[0]
    best = wp.vec3i(0, 0, 0)
    least = float(1.0e30)
    for m in range(r.delays.shape[0]):
        flat = int(0)
        for f in range(rates):
            if r.flat_score[i, m * rates + f] < r.flat_score[i, m * rates + flat]:
                flat = f
        up = int(0)
        for u in range(climbs):
            if r.up_score[i, m * climbs + u] < r.up_score[i, m * climbs + up]:
                up = u
        score = r.flat_score[i, m * rates + flat] + r.up_score[i, m * climbs + up]
        if score < least:
            least = score
            best = wp.vec3i(m, flat, up)
    return best


@wp.func
def identify(r: Response, i: int, own: Own, fresh: bool) -> Own:
    """Return the state of drone i with its response, and if that is identified with its acceleration.

    Before, its last command must have been noted.
    """
    if fresh:
        forget_flight(r, i, own)
    if r.on == 0:
        own.slower = r.slower[0]
        return own
    if not fresh:
        compare(r, i, own)
    best = likeliest(r, i)
    flat = r.flat_state[i, best[0] * r.flat.shape[0] + best[1]]
    up = r.up_state[i, best[0] * r.upright.shape[0] + best[2]]
    own.acc = wp.vec3(flat[2], flat[3], up[1])
    own.delay = best[0]
    own.flat = best[1]
    own.upright = best[2]
    own.slower = r.slower[best[1]]
    return own


@wp.func
def hastened(r: Response, own: Own, command: wp.vec3) -> wp.vec3:
    """Return the exaggerated command that makes a slow drone follow `command` faster."""
    if r.hasten == 0:
        return command
    f = r.flat_shape[own.flat]
    u = r.up_shape[own.upright]
    c = own.vel + wp.vec3(
        f[0] * (command[0] - own.vel[0]) + f[1] * own.acc[0],
        f[0] * (command[1] - own.vel[1]) + f[1] * own.acc[1],
        u[0] * (command[2] - own.vel[2]) + u[1] * own.acc[2],
    )
    return wp.vec3(
        wp.clamp(c[0], -r.limit, r.limit), wp.clamp(c[1], -r.limit, r.limit), wp.clamp(c[2], -r.limit, r.limit)
    )


@wp.func
def when_it_acts(r: Response, i: int, own: Own) -> Own:
    """Return the state in which drone i will be when a command that is given now takes effect."""
    n = r.delays[own.delay]
    own.lead = float(n) * r.decision_s
    before = own.pos
    while n > 0:
        n = n - 1
        command = r.sent[i, n]
        p = r.flat[own.flat, 0]
        q = r.upright[own.upright, 0]
        own.pos = own.pos + wp.vec3(
            p[0] * own.vel[0] + p[1] * own.acc[0] + p[2] * command[0],
            p[0] * own.vel[1] + p[1] * own.acc[1] + p[2] * command[1],
            q[0] * own.vel[2] + q[1] * own.acc[2] + q[2] * command[2],
        )
        flat = flat_step(r, own.flat, wp.vec4(own.vel[0], own.vel[1], own.acc[0], own.acc[1]), command)
        up = up_step(r, own.upright, wp.vec2(own.vel[2], own.acc[2]), command)
        own.vel = wp.vec3(flat[0], flat[1], up[0])
        own.acc = wp.vec3(flat[2], flat[3], up[1])
    own.moved = own.pos - before
    return own
