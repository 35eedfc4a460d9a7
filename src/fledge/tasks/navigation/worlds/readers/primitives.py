"""Triangles of simple shapes around the origin, [T, 3, 3] float64."""

from __future__ import annotations

import numpy as np

SIDES = 48  # of a cylinder, and meridians of a sphere: 0.2 % of the radius off


def _quads(corners: np.ndarray, quads: np.ndarray) -> np.ndarray:
    """Return two triangles for each quad, given by the numbers of its corners in order."""
    return corners[np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])]


def box(size: np.ndarray) -> np.ndarray:
    """Return a box with sides along the axes."""
    corners = np.stack(np.meshgrid(*[(-0.5, 0.5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3) * size
    quads = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    return _quads(corners, np.array(quads))


def plane(half: np.ndarray) -> np.ndarray:
    """Return a rectangle in z = 0 that reaches to `half` [2] from the origin."""
    corners = np.array([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]]) * [*half, 1.0]
    return _quads(corners, np.array([[0, 1, 2, 3]]))


def cylinder(radius: float, length: float) -> np.ndarray:
    """Return an upright cylinder."""
    return _turned(np.array([0.0, radius, radius, 0.0]), np.array([-0.5, -0.5, 0.5, 0.5]) * length)


def prism(radius: float, length: float, sides: int) -> np.ndarray:
    """Return the sides of an upright prism that encloses a cylinder, without its ends."""
    reach = radius / np.cos(np.pi / sides)
    return _turned(np.array([reach, reach]), np.array([-0.5, 0.5]) * length, sides)


def sphere(radius: float) -> np.ndarray:
    """Return a sphere."""
    angle = np.linspace(-0.5 * np.pi, 0.5 * np.pi, SIDES // 2 + 1)
    return _turned(radius * np.cos(angle), radius * np.sin(angle))


def _turned(radii: np.ndarray, heights: np.ndarray, sides: int = SIDES) -> np.ndarray:
    """Return the surface that a line of (radius, height) [n] sweeps around the z axis."""
    around = 2.0 * np.pi * np.arange(sides) / sides
    rings = np.stack(
        [np.outer(radii, np.cos(around)), np.outer(radii, np.sin(around)), np.repeat(heights[:, None], sides, axis=1)],
        axis=-1,
    )  # [n, sides, 3]
    a, b = rings[:-1], rings[1:]
    a2, b2 = np.roll(a, -1, axis=1), np.roll(b, -1, axis=1)
    return np.concatenate([np.stack(t, axis=2).reshape(-1, 3, 3) for t in ((a, a2, b2), (a, b2, b))])
