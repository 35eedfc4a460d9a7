"""Results of `fledge world`: read or make a world, check it, draw it, store it, and record its routes for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import ConfigError, did_you_mean
from fledge.storage import RecordingWriter
from fledge.tasks.navigation.worlds.boxes import cover_with_boxes
from fledge.tasks.navigation.worlds.check import examine
from fledge.tasks.navigation.worlds.picture import pick, world_figure
from fledge.tasks.navigation.worlds.routes import Routes
from fledge.tasks.navigation.worlds.world import MADE, World, load_world, make_world, save_world

SPEED_M_S = 2.0  # of the drone that flies a route in the browser
FRAME_S = 0.1


def query_world(
    source: str,
    *,
    out: Path | None = None,
    picture: Path | None = None,
    recording: Path | None = None,
    seed: int = 0,
    index: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Return the report of a world as JSON-able values.

    Args:
        source: A file, or the name of a generator.
        out: Write the world to this .fworld file.
        picture: Draw the world to this file.
        recording: Write a recording of flights along some of its routes to this file, for the browser.
        seed, index: Of a generated world; the seed also draws the routes.
        options: Keywords of `load_world`.
    """
    if source in MADE and not Path(source).exists():
        if given := [name for name, value in options.items() if value is not None]:
            raise ConfigError(f"{source} is a generator, so {given[0]} does not apply to it: leave it out.")
        world = make_world(source, seed, index)
    else:
        try:
            world = load_world(source, **{name: value for name, value in options.items() if value is not None})
        except ConfigError as error:
            if Path(source).exists() or Path(source).suffix:
                raise
            known, near = ", ".join(MADE), did_you_mean(source, MADE)
            raise ConfigError(f"{source} is neither a file nor a generator; generators are {known}.{near}") from error
    report, routes, space = examine(world, seed)
    if out is not None:
        save_world(world, out)
    if picture is not None:
        world_figure(world, report, routes, space).savefig(picture)
    if recording is not None:
        record_routes(world, routes, recording)
    return report.as_dict()


def record_routes(world: World, routes: Routes | None, path: Path) -> None:
    """Write a recording of drones that follow some routes at a constant speed.

    Raises:
        ConfigError: The world has no routes to show.
    """
    if routes is None:
        raise ConfigError(f"{world.name} has no routes, so there is nothing to show: --picture draws it.")
    boxes = cover_with_boxes(world)
    bounds = [corner.tolist() for corner in world.bounds]
    flights = {route: frames_of(routes.paths[route]) for route in pick(routes)}
    frame = {name: values[0] for name, values in next(iter(flights.values())).items()}
    with RecordingWriter(path, "navigation", frame, FRAME_S, when_full="wait") as writer:
        for route, frames in flights.items():
            scene = {"map": 0, "boxes": boxes, "bounds": bounds, "goal_radius_m": 0.5}
            scene |= {"start": routes.start[route], "goal": routes.goal[route]}
            episode = writer.begin(scene, {"length_m": round(float(routes.length[route]), 1)})
            writer.add_many(episode, frames)
            writer.end(episode, "route")


def frames_of(path: np.ndarray) -> dict[str, np.ndarray]:
    """Return the frames of a flight along a path [n, 3] at SPEED_M_S."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    at = np.append(np.arange(0.0, along[-1], SPEED_M_S * FRAME_S), along[-1])
    pos = np.stack([np.interp(at, along, path[:, axis]) for axis in range(3)], axis=1).astype(np.float32)
    ahead = np.diff(pos, axis=0, append=pos[-1:] + (pos[-1:] - pos[-2:-1]))
    heading = np.arctan2(ahead[:, 1], ahead[:, 0]).astype(np.float32)
    return {"pos": pos, "heading": heading, "mover": np.full((len(pos), 4), np.nan, np.float32)}
