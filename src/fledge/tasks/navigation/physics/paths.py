"""Moving obstacles on prescribed paths, the movers of scenes: position and velocity are functions of the map's age.

`worlds.scene.Movers` has the formula. Time is in double precision: it grows for as long as an env exists.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import warp as wp

from fledge.tasks.navigation.physics.crowd import Crowd, mover_of, place
from fledge.tasks.navigation.worlds.scene import Movers

PERIOD = wp.constant(wp.float64(2.0 * math.pi))


@wp.struct
class Paths:
    """Paths of the movers of W worlds, M in each; the fields are those of `worlds.scene.Movers`."""

    origin: wp.array2d(dtype=wp.vec3)  # [W, M]
    drift: wp.array2d(dtype=wp.vec3)  # [W, M]
    loop: wp.array2d(dtype=wp.vec3)  # [W, M]
    pace: wp.array2d(dtype=wp.vec2)  # [W, M]
    turn: wp.array(dtype=wp.vec2)  # [W]


def make_paths(movers: Sequence[Movers], count: int, device: str) -> tuple[Paths, dict[str, Any]]:
    """Return the paths of the first `count` movers of each world, and the arrays that the struct points to."""
    paths, kept = Paths(), {}
    for name, field in Paths.vars.items():
        values = [getattr(each, name) for each in movers]
        rows = np.stack(values if name == "turn" else [value[:count] for value in values]).astype(np.float32)
        kept[name] = wp.array(rows, dtype=field.type.dtype, device=device)
        setattr(paths, name, kept[name])
    return paths, kept


@wp.func
def fold(start: float, speed: float, half: float, t: wp.float64) -> wp.vec2:
    """Return position and velocity after t seconds of a point that turns back at ±half; (start, 0) if it rests."""
    if speed == 0.0:
        return wp.vec2(start, 0.0)
    h = wp.float64(half)
    s = wp.float64(start) + wp.float64(speed) * t + h  # from the lower end on
    laps = wp.floor(s / (wp.float64(2.0) * h))
    inside = wp.float32(s - laps * wp.float64(2.0) * h) - half
    if int(laps) % 2 == 0:
        return wp.vec2(inside, speed)
    return wp.vec2(-inside, -speed)


@wp.func
def path_at(paths: Paths, w: int, j: int, t: wp.float64) -> wp.spatial_vector:
    """Return position (first three numbers, m) and velocity (m/s) of mover j of world w after t seconds."""
    origin = paths.origin[w, j]
    drift = paths.drift[w, j]
    x = fold(origin[0], drift[0], paths.turn[w][0], t)
    y = fold(origin[1], drift[1], paths.turn[w][1], t)
    pace = paths.pace[w, j]
    turned = wp.float64(pace[0]) * t
    a = wp.float32(turned - wp.floor(turned / PERIOD) * PERIOD) + pace[1]
    s = wp.sin(a)
    c = wp.cos(a)
    s2 = 2.0 * s * c
    c2 = c * c - s * s
    loop = paths.loop[w, j]
    rate = pace[0] * loop
    return wp.spatial_vector(
        x[0] + loop[0] * (s + 2.0 * s2),
        y[0] + loop[1] * (c - 2.0 * c2),
        origin[2] + wp.float32(wp.float64(drift[2]) * t) - loop[2] * (s * c2 + c * s2),
        x[1] + rate[0] * (c + 4.0 * c2),
        y[1] + rate[1] * (4.0 * s2 - s),
        drift[2] - 3.0 * rate[2] * (c * c2 - s * s2),
    )


@wp.kernel(enable_backward=False)
def place_paths(slots: wp.array(dtype=wp.int32), world: wp.array(dtype=wp.int32), paths: Paths, crowd: Crowd):
    """Place obstacles at the beginning of their paths, one thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    for j in range(crowd.placed[slot]):
        at = path_at(paths, world[slot], j, wp.float64(0.0))
        pos = wp.vec3(at[0], at[1], at[2])
        place(crowd, slot, j, pos, pos, wp.vec3(at[3], at[4], at[5]))


@wp.kernel(enable_backward=False)
def step_paths(
    first: int,
    clock: wp.array(dtype=wp.int32),
    dt: float,
    world: wp.array(dtype=wp.int32),
    paths: Paths,
    crowd: Crowd,
):
    """Move all obstacles by the physics steps of one decision, one thread per obstacle."""
    slot, j = mover_of(first, wp.tid(), crowd)
    steps = crowd.trail.shape[0]
    age = clock[0] - crowd.born[slot]
    if j >= crowd.placed[slot] or age < 0:
        return
    crowd.before[slot, j] = crowd.trail[steps - 1, slot, j]
    at = wp.spatial_vector()
    for k in range(steps):
        at = path_at(paths, world[slot], j, wp.float64(age + k + 1) * wp.float64(dt))
        crowd.trail[k, slot, j] = wp.vec3(at[0], at[1], at[2])
    crowd.vel[slot, j] = wp.vec3(at[3], at[4], at[5])
