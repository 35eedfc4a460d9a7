"""Buildings from inside: an empty hall, rooms with doors, corridors, and two floors joined by stairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fledge.tasks.navigation.worlds.generators.canvas import CELL_M, Canvas, Draws
from fledge.tasks.navigation.worlds.voxels import World

WALL_M = 0.2
STOREY_M = 2.6


def hall(draws: Draws) -> World:
    """Return an empty hall."""
    return Canvas(draws.size(), draws.size(), ceiling=True, walls=True).world("hall")


@dataclass
class _Room:
    x0: float
    y0: float
    x1: float
    y1: float


@dataclass
class _Wall:
    """A wall between two rooms: at `at` along x (upright in the plan) or y, from `low` to `high` along the other axis."""

    across_x: bool
    at: float
    low: float
    high: float

    def box(
        self, low: float, high: float, z0: float, z1: float, beside: float = 0.0
    ) -> tuple[list[float], list[float]]:
        """Return the corners of a part of the wall, thicker by `beside` on both sides."""
        a, b = self.at - beside, self.at + WALL_M + beside
        return ([a, low, z0], [b, high, z1]) if self.across_x else ([low, a, z0], [high, b, z1])


def rooms(draws: Draws) -> World:
    """Return rooms with a door in every wall between them, and a table, cupboard or pillar in the middle of some."""
    canvas = Canvas(draws.size(), draws.size(), ceiling=True, walls=True)
    smallest = draws.between(3.6, 5.5)
    found, walls = _divide(draws, _Room(CELL_M, CELL_M, canvas.width - CELL_M, canvas.depth - CELL_M), smallest)
    for wall in walls:
        canvas.box(*wall.box(wall.low, wall.high, 0.0, canvas.height))
    for wall in walls:
        _add_door(draws, canvas, wall)
    filled = draws.between(0.2, 0.9)
    for room in found:
        if draws.chance(filled):
            _furnish(draws, canvas, room)
    return canvas.world("rooms")


def _divide(draws: Draws, room: _Room, smallest: float) -> tuple[list[_Room], list[_Wall]]:
    """Split a room into rooms of at least `smallest`, and return them with the walls between them."""
    width, depth = room.x1 - room.x0, room.y1 - room.y0
    across_x = width > depth if abs(width - depth) > 2.0 else draws.chance(0.5)
    length = width if across_x else depth
    if length < 2 * smallest + WALL_M:
        return [room], []
    at = round((room.x0 if across_x else room.y0) + smallest + draws.between(0.0, length - 2 * smallest - WALL_M), 1)
    if across_x:
        halves = [_Room(room.x0, room.y0, at, room.y1), _Room(at + WALL_M, room.y0, room.x1, room.y1)]
        wall = _Wall(True, at, room.y0, room.y1)
    else:
        halves = [_Room(room.x0, room.y0, room.x1, at), _Room(room.x0, at + WALL_M, room.x1, room.y1)]
        wall = _Wall(False, at, room.x0, room.x1)
    parts = [_divide(draws, half, smallest) for half in halves]
    return [r for p in parts for r in p[0]], [wall, *(w for p in parts for w in p[1])]


def _add_door(draws: Draws, canvas: Canvas, wall: _Wall) -> None:
    """Open a door in a wall where no other wall ends; both sides of the wall are then connected."""
    width, height = draws.between(1.2, 1.8), draws.between(2.1, 2.6)
    steps = max(1, int((wall.high - wall.low - width) / CELL_M))
    for step in draws.order(steps):
        low = wall.low + step * CELL_M
        a, b = wall.box(low, low + width, 0.0, height, beside=0.8)
        canvas.box(*wall.box(low, low + width, 0.0, height), solid=False)
        if canvas.is_free(a, b):
            return
        canvas.box(*wall.box(low, low + width, 0.0, height))
    canvas.box(*wall.box(wall.low, wall.high, 0.0, height), solid=False)  # nowhere: the wall becomes a lintel


def _furnish(draws: Draws, canvas: Canvas, room: _Room) -> None:
    """Put something in the middle of a room, at least 1.2 m from its walls, so that it never closes a way."""
    x0, y0, x1, y1 = room.x0 + 1.2, room.y0 + 1.2, room.x1 - 1.2, room.y1 - 1.2
    width, depth = min(draws.between(0.4, 2.4), x1 - x0), min(draws.between(0.4, 1.6), y1 - y0)
    x, y = draws.between(x0, x1 - width), draws.between(y0, y1 - depth)
    kind = draws.whole(0, 2)
    if kind == 0:  # a table
        canvas.box([x, y, 0.7], [x + width, y + depth, 0.8])
        for a in (x, x + width - CELL_M):
            for b in (y, y + depth - CELL_M):
                canvas.box([a, b, 0.0], [a + CELL_M, b + CELL_M, 0.7])
    else:  # a cupboard or a pillar
        canvas.box([x, y, 0.0], [x + width, y + depth, draws.between(0.9, 2.0) if kind == 1 else canvas.height])


def corridors(draws: Draws) -> World:
    """Return a maze of corridors with some loops, and lintels that hang from its ceiling."""
    canvas = Canvas(draws.size(), draws.size(), ceiling=True, walls=True)
    width = round(draws.between(1.6, 2.6), 1)
    pitch = width + draws.between(0.6, 2.5)
    nx, ny = (int((side - width - 0.4) / pitch) + 1 for side in (canvas.width, canvas.depth))
    at_x, at_y = (
        0.2 + (side - 0.4 - width) * np.arange(n) / max(n - 1, 1)
        for side, n in ((canvas.width, nx), (canvas.depth, ny))
    )
    canvas.solid[:] = True
    ways = _maze(draws, nx, ny, loops=draws.between(0.05, 0.4))
    for (i, j), (k, m) in ways:
        canvas.box([at_x[i], at_y[j], 0.0], [at_x[k] + width, at_y[m] + width, canvas.height], solid=False)
    for number in draws.order(len(ways))[: len(ways) // 3]:
        (i, j), (k, m) = ways[number]
        x, y, low = (at_x[i] + at_x[k] + width) / 2, (at_y[j] + at_y[m] + width) / 2, draws.between(2.0, 3.0)
        sizes = (0.1, width / 2) if i != k else (width / 2, 0.1)
        canvas.box([x - sizes[0], y - sizes[1], low], [x + sizes[0], y + sizes[1], canvas.height])
    canvas.solid[:, :, -1] = True
    return canvas.world("corridors")


def _maze(draws: Draws, nx: int, ny: int, loops: float) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ways of a maze between neighbouring nodes, the lower node first: a random tree and a share of the others."""
    possible = [((i, j), (i + 1, j)) for i in range(nx - 1) for j in range(ny)]
    possible += [((i, j), (i, j + 1)) for i in range(nx) for j in range(ny - 1)]
    leader = {(i, j): (i, j) for i in range(nx) for j in range(ny)}

    def lead(node: tuple[int, int]) -> tuple[int, int]:
        while leader[node] != node:
            node = leader[node]
        return node

    ways, others = [], []
    for number in draws.order(len(possible)):  # Kruskal's algorithm
        a, b = possible[number]
        if lead(a) != lead(b):
            leader[lead(a)] = lead(b)
            ways.append((a, b))
        else:
            others.append((a, b))
    return ways + others[: int(loops * len(others))]


def stairs(draws: Draws) -> World:
    """Return two storeys with open-plan walls, joined by staircases and openings in the slab between them."""
    canvas = Canvas(draws.size(), draws.size(), 2 * STOREY_M + WALL_M, ceiling=True, walls=True)
    canvas.box([0, 0, STOREY_M], [canvas.width, canvas.depth, STOREY_M + WALL_M])
    for storey in range(2):
        _partition(draws, canvas, storey * (STOREY_M + WALL_M))
    for number in range(draws.whole(3, 6)):
        is_stair = number == 0 or draws.chance(0.5)
        run, width = (STOREY_M + WALL_M) / 0.2 * 0.3, round(draws.between(1.4, 2.0), 1)
        size = (run + 2.4, width + 0.4) if is_stair else (draws.between(1.6, 3.0), draws.between(1.6, 3.0))
        x, y = draws.between(1.5, canvas.width - size[0] - 1.5), draws.between(1.5, canvas.depth - size[1] - 1.5)
        canvas.box([x - 1.2, y - 1.2, 0.0], [x + size[0] + 1.2, y + size[1] + 1.2, STOREY_M], solid=False)
        canvas.box(
            [x - 1.2, y - 1.2, STOREY_M + WALL_M], [x + size[0] + 1.2, y + size[1] + 1.2, canvas.height], solid=False
        )
        canvas.box([x, y, STOREY_M], [x + size[0], y + size[1], STOREY_M + WALL_M], solid=False)
        if is_stair:
            for step in range(round(run / 0.3)):
                a = x + 1.2 + step * 0.3
                canvas.box([a, y + 0.2, 0.2 * step], [a + 0.3, y + 0.2 + width, 0.2 * (step + 1)])
    return canvas.world("stairs")


def _partition(draws: Draws, canvas: Canvas, z: float) -> None:
    """Put walls with wide openings on a storey whose floor is at height z."""
    for across_x in (True, False):
        length, other = (canvas.width, canvas.depth) if across_x else (canvas.depth, canvas.width)
        at = draws.between(4.0, 7.0)
        while at < length - 4.0:
            wall = _Wall(across_x, round(at, 1), CELL_M, other - CELL_M)
            canvas.box(*wall.box(wall.low, wall.high, z, z + STOREY_M))
            place = draws.between(1.0, 3.0)
            while place < other - 3.5:  # an opening every few metres
                canvas.box(*wall.box(place, place + 2.2, z, z + STOREY_M), solid=False)
                place += draws.between(4.0, 7.0)
            at += draws.between(5.0, 9.0)
