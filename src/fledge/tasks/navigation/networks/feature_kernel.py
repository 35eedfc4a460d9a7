"""The features of `feature_policy` in one kernel, for observations on a GPU: one launch instead of about fifty operators.

`navigation_features` in torch is the definition; `tests/device` compares the two. The kernel has no gradient.
"""
# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import warp as wp
from torch import Tensor

from fledge.core.warp_start import start_warp
from fledge.tasks.navigation.physics.shapes import BOX_M
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, LIDAR, STATE

wp.set_module_options({"enable_backward": False})
start_warp()

OWN, EACH, COLUMNS = 9, 14, DYNAMIC_OBSTACLE.width
FAR, UP, VELOCITY = STATE.starts[1:4]
FLAT, DZ, MOVING, WIDTH_CLASS, IS_BOX = DYNAMIC_OBSTACLE.starts[1:6]
RADIUS_M, MIN_GAP_M = 0.3, 0.05  # as in feature_policy


@wp.func
def vector(values: wp.array2d(dtype=wp.float32), i: wp.int32, at: wp.int32) -> wp.vec3:
    return wp.vec3(values[i, at], values[i, at + 1], values[i, at + 2])


@wp.func
def write(out: wp.array2d(dtype=wp.float32), i: wp.int32, at: wp.int32, value: wp.vec3):
    for axis in range(3):
        out[i, at + axis] = value[axis]


@wp.kernel
def features(
    state: wp.array2d(dtype=wp.float32),
    lidar: wp.array2d(dtype=wp.float32),
    obstacles: wp.array2d(dtype=wp.float32),
    range_m: wp.float32,
    beam_scale: wp.float32,
    out: wp.array2d(dtype=wp.float32),
):
    """Write one beam, one obstacle or the drone's own features: item 0, then the beams, then the obstacles."""
    i, item = wp.tid()
    beams = lidar.shape[1]
    velocity = vector(state, i, VELOCITY)
    if item == 0:
        far = state[i, FAR]
        write(out, i, 0, vector(state, i, 0))
        out[i, 3] = far * 0.05
        out[i, 4] = wp.min(far, range_m) / range_m
        out[i, 5] = state[i, UP]
        write(out, i, 6, velocity * 0.5)
    elif item <= beams:
        distance = wp.max(range_m - lidar[i, item - 1], 0.1)
        out[i, OWN + item - 1] = wp.log(range_m / distance) * beam_scale
    else:
        k = item - 1 - beams
        row, at = k * COLUMNS, OWN + beams + k * EACH
        flat, dz, is_box = obstacles[i, row + FLAT], obstacles[i, row + DZ], obstacles[i, row + IS_BOX]
        present = wp.where(flat > 0.0, 1.0, 0.0)
        width = (obstacles[i, row + WIDTH_CLASS] + 1.0) * 0.25
        offset = vector(obstacles, i, row) * wp.sqrt(flat * flat + dz * dz)
        relative = vector(obstacles, i, row + MOVING) - velocity
        reach = 0.5 * width + RADIUS_M
        gap = flat - reach
        along = offset[0] * relative[0] + offset[1] * relative[1]
        speed2 = wp.max(relative[0] * relative[0] + relative[1] * relative[1], 1.0e-3)
        when = wp.clamp(-along / speed2, 0.0, 4.0)
        x, y = offset[0] + relative[0] * when, offset[1] + relative[1] * when
        miss = wp.sqrt(x * x + y * y) - reach
        write(out, i, at, offset * (1.0 / range_m) * present)
        write(out, i, at + 3, relative * 0.5 * present)
        out[i, at + 6] = gap * (1.0 / range_m) * present
        out[i, at + 7] = wp.log(range_m / wp.max(gap, MIN_GAP_M)) * 0.25 * present
        out[i, at + 8] = when * 0.25 * present
        out[i, at + 9] = miss * 0.5 * present
        out[i, at + 10] = (wp.abs(dz) - 0.5 * BOX_M - RADIUS_M) * is_box * present
        out[i, at + 11] = width * present
        out[i, at + 12] = is_box * present
        out[i, at + 13] = present


def is_fused(obs: Mapping[str, Tensor]) -> bool:
    """Return whether `fused_features` may compute these observations: they are on a GPU, and need no gradient."""
    parts = [obs[each.name] for each in (STATE, LIDAR, DYNAMIC_OBSTACLE)]
    if torch.jit.is_tracing() or torch.compiler.is_compiling() or not parts[0].is_cuda:
        return False
    wants_grad = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
    return not wants_grad and all(part.dtype == torch.float32 for part in parts)


def fused_features(obs: Mapping[str, Tensor], range_m: float) -> Tensor:
    """Return the features [B, F] of `navigation_features`."""
    state, lidar, obstacles = (obs[each.name].detach().flatten(1) for each in (STATE, LIDAR, DYNAMIC_OBSTACLE))
    count, beams, nearest = len(state), lidar.shape[1], obstacles.shape[1] // COLUMNS
    out = state.new_empty(count, OWN + beams + nearest * EACH)
    arrays = [wp.from_torch(part) for part in (state, lidar, obstacles)]
    scale = 1.0 / math.log(range_m / RADIUS_M)
    wp.launch(
        features,
        (count, 1 + beams + nearest),
        [*arrays, range_m, scale, wp.from_torch(out)],
        device=str(state.device),
        stream=wp.stream_from_torch(torch.cuda.current_stream(state.device)),
    )
    return out
