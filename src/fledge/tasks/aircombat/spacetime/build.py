"""Compute the ranges at every node of a table, by hundreds of fly-outs (simulated shots) per node, on all threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import warp as wp

from fledge.core.machine import default_threads
from fledge.envs.launch import Call, Launcher
from fledge.tasks.aircombat.physics.structs import Physics
from fledge.tasks.aircombat.spacetime.flyout import solve_ranges

DT = 0.1  # s, of the fly-outs
OWN = (150, 250, 350, 450, 550)  # m/s
TARGET = (150, 210, 270, 330, 380, 420, 455, 490, 520, 550)  # m/s
OFF_BORESIGHT = (*range(0, 150, 5), *range(150, 181, 10))  # degrees
ASPECT = (*range(-180, -72, 12), *range(-72, -48, 6), *range(-48, 12, 4), *range(12, 60, 8), *range(60, 181, 12))
AXES = (OWN, TARGET, OFF_BORESIGHT, ASPECT)  # finer where ranges change fast
SHAPE = tuple(len(axis) for axis in AXES)
ASTERN = 179.9  # degrees; used for 180, so that missiles turn left
PARTS = 50  # progress reports
BEYOND = 1.25  # start of the search, over the range of the best geometry
ROUNDS = 3  # corners of a cell are up to four steps from a node with a kill range
NOWHERE = -1.0e7  # m², square of nodes far from any with a kill range
Ranges = tuple[np.ndarray, np.ndarray]  # largest and smallest, [..., 4] float32, m


def grid() -> np.ndarray:
    """Return the geometry of every node of the table: own speed, target's speed, m/s, off-boresight and aspect, rad.

    The shape is [own speeds, target's speeds, off-boresights, aspects, 4].
    """
    axes = [np.array(OWN), np.array(TARGET), np.radians(np.minimum(OFF_BORESIGHT, ASTERN)), np.radians(ASPECT)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).astype(np.float32)


def solve_geometries(
    physics: Physics,
    geometries: np.ndarray,
    launcher: Launcher,
    farthest: tuple[float, float],
    dt: float = DT,
    both_ends: bool = False,
) -> Ranges:
    """Find the launch ranges at which the missile kills: return their upper and their lower limits, m, as two arrays [N, 4].

    The columns are r_max, r_left, r_right and r_ne (see `flyout`). Unless `both_ends` is true, the second array is empty.

    Args:
        geometries: Rows [N, 4] of own speed, target's speed, off-boresight and aspect, as `grid` returns them.
        farthest: Upper bounds of the search, from `farthest_ranges`.
    """
    device = str(launcher.device)
    given: wp.array = wp.array(np.ascontiguousarray(geometries, np.float32), dtype=wp.vec4, device=device)
    largest = wp.zeros(len(geometries), dtype=wp.vec4, device=device)
    smallest = wp.zeros(len(geometries) if both_ends else 0, dtype=wp.vec4, device=device)
    call = Call(solve_ranges, [physics, wp.vec2(*farthest), dt, given, largest, smallest])
    launcher.run(launcher.record([call], len(geometries)))
    return largest.numpy(), smallest.numpy()


def farthest_ranges(physics: Physics, launcher: Launcher, dt: float = DT) -> tuple[float, float]:
    """Return two ranges, m, at which the search for kill ranges starts: for r_max, and for both r_left and r_right.

    They are BEYOND times the ranges in the best geometry: nose to nose, with the fastest shooter.
    """
    best = np.array([[OWN[-1], speed, 0, 0] for speed in TARGET])
    largest, _ = solve_geometries(physics, best, launcher, (1.0e6, 1.0e6), dt)
    found = BEYOND * largest.max(axis=0)
    return max(float(found[0]), 2000.0), max(float(found[1]), float(found[2]), 2000.0)


def build_table(physics: Physics, device: str, on_progress: Callable[[int], None] | None = None) -> Ranges:
    """Return for all nodes of a table the largest and the smallest launch ranges at which the missile kills, m.

    The two arrays have the shape [own speeds, target's speeds, off-boresights, aspects, 4]; see `solve_geometries`.

    Args:
        on_progress: Called with the number of finished parts of the table, 1 to PARTS.
    """
    launcher = Launcher(device, default_threads())
    try:
        farthest = farthest_ranges(physics, launcher)
        nodes = grid().reshape(-1, 4)
        # Shuffled: searches differ in length, and threads would wait for each other.
        order = np.random.default_rng(0).permutation(len(nodes))
        largest, smallest = np.zeros((2, len(nodes), 4), np.float32)
        for done, part in enumerate(np.array_split(order, PARTS), 1):
            largest[part], smallest[part] = solve_geometries(physics, nodes[part], launcher, farthest, both_ends=True)
            if on_progress:
                on_progress(done)
        return largest.reshape(*SHAPE, 4), smallest.reshape(*SHAPE, 4)
    finally:
        launcher.close()


def complete(largest: np.ndarray, smallest: np.ndarray) -> Ranges:
    """Return two arrays, middle (m) and square (m²), that describe the interval of kill ranges at each node.

    A missile kills from `smallest` to `largest`: `middle` is the mean of both, `square` the square of half their difference.
    At a node where no range kills, both are extrapolated linearly from the next two nodes, and averaged over all axes and
    directions in which those two are known; `square` is then at most 0. At nodes too far from any interval it is NOWHERE.
    """
    middle, half = (largest + smallest) / 2.0, (largest - smallest) / 2.0
    square = half * half
    known = largest > 0
    for _round in range(ROUNDS):
        sums, counts = np.zeros((2, *middle.shape)), np.zeros(middle.shape)
        for axis, direction in itertools.product(range(4), (1, -1)):
            both = ~known & shifted(known, axis, direction) & shifted(known, axis, 2 * direction)
            ratio = step_ratio(axis, direction)
            for total, values in zip(sums, (middle, square), strict=True):
                near, next_near = shifted(values, axis, direction), shifted(values, axis, 2 * direction)
                total += np.where(both, near + ratio * (near - next_near), 0)
            counts += both
        found = counts > 0
        middle = np.where(found, sums[0] / np.maximum(counts, 1), middle)
        square = np.where(found, np.minimum(sums[1] / np.maximum(counts, 1), 0), square)
        known = known | found
    return middle, np.where(known, square, NOWHERE)


def step_ratio(axis: int, direction: int) -> np.ndarray:
    """Return for each node of an axis the distance to the next node, divided by the distance from there to the one after.

    `direction` is 1 towards larger values, -1 towards smaller ones. The result broadcasts against the table's arrays.
    """
    gaps = np.diff(AXES[axis])
    at = np.arange(len(gaps) + 1) + (0 if direction > 0 else -1)
    ratio = gaps[at % len(gaps)] / gaps[(at + direction) % len(gaps)]
    return np.expand_dims(ratio, tuple(k for k in range(5) if k != axis))


def shifted(values: np.ndarray, axis: int, by: int) -> np.ndarray:
    """Return at each node the value `by` nodes farther along an axis; 0 beyond the axis's ends, except that the aspect
    wraps around."""
    if axis == 3:  # the first and the last are the same angle
        inner = np.roll(np.take(values, range(values.shape[3] - 1), axis=3), -by, axis=3)
        return np.concatenate([inner, np.take(inner, [0], axis=3)], axis=3)
    moved = np.zeros_like(values)
    source, place = [slice(None)] * values.ndim, [slice(None)] * values.ndim
    source[axis], place[axis] = (slice(by, None), slice(None, -by)) if by > 0 else (slice(None, by), slice(-by, None))
    moved[tuple(place)] = values[tuple(source)]
    return moved
