"""The report about a world, its picture, and the boxes that show it."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fledge.tasks.navigation.worlds.boxes import ceiling_of, cover_with_boxes, merge_voxels
from fledge.tasks.navigation.worlds.check import check_world, examine
from fledge.tasks.navigation.worlds.picture import world_figure
from fledge.tasks.navigation.worlds.voxels import World


def house(door: bool = True) -> np.ndarray:
    """Return a closed house of 12 x 8 x 3 m with a wall at x = 6 and a door of 1.4 m in it."""
    solid = np.ones((120, 80, 30), bool)
    solid[1:-1, 1:-1, 1:-1] = False
    solid[60] = True
    if door:
        solid[60, 30:44, 1:21] = False
    return solid


def test_a_good_world_gets_no_advice() -> None:
    report = check_world(World("house", house(), np.zeros(3), notes=["A guess."]))
    assert report.advice == []
    assert report.notes == ["A guess."]
    assert report.size_m == [12.0, 8.0, 3.0]
    assert report.voxels == house().size
    assert report.solid_share == pytest.approx(house().mean())
    assert (report.ground_share, report.reachable_share, report.open_sides, report.routes) == (1.0, 1.0, {}, 256)
    assert 3.0 < report.route_mean_m < report.route_longest_m < 20.0
    assert 1.0 < report.detour < 2.0
    body = np.prod([118 - 6 - 7, 78 - 6, 28 - 6]) + 7 * (14 - 6) * (20 - 6)  # 0.3 m from walls; the door's 7 slices
    assert report.body_share == pytest.approx(body / (~house()).sum(), rel=0.01)


def test_a_world_without_room_to_fly_has_no_connected_space() -> None:
    for solid in (np.ones((60, 60, 30), bool), np.zeros((3, 3, 40), bool)):
        report = check_world(World("full", solid, np.zeros(3)))
        assert (report.reachable_share, report.reachable_body_share, report.routes, report.movers) == (0.0, 0.0, 0, 0)
        assert not any("Passages" in sentence for sentence in report.advice)


def test_movers_that_are_as_dense_as_in_the_forest_follow_from_the_reachable_area() -> None:
    hall = np.zeros((420, 420, 30), bool)
    hall[:, :, 0] = True
    assert check_world(World("hall", hall, np.zeros(3))).movers == 84  # 41 x 41 m are 0.5 m inside the bounds
    assert check_world(World("house", house(), np.zeros(3))).movers == 3  # 70 m²


def test_a_closed_door_is_noticed() -> None:
    report = check_world(World("house", house(door=False), np.zeros(3)))
    assert report.reachable_share == pytest.approx(0.5, abs=0.02)
    assert any("closed doors" in sentence for sentence in report.advice)


def test_a_narrow_door_is_noticed() -> None:
    solid = house(door=False)
    solid[60, 30:38, 1:21] = False  # 0.8 m
    report = check_world(World("house", solid, np.zeros(3)))
    assert report.reachable_body_share > 0.99
    assert any("connected" in sentence for sentence in report.advice)


def test_holes_and_missing_ground_are_noticed() -> None:
    solid = house()
    solid[0, 20:60, 5:25] = False
    report = check_world(World("house", solid, np.zeros(3)))
    assert report.open_sides == {"left (x-)": pytest.approx(40 * 20 / (80 * 30))}
    assert any("Open at the left (x-)" in sentence for sentence in report.advice)
    solid[1:-1, 1:-1, 0] = False
    report = check_world(World("house", solid, np.zeros(3)))
    assert report.ground_share < 0.1
    assert any("floor=add" in sentence for sentence in report.advice)


@pytest.mark.parametrize(
    "solid", [np.ones((30, 30, 30), bool), np.zeros((5, 5, 5), bool), np.zeros((200, 200, 40), bool)]
)
def test_any_world_has_a_report_and_a_picture(tmp_path: Path, solid: np.ndarray) -> None:
    world = World("odd", solid, np.array([5.0, -3.0, 1.0]), 0.1)
    report, routes, space = examine(world)
    assert report.advice
    world_figure(world, report, routes, space).savefig(tmp_path / "x.png")
    assert report.as_dict()["voxels"] == solid.size


def test_boxes_cover_exactly_the_solid_voxels() -> None:
    solid = np.random.default_rng(0).random((9, 8, 7)) < 0.4
    boxes = merge_voxels(solid)
    covered = np.zeros(solid.shape, int)
    for x0, y0, z0, x1, y1, z1 in boxes.tolist():
        covered[x0:x1, y0:y1, z0:z1] += 1
    np.testing.assert_array_equal(covered, solid.astype(int))
    assert len(boxes) < solid.sum()
    assert len(merge_voxels(house()[:, :, 2:20])) == 8  # four walls, and the dividing one around the door in pieces
    assert merge_voxels(np.zeros((3, 3, 3), bool)).shape == (0, 6)


def test_merging_takes_a_few_bytes_per_voxel() -> None:
    solid = np.zeros((200, 200, 60), bool)
    solid[:, :, :5] = True
    tracemalloc.start()
    merge_voxels(solid)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * solid.size


def test_a_ceiling_is_left_out_and_boxes_are_few() -> None:
    world = World("house", house(), np.array([-6.0, -4.0, -0.1]))
    assert ceiling_of(world.solid) == 29
    boxes = cover_with_boxes(world)
    low, high = boxes[:, :3] - boxes[:, 3:] / 2, boxes[:, :3] + boxes[:, 3:] / 2
    np.testing.assert_allclose(low.min(axis=0), [-6.0, -4.0, -0.1], atol=1e-6)
    np.testing.assert_allclose(high.max(axis=0), [6.0, 4.0, 2.8], atol=1e-6)
    noise = World("noise", np.random.default_rng(1).random((60, 60, 40)) < 0.2, np.zeros(3))
    assert len(merge_voxels(noise.solid)) > 3000
    assert len(cover_with_boxes(noise, 3000)) <= 3000
