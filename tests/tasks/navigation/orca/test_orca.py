"""Velocity obstacles: half-spaces worked out by hand, the nearest allowed command against all corners tried one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.pilot import OrcaPilot
from fledge.tasks.navigation.orca.solver import half_space, safest


@wp.kernel
def one_half_space(
    p: wp.array(dtype=wp.vec3),
    v: wp.array(dtype=wp.vec3),
    command: wp.array(dtype=wp.vec3),
    radius: float,
    horizon: float,
    step: float,
    plane: wp.array(dtype=wp.vec4),
):
    k = wp.tid()
    plane[k] = half_space(p[k], v[k], command[k], radius, horizon, step)


@wp.kernel
def solve(planes: wp.array2d(dtype=wp.vec4), wanted: wp.array(dtype=wp.vec3), limit: float, v: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    v[i] = safest(planes, i, planes.shape[1], wanted[i], limit)


def plane_of(p: list[float], v: list[float], radius: float, horizon: float, step: float = 0.1) -> np.ndarray:
    """The half-space of an obstacle at rest, so that the command is `v`."""
    given = [wp.array([x], dtype=wp.vec3) for x in (p, v, v)]
    plane = wp.zeros(1, dtype=wp.vec4)
    wp.launch(one_half_space, 1, [*given, radius, horizon, step, plane])
    return plane.numpy()[0]


def test_far_off_the_tip_of_the_cone_the_ball_decides() -> None:
    # p/t = (2, 0, 0), R/t = 0.5; v = (1, 0, 0) lies 1 in front of it, so half a metre a second is left
    plane = plane_of([4, 0, 0], [1, 0, 0], radius=1.0, horizon=2.0)
    assert plane == pytest.approx([-1, 0, 0, -1.5], abs=1e-5)  # vx <= 1.5


def test_beside_the_cone_its_side_decides() -> None:
    # a ball of radius 1 at (2, 0, 0) is seen under 30 degrees; v = (4, 0, 0) lies on the axis, far beyond the tip
    plane = plane_of([2, 0, 0], [4, 0.01, 0], radius=1.0, horizon=2.0)
    n, b = plane[:3], plane[3]
    assert n == pytest.approx([-0.5, math.sqrt(0.75), 0], abs=1e-3)
    assert b == pytest.approx(0.0, abs=1e-3)  # the side goes through the origin
    assert n @ [4, 0.01, 0] < 0  # the command itself is forbidden


def test_a_command_beside_the_cone_stays_allowed() -> None:
    plane = plane_of([2, 0, 0], [1, 3, 0], radius=1.0, horizon=2.0)
    assert plane[:3] @ [1, 3, 0] > plane[3]


def test_what_overlaps_must_be_left_within_a_step() -> None:
    # 0.2 m inside a ball of 1 m: away at 0.2 m / 0.1 s = 2 m/s
    plane = plane_of([0.8, 0, 0], [0, 0, 0], radius=1.0, horizon=2.0, step=0.1)
    assert plane == pytest.approx([-1, 0, 0, 2.0], abs=1e-4)
    assert np.isfinite(plane_of([0, 0, 1e-9], [0, 0, 0], radius=1.0, horizon=2.0)).all()


def corners(planes: np.ndarray, wanted: np.ndarray, limit: float) -> np.ndarray | None:
    """The nearest allowed point by brute force: every face, edge and corner of planes and ball."""
    n, b = planes[:, :3].astype(float), planes[:, 3].astype(float)
    found = [wanted, wanted * limit / np.linalg.norm(wanted)]
    for k in range(1, 4):
        for chosen in itertools.combinations(range(len(n)), k):
            a, c = n[list(chosen)], b[list(chosen)]
            if np.linalg.matrix_rank(a, tol=1e-4) < k:
                continue
            foot = wanted + np.linalg.pinv(a) @ (c - a @ wanted)
            base = np.linalg.pinv(a) @ c  # of these planes' points the nearest to the origin
            found.append(foot)
            rest = limit**2 - base @ base
            if rest >= 0 and k < 3 and np.linalg.norm(foot - base) > 1e-9:
                found.append(base + (foot - base) / np.linalg.norm(foot - base) * math.sqrt(rest))
    good = [v for v in found if (n @ v >= b - 1e-4).all() and v @ v <= limit**2 + 1e-4]
    return min(good, key=lambda v: np.linalg.norm(v - wanted)) if good else None


def test_the_command_is_the_nearest_allowed_one_and_else_the_least_wrong() -> None:
    rng, count = np.random.default_rng(4), 200
    n = rng.normal(size=(count, 6, 3))
    n /= np.linalg.norm(n, axis=-1, keepdims=True)
    b = rng.uniform(-2.0, 1.0, (count, 6, 1))
    planes, wanted = np.concatenate([n, b], -1).astype(np.float32), rng.uniform(-2, 2, (count, 3)).astype(np.float32)
    out = wp.zeros(count, dtype=wp.vec3)
    limits = wp.array(planes.reshape(count, 6, 4), dtype=wp.vec4)
    wp.launch(solve, count, [limits, wp.array(wanted, dtype=wp.vec3), 2.0, out])
    v, feasible = out.numpy(), 0
    cloud = rng.normal(size=(20_000, 3))
    cloud *= 2.0 * rng.random((20_000, 1)) ** (1 / 3) / np.linalg.norm(cloud, axis=1, keepdims=True)
    assert (np.linalg.norm(v, axis=1) <= 2.0 + 1e-3).all()
    for i in range(count):
        best = corners(planes[i], wanted[i].astype(float), 2.0)
        if best is not None:
            feasible += 1
            assert np.linalg.norm(v[i] - wanted[i]) <= np.linalg.norm(best - wanted[i]) + 2e-3
            assert (planes[i, :, :3] @ v[i] >= planes[i, :, 3] - 1e-3).all()
        else:
            worst = (planes[i, :, 3] - planes[i, :, :3] @ v[i]).max()
            assert worst <= (planes[i, :, 3] - cloud @ planes[i, :, :3].T).max(axis=1).min() + 1e-3
    assert 20 < feasible < 180


def observe(vel: float, lidar: np.ndarray | None = None, mover: list[float] | None = None) -> dict[str, torch.Tensor]:
    """10 m from the goal, flying towards it."""
    seen = {
        "state": torch.tensor([[1.0, 0, 0, 10.0, 0, vel, 0, 0]]),
        "lidar": torch.zeros(1, 1, 36, 4) if lidar is None else torch.as_tensor(lidar, dtype=torch.float32)[None, None],
        "dynamic_obstacle": torch.zeros(1, 1, 5, 10),
        "pose": torch.tensor([[1.5, 0.0]]),
    }
    if mover is not None:
        seen["dynamic_obstacle"][0, 0, 0] = torch.tensor(mover)
    return seen


def command(obs: dict[str, torch.Tensor]) -> np.ndarray:
    return (OrcaPilot(NavigationConfig(pose=True)).act(obs)[0].numpy() * 2 - 1) * 2.0


def test_with_nothing_about_it_flies_straight_to_the_goal_at_full_speed() -> None:
    assert command(observe(0.0)) == pytest.approx([2.0, 0.0, 0.0], abs=1e-5)


def test_it_brakes_for_what_a_beam_hits_ahead() -> None:
    lidar = np.zeros((36, 4))
    lidar[0, 1] = 4.0 - 1.0  # 1 m straight ahead
    standing = command(observe(0.0, lidar))
    assert standing[0] < 2.0
    flying = command(observe(1.5, lidar))
    assert flying[0] < standing[0]  # it coasts on for a while


def test_it_gives_way_to_a_mover_that_comes_across() -> None:
    # a cylinder 1 m wide, 3 m ahead and 1 m to the left, coming at 1 m/s towards the line of flight
    away = math.hypot(3.0, 1.0)
    across = [3 / away, 1 / away, 0, away, 0, 0.0, -0.5, 0, 3, 0]
    found = command(observe(1.8, mover=across))
    assert np.abs(found - [2.0, 0, 0]).max() > 0.2
    gone = [3 / away, 1 / away, 0, away, 0, 0.0, 1.5, 0, 3, 0]
    assert command(observe(1.8, mover=gone)) == pytest.approx([2.0, 0, 0], abs=1e-4)


def test_a_box_that_passes_overhead_is_let_pass() -> None:
    above = [0.8, 0, 0.6, 2.0, 1.9, -1.0, 0, 0, 3, 1]
    assert command(observe(1.8, mover=above)) == pytest.approx([2.0, 0, 0], abs=0.05)
