"""What a drone knows of itself: where it is, and how it will move."""

import warp as wp

from fledge.tasks.navigation.planner.search import Own


@wp.func
def read_own(
    i: int,
    state: wp.array2d(dtype=wp.float32),
    pose: wp.array2d(dtype=wp.float32),
    acc: wp.array(dtype=wp.vec3),
    fresh: bool,
) -> Own:
    """Where the drone is, from `state` and `pose`; acceleration is what the last command was foreseen to do."""
    own = Own()
    ux = state[i, 0]
    uy = state[i, 1]
    flat = state[i, 3]
    length = wp.sqrt(ux * ux + uy * uy)
    own.ahead = wp.vec2(1.0, 0.0)
    if length > 1.0e-6:
        own.ahead = wp.vec2(ux / length, uy / length)
    height = pose[i, 0]
    own.pos = wp.vec3(-flat * own.ahead[0], -flat * own.ahead[1], height)
    own.goal = wp.vec3(0.0, 0.0, height + state[i, 4])
    own.vel = wp.vec3(state[i, 5], state[i, 6], state[i, 7])
    if not fresh:
        own.acc = acc[i]
    return own


@wp.func
def foreseen(own: Own, command: wp.vec3, step: wp.array(dtype=wp.vec3)) -> wp.vec3:
    """Acceleration at the next decision."""
    f = step[0]
    u = step[1]
    return wp.vec3(
        f[0] * own.vel[0] + f[1] * own.acc[0] + f[2] * command[0],
        f[0] * own.vel[1] + f[1] * own.acc[1] + f[2] * command[1],
        u[0] * own.vel[2] + u[1] * own.acc[2] + u[2] * command[2],
    )
