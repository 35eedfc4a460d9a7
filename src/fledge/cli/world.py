"""`fledge world`: check, draw, show and store a world of the user's own, or a generated one."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import PATH, as_json, check_output, main
from fledge.cli.serving import open_app, server_options
from fledge.core.terminal import harmless


@main.command()
@click.argument("source", metavar="FILE|GENERATOR")
@click.option("--out", type=PATH, help="Write the world to this .fworld file, which loads fast.")
@click.option("--picture", type=PATH, help="Draw it: from above, a plan at flight height, a section, and routes.")
@click.option("--show", is_flag=True, help="Open it in the browser, with drones on some of its routes.")
@click.option("--cell", type=float, metavar="M", help="Side of a voxel. [default: what the file says, else 0.1]")
@click.option(
    "--scale",
    type=float,
    metavar="M",
    help="Metres per unit; per pixel or voxel of images and arrays. [default: guessed]",
)
@click.option("--up", type=click.Choice(["auto", "z", "y"]), help="Axis of the file that points up. [default: auto]")
@click.option(
    "--height",
    type=float,
    metavar="M",
    help="Height of the walls of a ROS map, or of the brightest pixel. [default: 3]",
)
@click.option(
    "--floor",
    type=click.Choice(["auto", "add", "none"]),
    help="Add a floor at the lower bound; auto adds it if most of the area has no ground. [default: auto]",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of a generated world and of routes."
)
@click.option("--index", type=click.IntRange(0), default=0, show_default=True, help="Number of a generated world.")
@as_json
@server_options
def world(
    source: str,
    out: Path | None,
    picture: Path | None,
    show: bool,
    cell: float | None,
    scale: float | None,
    up: str | None,
    height: float | None,
    floor: str | None,
    seed: int,
    index: int,
    as_json: bool,
    **server: Any,
) -> None:
    """Check a world to fly in, and say what was guessed: unit, up axis, floor.

    FILE is a point cloud (.pcd, .ply, .las, .laz, .npy, .xyz, .csv, .txt), a mesh (.stl, .obj, .ply, .glb, .off), voxels
    (.npy, .npz, OctoMap .bt), a ROS map (.yaml), a height map (.png, .tif, .npy), a Gazebo world (.sdf, .world), or a
    .fworld. GENERATOR is rooms, corridors, pillars, cave, canopy, stairs, city or hall, or a benchmark's scene: sando_easy,
    sando_medium, sando_hard or fapp.
    """
    check_output(picture)
    check_output(out, "--out", (".fworld",))
    from fledge.tasks.registry import find_task

    query = find_task("navigation").metrics.queries()["world"]
    options = {"cell_m": cell, "scale": scale, "up": up, "height_m": height, "floor": floor}
    with tempfile.TemporaryDirectory(prefix="fledge-world-") as folder:
        recording = Path(folder) / "routes.frec" if show else None
        found = query(source, out=out, picture=picture, recording=recording, seed=seed, index=index, **options)
        click.echo(json.dumps(found) if as_json else "\n".join(render(found)))
        for path in (out, picture):
            if path is not None and not as_json:
                click.echo(f"{path}: {path.stat().st_size:,} bytes.")
        if recording is not None:
            from fledge.app.runs.file_index import make_id

            open_app([recording], lambda _: f"/watch/{make_id(recording)}", **server)


def render(found: dict[str, Any]) -> list[str]:
    """Return the lines of text of a world's report."""
    size = " x ".join(f"{side:.1f}" for side in found["size_m"])
    surface = f", {found['triangles']:,} triangles" if found["triangles"] else ""
    sides = ", ".join(f"{name} {share:.0%}" for name, share in found["open_sides"].items())
    lines = [
        f"{found['name']}: {size} m, {found['voxels']:,} voxels of {found['cell_m']:g} m{surface}",
        f"  solid       {found['solid_share']:.1%} of the voxels",
        f"  ground      below {found['ground_share']:.1%} of the area",
        f"  connected   {found['reachable_share']:.1%} of the space with 0.5 m clearance, "
        f"{found['reachable_body_share']:.1%} with 0.3 m",
        f"  open sides  {sides or 'none'}",
    ]
    if found["routes"]:
        lines.append(
            f"  routes      {found['route_mean_m']:.1f} m on average, {found['route_longest_m']:.1f} m at most, "
            f"{found['detour']:.2f} times the straight line"
        )
        if movers := found["movers"]:
            lines.append(f"  movers      {movers} are as dense as those of the forest: env.moving_obstacles={movers}")
    else:
        lines.append("  routes      none")
    for title, sentences in (("guessed", found["notes"]), ("advice", found["advice"])):
        lines += [f"{title}:", *(f"  - {as_options(sentence)}" for sentence in sentences)] if sentences else []
    return [harmless(line) for line in lines]


def as_options(sentence: str) -> str:
    """Return a sentence in which keywords of Python are options of this command: up=y becomes --up y."""
    return re.sub(r"\b(cell|scale|up|height|floor)(?:_m)?=([\w.]+)", r"--\1 \2", sentence)
