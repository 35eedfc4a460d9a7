"""Open worlds: pillars and beams, a cave, a canopy of leaves over trunks, and city blocks."""

from __future__ import annotations

import itertools

import numpy as np

from fledge.tasks.navigation.worlds.distance import has_clearance
from fledge.tasks.navigation.worlds.free_space import largest_part
from fledge.tasks.navigation.worlds.generators.canvas import CELL_M, HEIGHT_M, Canvas, Draws, smooth_noise, spread_out
from fledge.tasks.navigation.worlds.voxels import World

BODY_M = 0.4  # radius of a body that fits everywhere in a cave


def pillars(draws: Draws) -> World:
    """Return pillars, square or round, at least 1.2 m apart, and horizontal beams, of which at most one crosses a column."""
    canvas = Canvas(draws.size(), draws.size(), ceiling=False, walls=False)
    density = draws.between(0.15, 0.4)  # tried per square metre
    count = int(density * canvas.width * canvas.depth)
    radii = 0.15 + 0.4 * draws.units(count) ** 2
    for x, y, radius in spread_out(draws, canvas.width, canvas.depth, count, 1.2, radii):
        if draws.chance(0.5):
            canvas.post(x, y, radius)
        else:
            canvas.box([x - radius, y - radius, 0.0], [x + radius, y + radius, canvas.height])
    crossed = np.zeros(canvas.solid.shape[:2], bool)
    for _ in range(int(draws.between(0.05, 0.2) * canvas.width * canvas.depth)):
        along_x, length, thick = draws.chance(0.5), draws.between(3.0, 10.0), draws.between(0.2, 0.5)
        size = (length, thick) if along_x else (thick, length)
        x, y = draws.between(0.0, canvas.width - size[0]), draws.between(0.0, canvas.depth - size[1])
        z = draws.between(0.3, canvas.height - 0.3 - thick)
        reach = 1.2  # of a body around a beam
        area = tuple(
            slice(max(0, round((a - reach) / CELL_M)), round((a + b + reach) / CELL_M))
            for a, b in zip((x, y), size, strict=True)
        )
        if not crossed[area].any():
            crossed[area] = True
            canvas.box([x, y, z], [x + size[0], y + size[1], z + thick])
    return canvas.world("pillars")


def cave(draws: Draws) -> World:
    """Return a cave: smooth noise above a threshold is rock; only the largest connected part stays open."""
    canvas = Canvas(draws.size(), draws.size(), ceiling=True, walls=True)
    shape = canvas.solid.shape
    bump = draws.between(20.0, 45.0)
    noise = smooth_noise(draws, shape, (bump, bump, 16.0)) + 0.35 * smooth_noise(
        draws, shape, (bump / 3, bump / 3, 7.0)
    )
    height = np.linspace(-1.0, 1.0, shape[2])
    noise += 0.25 * height**4  # floor and ceiling close in at the sides of passages
    rock = noise > np.quantile(noise[::4, ::4, ::2], draws.between(0.6, 0.75))
    open_ = largest_part(has_clearance(rock | canvas.solid, CELL_M, BODY_M))
    # everything within the body's radius of the connected part is open
    canvas.solid |= has_clearance(np.pad(open_, 5), CELL_M, BODY_M)[5:-5, 5:-5, 5:-5]
    return canvas.world("cave")


def canopy(draws: Draws) -> World:
    """Return trunks under a layer of leaves with gaps, bushes on the ground, and open space above the leaves."""
    canvas = Canvas(draws.size(), draws.size(), ceiling=False, walls=False)
    count = int(draws.between(0.08, 0.2) * canvas.width * canvas.depth)
    radii = 0.1 + 0.25 * draws.units(count)
    trees = spread_out(draws, canvas.width, canvas.depth, count, 1.4, radii)
    low, thick = draws.between(2.0, 2.4), draws.between(0.4, 0.8)
    for x, y, radius in trees:
        if draws.chance(0.15):
            canvas.post(x, y, radius + 0.15, draws.between(0.5, 1.2))  # a bush
        else:
            canvas.post(x, y, radius, low + thick)
    leaves = smooth_noise(draws, canvas.solid.shape[:2], (14.0, 14.0))
    covered = leaves > np.quantile(leaves, draws.between(0.35, 0.65))
    ragged = smooth_noise(draws, canvas.solid.shape[:2], (6.0, 6.0))
    first = 1 + np.round((low + 0.4 * ragged) / CELL_M).astype(np.int64)
    level = np.arange(canvas.solid.shape[2])
    canvas.solid |= covered[:, :, None] & (level >= first[:, :, None]) & (level < 1 + round((low + thick) / CELL_M))
    return canvas.world("canopy")


def city(draws: Draws) -> World:
    """Return blocks of buildings between streets, with lamp posts, and some bridges over the streets."""
    canvas = Canvas(draws.size(), draws.size(), ceiling=False, walls=False)
    street, block = draws.between(3.5, 6.0), draws.between(6.0, 11.0)
    nx, ny = (max(2, round(side / (street + block))) for side in (canvas.width, canvas.depth))
    for i, j in itertools.product(range(nx), range(ny)):
        x, y = canvas.width * i / nx + street / 2, canvas.depth * j / ny + street / 2
        x1, y1 = canvas.width * (i + 1) / nx - street / 2, canvas.depth * (j + 1) / ny - street / 2
        _fill_block(draws, canvas, x, y, x1, y1)
        if draws.chance(0.3) and i + 1 < nx:  # a bridge to the next block
            at, low = draws.between(y, y1 - 1.2), draws.between(2.2, 2.9)
            canvas.box([x1, at, low], [x1 + street, at + 1.2, low + 0.3])
        canvas.post(x1 + 0.5, y1 + 0.5, 0.1, 3.6)
    return canvas.world("city")


def _fill_block(draws: Draws, canvas: Canvas, x0: float, y0: float, x1: float, y1: float) -> None:
    """Fill a block with one to four buildings, or leave it as a square with trees."""
    if draws.chance(0.15):
        for x, y, radius in spread_out(draws, x1 - x0, y1 - y0, 8, 1.4, np.full(8, 0.2)):
            canvas.post(x0 + x, y0 + y, radius)
        return
    nx, ny = draws.whole(1, 2), draws.whole(1, 2)
    for i in range(nx):
        for j in range(ny):
            low = [x0 + (x1 - x0) * i / nx, y0 + (y1 - y0) * j / ny, 0.0]
            yard = draws.between(0.0, 0.8)
            height = HEIGHT_M if draws.chance(0.6) else draws.between(1.5, 2.8)
            canvas.box(low, [x0 + (x1 - x0) * (i + 1) / nx - yard, y0 + (y1 - y0) * (j + 1) / ny - yard, height])
