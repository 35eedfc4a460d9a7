"""Free space, its connected parts and routes, against Dijkstra and lengths worked out by hand."""

import heapq
import itertools
import math

import numpy as np
import pytest

from fledge.core.errors import InputError
from fledge.tasks.navigation.worlds.distance import has_clearance
from fledge.tasks.navigation.worlds.free_space import find_free_space, height_above_ground, largest_part, parts_of
from fledge.tasks.navigation.worlds.routes import _Graph, draw_routes
from fledge.tasks.navigation.worlds.voxels import World


def room(x: int = 100, y: int = 80, z: int = 30) -> np.ndarray:
    """Return a closed box with walls, floor and ceiling of one voxel."""
    solid = np.ones((x, y, z), bool)
    solid[1:-1, 1:-1, 1:-1] = False
    return solid


def divided() -> World:
    """Return a room of 10 x 8 x 3 m with a wall at x = 5 that is open only for y above 6 m."""
    solid = room()
    solid[50, :60] = True
    return World("divided", solid, np.array([-1.0, 2.0, 0.5]))


def flood(inside: np.ndarray, seed: tuple[int, int, int]) -> set[tuple[int, int, int]]:
    found, todo = {seed}, [seed]
    while todo:
        at = todo.pop()
        for axis, step in itertools.product(range(3), (-1, 1)):
            to = (*at[:axis], at[axis] + step, *at[axis + 1 :])
            if all(0 <= c < n for c, n in zip(to, inside.shape, strict=True)) and inside[to] and to not in found:
                found.add(to)
                todo.append(to)
    return found


def test_parts_are_what_a_flood_reaches() -> None:
    inside = np.random.default_rng(4).random((9, 8, 7)) < 0.35
    parts = parts_of(inside)
    assert (parts[~inside] == -1).all()
    biggest: set[tuple[int, int, int]] = set()
    for seed in map(tuple, np.argwhere(inside).tolist()):
        part = flood(inside, seed)
        assert {tuple(at) for at in np.argwhere(parts == parts[seed]).tolist()} == part
        assert parts[seed] == min(np.ravel_multi_index(at, inside.shape) for at in part)
        biggest = max(biggest, part, key=len)
    assert largest_part(inside).sum() == len(biggest)


def test_height_counts_from_the_solid_below() -> None:
    solid = np.zeros((1, 1, 6), bool)
    assert height_above_ground(solid)[0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    solid[0, 0, [0, 3]] = True
    assert height_above_ground(solid)[0, 0].tolist() == [-1, 0, 1, -1, 0, 1]


def dijkstra(opened: np.ndarray, goal: tuple[int, int, int], step_m: float) -> np.ndarray:
    """Return the length of the shortest path over 26 neighbours from every open node to the goal."""
    length = np.full(opened.shape, np.inf)
    length[goal] = 0.0
    queue = [(0.0, goal)]
    moves = [m for m in itertools.product((-1, 0, 1), repeat=3) if any(m)]
    while queue:
        so_far, at = heapq.heappop(queue)
        if so_far > length[at]:
            continue
        for move in moves:
            to = tuple(a + m for a, m in zip(at, move, strict=True))
            if min(to) >= 0 and all(c < n for c, n in zip(to, opened.shape, strict=True)) and opened[to]:
                new = so_far + step_m * math.sqrt(sum(m * m for m in move))
                if new < length[to]:
                    length[to] = new
                    heapq.heappush(queue, (new, to))
    return length


def labyrinth() -> World:
    """Return a room with walls whose openings alternate, so that paths turn back and forth, also up and down."""
    solid = room(70, 50, 40)
    for n, x in enumerate(range(13, 66, 13)):
        solid[x] = True
        opening = [np.s_[x, 1:14, 1:-1], np.s_[x, -14:-1, 1:-1], np.s_[x, 1:-1, 1:13], np.s_[x, 1:-1, -13:-1]][n % 4]
        solid[opening] = False
    return World("labyrinth", solid, np.zeros(3))


def test_lengths_along_the_grid_are_those_of_dijkstra() -> None:
    world = labyrinth()
    space = find_free_space(world, 0.3)
    graph = _Graph(world, space)
    goals = np.flatnonzero(space.inside)[[0, 9999, -1]]
    opened = np.zeros(tuple(graph.sizes), bool)
    for voxel in np.argwhere(space.inside):
        opened[tuple(voxel // 3 + 1)] = True
    for goal, found in zip(goals, graph.lengths(goals), strict=True):
        at = tuple(int(i) // 3 + 1 for i in np.unravel_index(goal, world.solid.shape))
        np.testing.assert_allclose(found.reshape(opened.shape), dijkstra(opened, at, 0.3), rtol=1e-5)


@pytest.mark.parametrize("world", [divided(), labyrinth()], ids=lambda world: world.name)
def test_a_route_is_no_shorter_than_a_straight_line_and_no_longer_than_along_the_grid(world: World) -> None:
    routes = draw_routes(world, seed=5, count=200, clearance_m=0.3, min_length_m=2.0)
    straight = np.linalg.norm(routes.goal.astype(np.float64) - routes.start, axis=1)
    assert (routes.length >= straight * (1 - 1e-6)).all()
    space = find_free_space(world, 0.3)
    graph = _Graph(world, space)
    start, goal = (
        np.ravel_multi_index(((p - world.origin) / world.cell_m).astype(int).T, world.solid.shape)
        for p in (routes.start, routes.goal)
    )
    grid = graph.lengths(goal[:8])[np.arange(8), graph.node_of(start[:8])]
    assert (routes.length[:8] <= grid + 4 * 0.3).all()
    assert (grid >= 2.0).all()


def test_a_route_around_a_wall_has_the_length_of_the_taut_string() -> None:
    world = divided()
    routes = draw_routes(world, seed=6, count=2000, clearance_m=0.3)
    # the string passes the wall's edge at a distance of 0.3 m
    edge = np.array([-1.0 + 5.05, 2.0 + 6.0 + 0.3])
    a, b = routes.start[:, :2], routes.goal[:, :2]
    other = (a[:, 0] < edge[0] - 1.0) & (b[:, 0] > edge[0] + 1.0) & (np.maximum(a[:, 1], b[:, 1]) < edge[1] - 1.0)
    assert other.sum() > 20
    around = np.linalg.norm(a - edge, axis=1) + np.linalg.norm(b - edge, axis=1)
    expected = np.hypot(around, routes.goal[:, 2] - routes.start[:, 2])[other]
    assert (routes.length[other] > 0.98 * expected).all()
    assert np.median(routes.length[other] / expected) < 1.05
    assert (routes.length[other] < 1.12 * expected + 0.3).all()
    same = (a[:, 0] > edge[0] + 0.5) & (b[:, 0] > edge[0] + 0.5)
    assert same.sum() > 20
    straight = np.linalg.norm(routes.goal - routes.start, axis=1)
    np.testing.assert_allclose(routes.length[same], straight[same], rtol=1e-5)


def test_a_path_leads_from_start_to_goal_through_clear_space() -> None:
    world = labyrinth()
    space = find_free_space(world, 0.3)
    routes = draw_routes(world, seed=5, count=60, clearance_m=0.3)
    nearly = has_clearance(world.solid, world.cell_m, 0.15)
    assert max(map(len, routes.paths)) > 4
    for path, start, goal, length in zip(routes.paths, routes.start, routes.goal, routes.length, strict=True):
        np.testing.assert_array_equal(path[0], start)
        np.testing.assert_array_equal(path[-1], goal)
        assert np.linalg.norm(np.diff(path, axis=0), axis=1).sum() == pytest.approx(length, rel=1e-4)
        steps = [np.linspace(a, b, 2 + int(50 * np.linalg.norm(b - a))) for a, b in itertools.pairwise(path)]
        voxels = tuple(((np.concatenate(steps) - world.origin) / world.cell_m).astype(int).T)
        assert space.inside[voxels].mean() > 0.75
        assert nearly[voxels].all(), "a corner is cut by more than half a node"


def test_starts_and_goals_have_clearance_height_and_length() -> None:
    world = divided()
    routes = draw_routes(world, seed=7, count=300, clearance_m=0.4, heights_m=(0.6, 1.5), min_length_m=5.0)
    clear = has_clearance(world.solid, world.cell_m, 0.4)
    for points in (routes.start, routes.goal):
        index = ((points - world.origin) / world.cell_m).astype(int)
        assert clear[tuple(index.T)].all()
        height = points[:, 2] - (world.origin[2] + 0.1)  # above the floor of one voxel
        assert height.min() >= 0.6 - 1e-6
        assert height.max() <= 1.5 + 1e-6
    assert routes.start.dtype == routes.goal.dtype == routes.length.dtype == np.float32
    assert len(np.unique(routes.goal, axis=0)) == 32
    assert len(np.unique(routes.start, axis=0)) > 250


def test_routes_depend_on_the_seed_alone() -> None:
    first, again, other = (draw_routes(divided(), seed=seed, count=64) for seed in (1, 1, 2))
    for name in ("start", "goal", "length"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert (first.start != other.start).any()


def test_a_very_large_world_gets_fewer_nodes_and_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = draw_routes(divided(), seed=3, count=64)
    monkeypatch.setattr("fledge.tasks.navigation.worlds.routes.MAX_NODES", 2000)
    monkeypatch.setattr("fledge.tasks.navigation.worlds.routes.MAX_LENGTHS", 9000)
    coarse = draw_routes(divided(), seed=3, count=64)
    assert len(np.unique(fine.goal, axis=0)) == 32
    assert len(np.unique(coarse.goal, axis=0)) < 9
    straight = np.linalg.norm(coarse.goal - coarse.start, axis=1)
    assert (coarse.length >= straight * (1 - 1e-6)).all()


def test_the_smaller_of_two_rooms_gets_no_routes() -> None:
    solid = room()
    solid[70] = True
    routes = draw_routes(World("two rooms", solid, np.zeros(3)), seed=0, count=128)
    assert max(routes.start[:, 0].max(), routes.goal[:, 0].max()) < 7.0


@pytest.mark.parametrize(
    ("world", "options", "match"),
    [
        (World("rock", np.ones((20, 20, 20), bool), np.zeros(3)), {}, "rock is solid everywhere"),
        (
            World("slit", room(50, 8, 30), np.zeros(3)),
            {},
            r"slit \(5.0 x 0.8 x 3.0 m\) has no point that is 0.5 m away",
        ),
        (World("cell", room(30, 30, 30), np.zeros(3)), {}, "cell is too small: the longest of the routes has 2"),
        (divided(), {"heights_m": (5.0, 6.0)}, "no reachable free space 5 to 6 m above the ground"),
        (divided(), {"heights_m": (2.0, 1.0)}, "must be two heights, the lower first"),
        (divided(), {"clearance_m": 0.0}, "clearance_m is 0, but must be above 0"),
    ],
)
def test_a_world_without_routes_is_refused(world: World, options: dict, match: str) -> None:
    with pytest.raises(InputError, match=match):
        draw_routes(world, seed=0, **options)
