"""Solving every node of a table: hundreds of fly-outs each, over all threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import warp as wp

from fledge.sim.launch import Call, Launcher, default_threads
from fledge.tasks.aircombat.spacetime.flyout import Physics
from fledge.tasks.aircombat.spacetime.solve import solve_ranges

DT = 0.1  # s, of the fly-outs
AXES = (  # first, last, nodes: own speed and target's, m/s; off-boresight and aspect, rad
    (150.0, 550.0, 5),
    (150.0, 550.0, 7),
    (0.0, np.pi, 25),
    (-np.pi, np.pi, 37),
)
SHAPE = tuple(axis[2] for axis in AXES)
PARTS = 50  # after each of which progress is told
BEYOND = 1.25  # how much farther than the best geometry's ranges the search begins
Ranges = tuple[np.ndarray, np.ndarray]  # largest and smallest, [..., 4] float32, m


def grid() -> np.ndarray:
    """Geometries of all nodes, [own, target, off-boresight, aspect, 4]."""
    axes = [np.linspace(*axis) for axis in AXES]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).astype(np.float32)


def solve_geometries(
    physics: Physics,
    geometries: np.ndarray,
    launcher: Launcher,
    farthest: tuple[float, float],
    dt: float = DT,
    both_ends: bool = False,
) -> Ranges:
    """r_max, r_left, r_right, r_ne of geometries [N, 4]; the smallest ranges only with `both_ends`."""
    device = str(launcher.device)
    given: wp.array = wp.array(np.ascontiguousarray(geometries, np.float32), dtype=wp.vec4, device=device)
    largest = wp.zeros(len(geometries), dtype=wp.vec4, device=device)
    smallest = wp.zeros(len(geometries) if both_ends else 0, dtype=wp.vec4, device=device)
    call = Call(solve_ranges, [physics, wp.vec2(*farthest), dt, given, largest, smallest])
    launcher.run(launcher.record([call], len(geometries)))
    return largest.numpy(), smallest.numpy()


def farthest_ranges(physics: Physics, launcher: Launcher) -> tuple[float, float]:
    """Bounds of r_max, and of r_left and r_right: nose to nose, the shooter at its fastest, the target at any speed."""
    fastest = AXES[0][1]
    speeds = np.linspace(*AXES[1])
    best = np.stack([np.full_like(speeds, fastest), speeds, 0 * speeds, 0 * speeds], axis=-1)
    largest, _ = solve_geometries(physics, best, launcher, (1.0e6, 1.0e6), 2 * DT)
    found = BEYOND * largest.max(axis=0)
    return max(float(found[0]), 2000.0), max(float(found[1]), float(found[2]), 2000.0)


def build_table(physics: Physics, device: str, on_progress: Callable[[int], None] | None = None) -> Ranges:
    """Solve all nodes; progress is told in parts of PARTS."""
    launcher = Launcher(device, default_threads())
    try:
        farthest = farthest_ranges(physics, launcher)
        nodes = grid().reshape(-1, 4)
        # Every part has nodes of all kinds: searches differ in length, and threads would wait for each other.
        order = np.random.default_rng(0).permutation(len(nodes))
        largest, smallest = np.zeros((2, len(nodes), 4), np.float32)
        for done, part in enumerate(np.array_split(order, PARTS), 1):
            largest[part], smallest[part] = solve_geometries(physics, nodes[part], launcher, farthest, both_ends=True)
            if on_progress:
                on_progress(done)
        return complete(largest.reshape(*SHAPE, 4), smallest.reshape(*SHAPE, 4))
    finally:
        launcher.close()


def complete(largest: np.ndarray, smallest: np.ndarray) -> Ranges:
    """Give ends, in the wrong order, to nodes where nothing kills that are beside nodes where something does.

    Middle and signed square go on as a straight line through the two nodes before, on each side along each axis where
    there are two; the mean of those counts, and never a square that is positive.
    """
    middle, half = (largest + smallest) / 2, (largest - smallest) / 2
    square = half * np.abs(half)
    known = largest > 0
    dead = ~known
    for _round in range(2):  # corners of a cell are up to four steps from the node that kills
        sums, counts = np.zeros((2, *middle.shape)), np.zeros(middle.shape)
        for axis, way in itertools.product(range(4), (1, -1)):
            near, next_near = shifted(known, axis, way), shifted(known, axis, 2 * way)
            both = dead & ~known & near & next_near
            for total, values in zip(sums, (middle, square), strict=True):
                line = 2 * shifted(values, axis, way) - shifted(values, axis, 2 * way)
                total += np.where(both, line, 0)
            counts += both
        found = counts > 0
        middle = np.where(found, sums[0] / np.maximum(counts, 1), middle)
        square = np.where(found, np.minimum(sums[1] / np.maximum(counts, 1), 0), square)
        known = known | found
    half = np.sign(square) * np.sqrt(np.abs(square))
    return (middle + half).astype(np.float32), (middle - half).astype(np.float32)


def shifted(values: np.ndarray, axis: int, by: int) -> np.ndarray:
    """Values of the nodes `by` steps on along an axis; nothing beyond the ends, except that aspects go round."""
    if axis == 3:  # the first and the last are the same angle
        inner = np.roll(np.take(values, range(values.shape[3] - 1), axis=3), -by, axis=3)
        return np.concatenate([inner, np.take(inner, [0], axis=3)], axis=3)
    moved = np.zeros_like(values)
    source, place = [slice(None)] * values.ndim, [slice(None)] * values.ndim
    source[axis], place[axis] = (slice(by, None), slice(None, -by)) if by > 0 else (slice(None, by), slice(-by, None))
    moved[tuple(place)] = values[tuple(source)]
    return moved
