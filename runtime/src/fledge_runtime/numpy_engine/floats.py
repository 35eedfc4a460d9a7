"""Arithmetic in float32: scalars, the C library's functions, vectors [..., 3], quaternions (x, y, z, w)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

F = np.float32
ZERO, HALF, ONE, TWO = F(0.0), F(0.5), F(1.0), F(2.0)
FAR = F(1.0e6)
TWO_PI = F(2.0 * math.pi)
Vector = Any  # of np.float32, or arrays of them: x, y, z


def c_function(name: str) -> Callable[[Any], Any]:
    """Return a function of the C library that maps float32 to float32, or its like from `math`, rounded."""
    try:
        function: Any = getattr(ctypes.CDLL(None), name + "f")
    except (OSError, TypeError, AttributeError):  # no such symbols in this process, as on Windows
        function = getattr(math, name)
    else:
        function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    return lambda x: F(function(float(x)))


cos, sin, exp = c_function("cos"), c_function("sin"), c_function("exp")


def hypot(x: Any, y: Any) -> Any:
    return np.sqrt(x * x + y * y)


def dot(a: Vector, b: Vector) -> Any:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def length(a: Vector) -> Any:
    return np.sqrt(dot(a, a))


def add(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def sub(a: Vector, b: Vector) -> Vector:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def scale(a: Vector, s: Any) -> Vector:
    return a[0] * s, a[1] * s, a[2] * s


def divide(a: Vector, s: Any) -> Vector:
    return a[0] / s, a[1] / s, a[2] / s


def cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def about_axis(axis: int, angle: Any) -> Any:
    """Return the rotation about an axis (0: x, 1: y, 2: z)."""
    half = angle * HALF
    q = [ZERO, ZERO, ZERO, cos(half)]
    q[axis] = sin(half)
    return tuple(q)


def combine(a: Any, b: Any) -> Any:
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return (
        aw * bx + bw * ax + ay * bz - by * az,
        aw * by + bw * ay + az * bx - bz * ax,
        aw * bz + bw * az + ax * by - bx * ay,
        aw * bw - ax * bx - ay * by - az * bz,
    )


def rotate(q: Any, v: Vector) -> Vector:
    qx, qy, qz, qw = q
    x, y, z = v
    c = TWO * qw * qw - ONE
    d = TWO * (qx * x + qy * y + qz * z)
    return (
        x * c + qx * d + (qy * z - qz * y) * qw * TWO,
        y * c + qy * d + (qz * x - qx * z) * qw * TWO,
        z * c + qz * d + (qx * y - qy * x) * qw * TWO,
    )


def to_cell(x: Any) -> Any:
    """Return the cell of 0.1 m that a coordinate lies in."""
    return np.floor(x * F(10.0)).astype(np.int64)


def bands_between(low: Any, high: Any) -> Any:
    """Return bit masks of the height bands that the heights from `low` to `high`, m, touch, uint64."""
    a = np.clip(np.floor(low * F(4.0)).astype(np.int64), 0, 15)
    b = np.clip(np.floor(high * F(4.0)).astype(np.int64), -1, 15)
    return np.where(a > b, 0, (2 << np.maximum(b, 0)) - (1 << a)).astype(np.uint64)


def in_every_ring(bands: Any) -> Any:
    """Return words that have the masks in each of their four rings."""
    return bands * np.uint64(0x0001000100010001)
