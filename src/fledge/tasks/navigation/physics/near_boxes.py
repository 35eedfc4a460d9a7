"""Boxes near each place of a world, so that the LiDAR finds all that it may see at once.

Solid voxels are merged into boxes. Of a mesh, rectangles along the axes are flat boxes, and those that enclose a box are its
faces. The area is divided into square buckets; each has a list of the boxes within the LiDAR's range. Where a list would be
long (a cave, a scan) or has other triangles in reach, there is none, and beams walk from voxel to voxel.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.worlds.boxes import merge_voxels
from fledge.tasks.navigation.worlds.rectangles import boxes_of_triangles
from fledge.tasks.navigation.worlds.voxels import World

BUCKET_M = 1.0
MOST_BUCKETS = 10_000  # of a world; larger worlds have larger buckets
CROWDED = 256  # boxes in reach, above which a walk over voxels is faster
MOST_RUNS = 500_000  # of solid voxels along y; a world with more, such as a large scan, would take long to merge
SOLID = 0  # `faces` of a box that is solid inside


@dataclasses.dataclass
class NearBoxes:
    """Lists of boxes by bucket (x * Y + y)."""

    side_m: float
    shape: tuple[int, int]  # buckets X, Y
    lists: np.ndarray  # [X * Y, 2] int32: first entry of the bucket's list and the one after the last; (0, -1): no list
    corners: np.ndarray  # [E, 2, 3] float32, m: lower and upper corner of each entry's box
    faces: np.ndarray  # [E] int32: SOLID, or bits of the faces that a hollow box has: x0, x1, y0, y1, z0, z1


def scans_objects(cfg: NavigationConfig, device: torch.device) -> bool:
    """Return whether scans go from the objects near a drone to its beams, by one thread per drone; else each beam walks.

    A GPU needs more threads, and sensors that cast single rays have no rings of beams.
    """
    return device.type == "cpu" and not cfg.casts_single_rays


def near_boxes(world: World, has_triangles: np.ndarray | None, reach_m: float) -> NearBoxes:
    """Return the boxes of a world within `reach_m`, seen from above, of each bucket.

    A reach of 0 makes no lists. `has_triangles` [X, Y, Z] bool says in which voxels triangles are the surface; None without a
    mesh.
    """
    low, high = (bound.astype(np.float32) for bound in world.bounds)
    solid = world.solid if has_triangles is None else world.solid & ~has_triangles
    runs = np.count_nonzero(solid[:, 0]) + np.count_nonzero(solid[:, 1:] & ~solid[:, :-1])
    if runs > MOST_RUNS or reach_m <= 0:
        none = np.array([[0, -1]], np.int32)
        return NearBoxes(float((high - low).max()), (1, 1), none, np.zeros((0, 2, 3), np.float32), none[0, :0])
    corners = (world.origin + merge_voxels(solid).reshape(-1, 2, 3) * world.cell_m).astype(np.float32)
    faces, others = np.full(len(corners), SOLID, np.int32), np.zeros((0, 2, 3), np.float32)
    if world.triangles is not None:
        hollow, kinds, rest = boxes_of_triangles(world.triangles)
        hollow, kinds = cut(hollow, kinds, low, high)
        corners, faces = np.concatenate([corners, hollow]), np.concatenate([faces, kinds])
        others = np.stack([rest.min(axis=1), rest.max(axis=1)], axis=1)
    area = (high - low)[:2]
    side = max(BUCKET_M, math.sqrt(float(area.prod()) / MOST_BUCKETS))
    shape = np.maximum(np.ceil(area / side).astype(np.int64), 1)
    own, walked = (spans(boxes, low, side, shape, reach_m) for boxes in (corners, others))
    listed = (count_spans(own, shape) <= CROWDED) & (count_spans(walked, shape) == 0)
    at, box = pairs(own, listed)
    corner = low[:2] + at * side
    gap = np.maximum(np.maximum(corners[box, 0, :2] - corner - side, corner - corners[box, 1, :2]), 0.0)
    keep = np.hypot(gap[:, 0], gap[:, 1]) <= reach_m + 1e-3
    bucket, box = (at[:, 0] * shape[1] + at[:, 1])[keep], box[keep]
    box = box[np.argsort(bucket, kind="stable")]
    end = np.cumsum(np.bincount(bucket, minlength=listed.size))
    lists = np.stack([end - np.diff(end, prepend=0), end], axis=1)
    lists[~listed.reshape(-1)] = (0, -1)
    return NearBoxes(side, (int(shape[0]), int(shape[1])), lists.astype(np.int32), corners[box], faces[box])


def spans(boxes: np.ndarray, low: np.ndarray, side: float, shape: np.ndarray, reach_m: float) -> np.ndarray:
    """Return the buckets within reach of boxes, [n, 2, 2]: the first along x and y, and the ones after the last."""
    first = np.floor((boxes[:, 0, :2] - reach_m - low[:2]) / side)
    last = np.floor((boxes[:, 1, :2] + reach_m - low[:2]) / side) + 1
    return np.clip(np.stack([first, last], axis=1), 0, shape).astype(np.int64)


def pairs(own: np.ndarray, listed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the buckets in spans, [n, 2], and the number of the span of each; only those with a list."""
    total = np.zeros((listed.shape[0] + 1, listed.shape[1] + 1), np.int64)
    total[1:, 1:] = listed.cumsum(axis=0).cumsum(axis=1)
    (x0, y0), (x1, y1) = own[:, 0].T, own[:, 1].T
    box = np.flatnonzero(total[x1, y1] - total[x0, y1] - total[x1, y0] + total[x0, y0])
    extent = own[box, 1] - own[box, 0]
    count = extent.prod(axis=1)
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    box, depth = np.repeat(box, count), np.repeat(extent[:, 1], count)
    at = own[box, 0] + np.stack([number // depth, number % depth], axis=1)
    keep = listed[at[:, 0], at[:, 1]]
    return at[keep], box[keep]


def count_spans(spans: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return how many of these spans of buckets, [n, 2, 2], each bucket is in."""
    edges = np.zeros(shape + 1, np.int64)
    for x, y, sign in ((0, 0, 1), (1, 1, 1), (0, 1, -1), (1, 0, -1)):
        np.add.at(edges, (spans[:, x, 0], spans[:, y, 1]), sign)
    counts: np.ndarray = edges.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    return counts


def cut(corners: np.ndarray, faces: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return hollow boxes cut off at a world's bounds, and the faces that they keep; without those that are outside."""
    within = ((corners[:, 1] >= low) & (corners[:, 0] <= high)).all(axis=1)
    corners, faces = corners[within].copy(), faces[within].copy()
    for axis in range(3):
        faces[corners[:, 0, axis] < low[axis]] &= ~(1 << 2 * axis)
        faces[corners[:, 1, axis] > high[axis]] &= ~(2 << 2 * axis)
    return np.clip(corners, low, high)[faces != 0], faces[faces != 0]
