"""Ways around what is remembered, against Dijkstra on the same grid; and the local map, against the hits themselves."""

from __future__ import annotations

import dataclasses
import heapq
import math

import numpy as np
import pytest
import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.cost_to_go import POINTS, SPACING_M, CostToGo, cost_from
from fledge.tasks.navigation.planner.local_map import (
    RING_EDGES_M,
    LocalMap,
    disc,
    ring_at,
    ring_distances,
    window_cells,
)
from fledge.tasks.navigation.planner.pilot import PlannerBuffers


@wp.kernel
def ask(
    m: LocalMap,
    w: CostToGo,
    points: wp.array2d(dtype=wp.float32),
    ring: wp.array(dtype=int),
    way: wp.array(dtype=float),
):
    k = wp.tid()
    ring[k] = ring_at(m, 0, points[k, 0], points[k, 1], wp.uint32(1 << 6))
    way[k] = cost_from(w, 0, points[k, 0], points[k, 1])


def observe(at: tuple[float, float], lidar: np.ndarray, height: float = 1.6) -> dict[str, torch.Tensor]:
    """Return the observation of a drone at rest, `at` metres from the goal, in the goal frame."""
    away = math.hypot(*at)
    state = [-at[0] / away, -at[1] / away, 0.0, away, 0.0, 0.0, 0.0, 0.0]
    return {
        "state": torch.tensor([state]),
        "lidar": torch.as_tensor(lidar, dtype=torch.float32)[None, None],
        "dynamic_obstacle": torch.zeros(1, 1, 5, 10),
        "pose": torch.tensor([[height, 0.0]]),
    }


def wall_scan() -> np.ndarray:
    """Level beams that end at a wall 1.5 m ahead, 3 m to both sides; nothing else."""
    lidar = np.zeros((36, 4))
    for h in range(36):
        angle = math.radians(10 * h)
        if math.cos(angle) > 0 and abs(1.5 * math.tan(angle)) <= 3.0 and 1.5 / math.cos(angle) < 4.0:
            lidar[h, 1] = 4.0 - 1.5 / math.cos(angle)
    return lidar


def look(buffers: PlannerBuffers, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ring, way = wp.zeros(len(points), dtype=int), wp.zeros(len(points), dtype=float)
    wp.launch(
        ask,
        len(points),
        [buffers.planner.map, buffers.planner.cost, wp.array(points, dtype=wp.float32), ring, way],
    )
    return ring.numpy(), way.numpy()


@pytest.fixture
def buffers() -> PlannerBuffers:
    return PlannerBuffers(PlannerConfig(ways_every=1), NavigationConfig(pose=True), 1, torch.device("cpu"))


def test_a_disc_has_every_cell_within_reach_once_in_the_ring_of_its_distance() -> None:
    rows = disc()
    assert len(rows) == len({(x, y) for x, y, _ in rows.tolist()}) == 197
    away = np.hypot(rows[:, 0], rows[:, 1]) * 0.1
    edges = np.array(RING_EDGES_M)
    assert (away <= edges[rows[:, 2]] + 1e-6).all()
    assert (away > np.where(rows[:, 2] > 0, edges[rows[:, 2] - 1], -1) + 1e-6).all()
    assert (np.diff(ring_distances()) > 0).all()
    assert window_cells(4.0) == 128
    assert window_cells(7.0) == 256


def test_the_map_tells_the_distance_to_the_nearest_hit(buffers: PlannerBuffers) -> None:
    at = (-20.03, 3.07)
    buffers.run(observe(at, wall_scan()), None)
    hits = [
        (at[0] + d * math.cos(math.radians(10 * h)), at[1] + d * math.sin(math.radians(10 * h)))
        for h in range(36)
        if (d := 4.0 - wall_scan()[h, 1]) < 4.0
    ]
    rng = np.random.default_rng(0)
    points = np.array(at) + rng.uniform(-3, 3, (400, 2))
    found = ring_distances()[look(buffers, points)[0]]
    true = np.min([np.hypot(*(points - hit).T) for hit in hits], axis=0)
    near = true < 0.65
    assert near.sum() > 50
    assert np.abs(found[near] - true[near]).max() < 0.2  # half a cell here, half there, half a ring
    assert np.abs(found[near] - true[near]).mean() < 0.06
    assert (found[true > 1.0] > 100).all()


def test_what_leaves_the_window_is_forgotten_and_what_stays_is_kept(buffers: PlannerBuffers) -> None:
    buffers.run(observe((-20.0, 0.0), wall_scan()), None)
    wall = np.array([[-18.5, 0.0]])
    assert look(buffers, wall)[0][0] <= 1
    buffers.run(observe((-13.0, 0.0), np.zeros((36, 4))), None)  # 5.5 m past it
    assert look(buffers, wall)[0][0] <= 1
    buffers.run(observe((-11.0, 0.0), np.zeros((36, 4))), None)  # 7.5 m past it
    buffers.run(observe((-14.0, 0.0), np.zeros((36, 4))), None)  # and back
    assert look(buffers, wall)[0][0] == 8


def test_ways_are_those_of_dijkstra_on_the_same_grid(buffers: PlannerBuffers) -> None:
    buffers.run(observe((-20.0, 0.0), wall_scan()), None)
    slow = buffers.tensors["slow"][0].numpy().reshape(POINTS, POINTS).astype(float)
    found = buffers.tensors["length"][0].numpy().reshape(POINTS, POINTS)
    corner = buffers.tensors["corner"][0].numpy()
    x, y = np.meshgrid(*(c + SPACING_M * np.arange(POINTS) for c in corner), indexing="ij")
    length = np.full((POINTS, POINTS), np.inf)
    border = np.ones_like(length, bool)
    border[1:-1, 1:-1] = False
    length[border] = np.hypot(x, y)[border]
    heap = [(length[r, c], r, c) for r, c in zip(*border.nonzero(), strict=True)]
    heapq.heapify(heap)
    while heap:
        value, r, c = heapq.heappop(heap)
        for dr in (-1, 0, 1):
            for dc in (-1, 0, 1):
                p, q = r + dr, c + dc
                if value == length[r, c] and 0 < p < POINTS - 1 and 0 < q < POINTS - 1:
                    other = value + math.hypot(dr, dc) * slow[p, q]
                    if other < length[p, q]:
                        length[p, q] = other
                        heapq.heappush(heap, (other, p, q))
    assert np.abs(found - length).max() < 1e-3
    straight, ways = np.hypot(-19.0, 0.0), look(buffers, np.array([[-19.0, 0.0], [-19.0, 3.6], [-10.0, 9.0]]))[1]
    assert ways[0] > straight + 1.0  # round the wall
    assert ways[1] < np.hypot(19.0, 3.6) + 0.6  # past its end
    assert ways[2] == pytest.approx(np.hypot(10.0, 9.0))  # off the grid: straight


def test_a_drone_in_front_of_a_wall_goes_round_it_instead_of_waiting() -> None:
    cfg = PlannerConfig(climb=0.0, ways_every=1)  # its top was not seen
    buffers = PlannerBuffers(cfg, NavigationConfig(pose=True), 1, torch.device("cpu"))
    command = buffers.run(observe((-20.0, 0.0), wall_scan()), None)[0].numpy()
    assert abs(command[1]) > 0.5


WALL_M = -18.0  # x of a wall of 6 m, with a gap of 0.9 m in its middle; the goal is at (0, 0)


def gap_scan(at: np.ndarray) -> np.ndarray:
    """Level beams from a point that end at the wall; nothing else."""
    lidar, ahead = np.zeros((360, 4)), WALL_M - at[0]
    for h in range(360):
        angle = math.radians(h)
        if math.cos(angle) * ahead > 1e-6:
            across = at[1] + ahead * math.tan(angle)
            if 0.45 <= abs(across) <= 3.0 and ahead / math.cos(angle) < 4.0:
                lidar[h, 1] = 4.0 - ahead / math.cos(angle)
    return lidar


def fly_to_the_gap(cfg: PlannerConfig, seconds: float) -> np.ndarray:
    """Fly level with the planner's lag from 2 m in front of the wall, and return the last position."""
    env_cfg = NavigationConfig(pose=True, lidar_azimuths=360, decimation=4)
    buffers, dt = PlannerBuffers(cfg, env_cfg, 1, torch.device("cpu")), env_cfg.dt_s
    at, vel, acc = np.array([-20.0, 0.1, 1.6]), np.zeros(3), np.zeros(3)
    for _ in range(round(seconds / (dt * env_cfg.decimation))):
        obs = observe((at[0], at[1]), gap_scan(at))
        obs["state"][0, 5:] = torch.as_tensor(vel)
        command = buffers.run(obs, None)[0].numpy().astype(float)
        for _ in range(env_cfg.decimation):
            acc += dt / max(cfg.lag_s, dt) * (2.2 * (command - vel) - acc)
            vel += dt * (acc - 0.2 * vel)
            at += dt * vel
    return at


def test_a_drone_that_hovers_in_front_of_a_narrow_gap_flies_through_after_a_while() -> None:
    cautious = PlannerConfig(climb=0.0, ways_every=1, margin_cost=3.0)  # clearance outweighs the way behind the gap
    assert fly_to_the_gap(dataclasses.replace(cautious, patience_s=1000.0), 12.0)[0] < WALL_M
    assert fly_to_the_gap(cautious, 12.0)[0] > WALL_M + 1.0
