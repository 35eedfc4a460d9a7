"""`python -m benchmarks worlds`: physics steps per second in voxel and mesh worlds beside the height map's.

The same forest is flown as a height map, as voxels and as a mesh, with the same drones in the same state. Their LiDAR and
their collisions must agree before anything is timed. Generated worlds, in which drones fly elsewhere, are timed beside them.
All take turns, so that other load on the machine affects all of them; each turn starts from the same state.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType

from benchmarks.baselines.navigation.benchmark import ACTION, WARM_UP_STEPS, bench_config
from benchmarks.sim import Candidate
from benchmarks.sim_benchmark import require, verdict
from benchmarks.tables import machine_line, shown, table, three_digits
from benchmarks.turns import ratio
from fledge.core.machine import default_threads, machine_info
from fledge.tasks.navigation.config import Collision, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.navigation.view.view import boxes_of
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.world import World, save_world

TURNS = 10
MAPS = 2
CALLS = 40  # steps after which a candidate returns to its first state
CHECKED_STEPS = 20
TOP_M = 4.0  # voxel worlds end at the highest flights
GENERATED = ("rooms", "cave", "city")
Flyer = tuple[NavigationEnv, Any, dict[str, torch.Tensor]]
"""An env, its buffers, and its state at the start of a turn."""


def run(
    num_envs: int = 1024,
    threads: int | None = None,
    seconds: float = 2.0,
    decimation: int = 1,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return agreement and speed of each kind of world; JSON-able. `decimation` is physics steps per decision and scan.

    Raises:
        FledgeError: if beams or collisions in voxels or mesh differ from the height map's; nothing is timed then.
    """
    say = on_progress or (lambda line: None)
    threads = threads or default_threads()
    changes: dict[str, Any] = {"num_maps": MAPS, "decimation": decimation, "collision": Collision.cylinder}
    cfg = dataclasses.replace(bench_config(num_envs), **changes)
    settings = {"num_envs": num_envs, "threads": threads, "seconds": seconds, "decimation": decimation, "seed": seed}
    result: dict[str, Any] = {"machine": machine_info(), "settings": settings}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def make(**changes: Any) -> Flyer:
            env = NavigationEnv(dataclasses.replace(cfg, **changes), seed=seed, num_threads=threads)
            stack.callback(env.close)
            return begin(env, env.make_buffers())

        say(f"warming up {num_envs:,} drones on height maps")
        flyers = {"height map": make()}
        for kind, convert in {"voxels": voxels_of, "mesh": mesh_of}.items():
            say(f"reading the same forests as {kind}")
            files = [Path(folder) / f"{kind}{k}.fworld" for k in range(MAPS)]
            for k, file in enumerate(files):
                save_world(convert(cells_of(flyers["height map"][0], k)), file)
            flyers[kind] = make(world=",".join(map(str, files)))
            restore(flyers[kind][0], flyers["height map"][2])
        say("checking that beams and collisions agree")
        result["parity"] = {kind: check(kind, flyers["height map"], flyers[kind]) for kind in ("voxels", "mesh")}
        for name in GENERATED:
            say(f"making {name}")
            flyers[name] = make(world=name)
        say("timing all in turns")
        result["speed"] = time_all(flyers, num_envs, cfg, seconds)
    return result


def cells_of(env: NavigationEnv, slot: int) -> np.ndarray:
    return env.bank.grid[slot].numpy().reshape(CELLS, CELLS)


def voxels_of(cells: np.ndarray) -> World:
    """Return a forest as voxels on a ground of one layer."""
    heights = np.where(cells >= SOLID, (cells.astype(np.int64) - SOLID) * HEIGHT_STEP, 0.0)
    solid = np.arange(round(TOP_M / CELL_M) + 1) * CELL_M < heights[..., None] + 0.5 * CELL_M
    return World("voxels", solid, np.array([-HALF_M, -HALF_M, -CELL_M]), CELL_M)


def mesh_of(cells: np.ndarray) -> World:
    """Return a forest as triangles: a box for each column, and the ground. All lie within the solid voxels, by a hair."""
    hair = 1.0e-4
    boxes = boxes_of(cells).astype(np.float64)
    ground = [0.0, 0.0, -0.5 * CELL_M, 2 * HALF_M, 2 * HALF_M, CELL_M]
    boxes = np.concatenate([boxes, [ground]])
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    corners = boxes[:, None, :3] + signs * (0.5 * boxes[:, None, 3:] - hair)
    sides = np.array([[0, 1, 3], [0, 3, 2], [4, 5, 7], [4, 7, 6], [0, 1, 5], [0, 5, 4],
                      [2, 3, 7], [2, 7, 6], [1, 3, 7], [1, 7, 5]])  # without the undersides  # fmt: skip
    triangles = corners[:, sides].reshape(-1, 3, 3).astype(np.float32)
    shape, origin = voxels_of(cells).solid.shape, np.array([-HALF_M, -HALF_M, -CELL_M])
    first, _ = cells_of_triangles(triangles, origin, shape, CELL_M)
    return World("mesh", (np.diff(first) > 0).reshape(shape), origin, CELL_M, triangles)


def begin(env: NavigationEnv, out: Any) -> Flyer:
    """Warm an env up; columns of height maps get heights that voxels can have."""
    if env.bank.worlds is None:
        steps = (env.bank.heights / CELL_M + 1.0e-3).floor()
        env.bank.heights.copy_((steps * CELL_M).clamp(max=TOP_M))
        env.bank.draw_boxes(np.arange(env.bank.slots))
    env.reset(out=out)
    action = torch.tensor(ACTION).repeat(env.num_envs, 1)
    for _ in range(WARM_UP_STEPS):
        env.step(action, out=out)
    return env, out, {name: tensor.clone() for name, tensor in state_of(env).items()}


def state_of(env: NavigationEnv) -> dict[str, torch.Tensor]:
    crowd = {name: env.bank.tensors[name] for name in ("clock", "goal", "vel", "before", "trail")}
    return env.state | {f"crowd_{name}": tensor for name, tensor in crowd.items()}


def restore(env: NavigationEnv, saved: dict[str, torch.Tensor]) -> None:
    for name, tensor in state_of(env).items():
        tensor.copy_(saved[name])
    env._clock = int(saved["crowd_clock"])


def check(kind: str, one: Flyer, other: Flyer) -> dict[str, Any]:
    """Fly both from the same state, and judge differences of beams and of collisions with the world."""
    action = torch.tensor(ACTION).repeat(one[0].num_envs, 1)
    flying = torch.ones(one[0].num_envs, dtype=torch.bool)
    gaps, unequal = [], torch.zeros(one[0].num_envs, dtype=torch.bool)
    for env, _, _ in (one, other):
        restore(env, one[2])
    for _ in range(CHECKED_STEPS):
        for env, out, _ in (one, other):
            env.step(action, out=out)
        hit = [out["outcome"] == int(Outcome.COLLISION_STATIC) for _, out, _ in (one, other)]
        unequal |= flying & (hit[0] != hit[1])
        flying &= ~(one[1]["terminated"] | one[1]["truncated"] | other[1]["terminated"] | other[1]["truncated"])
        gaps.append((one[1]["obs", "lidar"] - other[1]["obs", "lidar"])[flying].abs().flatten().numpy())
    verdicts = {
        "lidar": verdict(np.concatenate(gaps), 2e-3, 2e-3),
        "collisions": verdict(unequal.double().numpy(), 0.5, 2e-3),
    }
    require(kind, verdicts)
    other[2].update({name: tensor.clone() for name, tensor in one[2].items()})
    return verdicts


def time_all(flyers: dict[str, Flyer], count: int, cfg: NavigationConfig, seconds: float) -> dict[str, Any]:
    """Return steps per second and speed relative to the height map, by kind of world."""
    action = torch.tensor(ACTION).repeat(count, 1)
    candidates = {}
    for name, (env, out, saved) in flyers.items():

        def go_back(env: NavigationEnv = env, saved: dict[str, torch.Tensor] = saved) -> None:
            restore(env, saved)

        def step(_call: int, env: NavigationEnv = env, out: Any = out) -> None:
            env.step(action, out=out)

        candidates[name] = Candidate(go_back, step, CALLS)
    medians: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(TURNS):
        for name, candidate in candidates.items():
            medians[name].append(float(np.median(candidate.time(seconds / TURNS)[0])))
    steps = count * cfg.decimation
    return {
        name: {
            "env_steps_per_second": round(steps / float(np.median(times))),
            "median_ms": round(1e3 * float(np.median(times)), 4),
            "of_height_map": ratio(medians["height map"], times),
        }
        for name, times in medians.items()
    }


def render(result: dict[str, Any]) -> list[RenderableType]:
    """Return the figures of `run` as rich renderables."""
    settings = result["settings"]
    flown = f"{settings['num_envs']:,} drones, {settings['threads']} threads"
    title = f"{flown}, {settings['decimation']} physics steps a decision, in turns (quartiles)"
    view = table(title, "world", "ms a decision", "physics steps/s", "share of the height map's")
    for name, row in result["speed"].items():
        view.add_row(
            name, three_digits(row["median_ms"]), f"{row['env_steps_per_second']:,}", shown(row["of_height_map"])
        )
    agree = table("Same forest, same flights: differences from the height map", "", "outside the tolerance", "allowed")
    for kind, verdicts in result["parity"].items():
        for key, found in verdicts.items():
            agree.add_row(f"{kind}, {key}", f"{found['share_outside']:.3%}", f"{found['allowed_share']:.1%}")
    return [machine_line(result["machine"], "start"), agree, view]
