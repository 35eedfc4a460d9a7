"""Check a world before flying in it: size, solid share, reachable space, ground, open sides and routes, with advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fledge.core.errors import InputError
from fledge.tasks.navigation.worlds.distance import has_clearance
from fledge.tasks.navigation.worlds.free_space import FreeSpace, find_free_space, largest_part
from fledge.tasks.navigation.worlds.routes import Routes, draw_routes
from fledge.tasks.navigation.worlds.voxels import World

BODY_M = 0.3  # radius of a drone
CLEARANCE_M = 0.5  # of starts, goals and the paths between them
SIDES = {
    "left (x-)": (0, 0),
    "right (x+)": (0, -1),
    "front (y-)": (1, 0),
    "back (y+)": (1, -1),
    "top": (2, -1),
    "bottom": (2, 0),
}
OPEN = 0.02  # share of a side from which it counts as open
ROUTES = 256
MOVER_M2 = 20.0  # area for each of the 80 moving obstacles in the forest of 40 x 40 m


@dataclass
class WorldReport:
    """Figures about a world, and advice."""

    name: str
    size_m: list[float]  # along x, y, z
    cell_m: float
    voxels: int
    triangles: int  # 0: the voxels are the surface
    solid_share: float  # of all voxels
    ground_share: float  # of the columns that have something solid in their lower half
    body_share: float  # of the free voxels: there a drone of BODY_M fits
    reachable_share: float  # of the voxels with CLEARANCE_M: connected to each other
    reachable_body_share: float  # of the voxels with BODY_M: connected to each other
    open_sides: dict[str, float]  # sides at which free space meets the bounds, with the share of the side
    routes: int
    route_mean_m: float
    route_longest_m: float
    detour: float  # mean of length / straight distance
    movers: (
        int  # as dense over the reachable area as those of the forest by default; 0 for scenes, which have their own
    )
    notes: list[str] = field(default_factory=list)  # guesses when the file was read
    advice: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return asdict(self)


def check_world(world: World, seed: int = 0) -> WorldReport:
    """Return a report about a world; problems are in its advice, none of them raises."""
    return examine(world, seed)[0]


def examine(world: World, seed: int = 0) -> tuple[WorldReport, Routes | None, FreeSpace | None]:
    """Return the report of a world, with the routes and the free space that it is about; None where there are none."""
    advice: list[str] = []
    routes, space = None, None
    try:
        space = find_free_space(world, CLEARANCE_M)
        routes = world.scene.route() if world.scene else draw_routes(world, seed, ROUTES, CLEARANCE_M, space=space)
    except InputError as error:
        advice.append(str(error))
    body = has_clearance(world.solid, world.cell_m, BODY_M)
    free = ~world.solid
    length = routes.length if routes else np.zeros(1)
    straight = np.linalg.norm(routes.goal - routes.start, axis=1) if routes else np.ones(1)
    half = max(1, (world.solid.shape[2] + 1) // 2)
    report = WorldReport(
        name=world.name,
        size_m=[round(float(side), 3) for side in world.bounds[1] - world.bounds[0]],
        cell_m=world.cell_m,
        voxels=world.solid.size,
        triangles=0 if world.triangles is None else len(world.triangles),
        solid_share=float(world.solid.mean()),
        ground_share=float(world.solid[:, :, :half].any(axis=2).mean()),
        body_share=_share(body, free),
        reachable_share=_share(space.inside, space.clear) if space else 0.0,
        reachable_body_share=_share(largest_part(body), body),
        open_sides=open_sides(free),
        routes=len(routes.length) if routes else 0,
        route_mean_m=float(length.mean()),
        route_longest_m=float(length.max()),
        detour=float((length / straight).mean()) if routes else 0.0,
        movers=round(float(space.inside.any(axis=2).sum()) * world.cell_m**2 / MOVER_M2)
        if space and not world.scene
        else 0,
        notes=list(world.notes),
        advice=advice,
    )
    advice += list(advise(report))
    return report, routes, space


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / max(int(whole.sum()), 1))


def open_sides(free: np.ndarray) -> dict[str, float]:
    """Return the sides of the bounds at which the largest connected part of free space ends, with their open share."""
    if not free.any():
        return {}
    inside = largest_part(free)
    shares = {name: float(np.take(inside, place, axis).mean()) for name, (axis, place) in SIDES.items()}
    return {name: share for name, share in shares.items() if share >= OPEN}


def advise(report: WorldReport) -> list[str]:
    """Return a sentence for everything about a world that often goes wrong."""
    found = []
    width, height = max(report.size_m[:2]), report.size_m[2]
    if width < 4.0 or height < 1.5:
        found.append(f"The world is only {width:.1f} m wide and {height:.1f} m high: check scale and up.")
    if width > 300.0:
        found.append(f"The world is {width:.0f} m wide: check scale, or cut out the part to fly in.")
    if report.solid_share < 0.001:
        found.append("Hardly anything in it is solid: check the file, or use larger voxels for a sparse scan.")
    if report.ground_share < 0.5:
        found.append(f"Only {report.ground_share:.0%} of the area has ground: pass floor=add.")
    if 0.0 < report.reachable_share < 0.7:
        found.append(
            f"Only {report.reachable_share:.0%} of the space with {CLEARANCE_M:g} m clearance is connected, and flights stay "
            "in the largest part: look for closed doors, for an outside around the building, and for spaces inside objects."
        )
    elif (behind := report.reachable_body_share - report.reachable_share) > 0.15:
        found.append(
            f"Passages narrower than {2 * CLEARANCE_M:g} m lead to {behind:.0%} of the space: flights start and end on one "
            "side of them."
        )
    walls = [name for name in report.open_sides if name not in ("top", "bottom")]
    if walls and report.ground_share >= 0.5:
        found.append(f"Open at the {', '.join(walls)}: a flight that leaves the bounds there ends as out of bounds.")
    if "bottom" in report.open_sides:
        share = report.open_sides["bottom"]
        found.append(
            f"{share:.0%} of the lower side is open: a drone can sink through it out of bounds; pass floor=add."
        )
    return found
