"""NavigationView: what recordings, pictures and the browser show of navigation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.envs.base import TensorEnv
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.crowd import crowd_kinds
from fledge.tasks.navigation.physics.shapes import KINDS, STANDING_Z_M, WIDTHS, is_round, sizes, widths
from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.navigation.sensing.observations import NEAREST
from fledge.tasks.navigation.sensing.rays import directions, elevations_deg
from fledge.tasks.navigation.view.beams import cast_crowd, cast_scene, shown_rays, turned_rays
from fledge.tasks.navigation.view.world_scene import map_of, scene_world
from fledge.tasks.navigation.worlds.boxes import cover_with_boxes
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Beams, Crowd, Instrument, Stage
from fledge.tasks.view.trajectory import Trajectory

NEAR = 12  # nearest movers stored in a frame
MM = 1000.0  # movers' positions are stored in whole millimetres, if they fit: half the size of float32, and compress better
JUMP_M = 0.5  # farther than any mover moves between two decisions
DRONE_M = 0.6  # width of the drawn drone: twice its collision radius
CEILING_M = 6.0


class NavigationView(TaskView):
    """View of navigation: drones, columns, moving obstacles and LiDAR beams."""

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return for each flight: map number, its cells, voxels or boxes, start, goal, clock and LiDAR geometry.

        Cells are those of `physics.terrain`; voxels have the fields of `World`, with the solid ones as packed bits.
        """
        assert isinstance(env, NavigationEnv)
        cfg = env.cfg
        slots = env.state["slot"].cpu().tolist()
        ends = {k: env.state[k].cpu().numpy() for k in ("start", "goal")}
        maps = {slot: map_of(env, slot) for slot in {slots[i] for i in ids}}
        lidar = {
            "azimuths": cfg.lidar_azimuths,
            "elevations_deg": elevations_deg(cfg).tolist(),
            "range_m": cfg.lidar_range_m,
            "sees_movers": cfg.lidar_sees_movers,
        }
        if cfg.casts_single_rays:
            lidar |= {"rays": shown_rays(directions(cfg)).round(6).tolist(), "min_range_m": cfg.lidar_min_range_m}
        shared: dict[str, Any] = {"clock_s": env._clock * cfg.dt_s, "goal_radius_m": cfg.goal_radius_m, "lidar": lidar}
        if env.bank.arena or env.bank.scene or env.bank.pedestrians:
            shared["kinds"] = env.bank.kinds.tolist()
        if (unit := crowd_unit(env)) != MM:
            shared["crowd_per_m"] = unit
        return [{**maps[slots[i]], **{k: v[i].copy() for k, v in ends.items()}, **shared} for i in ids]

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the state of drones and of the moving obstacles around them; m, m/s, rad, world frame.

        pos, vel    [n, 3]      heading [n]
        tilt        [n, 2]      roll and pitch, if the LiDAR tilts
        mover       [n, 4]      position and width of the nearest mover; NaN if there is none
        crowd       [n, K, 3]   positions of the K nearest movers, int16, in millimetres; 1 / crowd_per_m m on wide maps
        crowd_id    [n, K]      the movers' numbers on the map, int16, ascending; -1 in unused columns, which are last
        """
        assert isinstance(env, NavigationEnv)
        rows = list(ids)
        pos, vel, quat, slot = (env.state[name][rows] for name in ("pos", "vel", "quat", "slot"))
        x, y, z, w = quat.unbind(-1)
        seen = {"pos": pos, "vel": vel, "heading": torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))}
        if env.cfg.lidar_tilts:
            roll = torch.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
            seen["tilt"] = torch.stack([roll, torch.asin((2.0 * (w * y - z * x)).clamp(-1.0, 1.0))], dim=-1)
        crowd = env.bank.tensors["trail"][-1][slot.long()]  # [n, M, 3]
        seen["mover"] = torch.full((len(rows), 4), math.nan)
        if crowd.shape[1]:
            there = torch.arange(crowd.shape[1], device=env.device) < env.bank.tensors["count"][slot.long()][:, None]
            away = (crowd[..., :2] - pos[:, None, :2]).norm(dim=-1).masked_fill(~there, math.inf)
            seen |= nearest(crowd, away, env.bank.kinds, crowd_unit(env))
        return {name: value.cpu().numpy() for name, value in seen.items()}

    def stage_of(self, env: TensorEnv) -> Tensor:
        """Return the map slot of each drone, [N]; flights on one map are shown together."""
        assert isinstance(env, NavigationEnv)
        return env.state["slot"]

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        from fledge.tasks.navigation.view.picture import flights_figure  # Matplotlib loads slowly

        return flights_figure(tracks, title)

    def objects(self, track: Trajectory) -> list[SceneObject]:
        """Return the drone, its goal, and the nearest mover; each change of the nearest mover begins a new object."""
        mover = track.frames["mover"]
        there = np.isfinite(mover).all(axis=1)
        step = np.linalg.norm(np.diff(mover[:, :2], axis=0), axis=1)
        number = np.cumsum(np.concatenate([[False], ~(step < JUMP_M) | (mover[1:, 3] != mover[:-1, 3])]))
        met = [there & (number == k) for k in np.unique(number[there])]
        movers = [SceneObject("mover", mover[:, :3], "obstacle", "orange", present=seen) for seen in met]
        return [*drone_and_goal(track), *movers]

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        """Return the columns of the map, or the boxes of a world of voxels, with bounds and the goal's radius."""
        boxes, bounds, world = scene.get("boxes"), scene.get("bounds"), scene_world(scene)
        if world is not None:
            boxes, bounds = cover_with_boxes(world), [corner.tolist() for corner in world.bounds]
        elif boxes is None:
            boxes = boxes_of(scene["cells"].reshape(CELLS, CELLS))
            bounds = ((-HALF_M, -HALF_M, 0.0), (HALF_M, HALF_M, CEILING_M))
        return Stage(
            boxes=np.asarray(boxes, np.float32).reshape(-1, 6),
            bounds=bounds,
            clock_s=float(scene.get("clock_s", 0.0)),
            goal_radius_m=float(scene.get("goal_radius_m", 0.5)),
        )

    def actors(self, track: Trajectory) -> list[SceneObject]:
        """Return the drone and its goal, with heading and sizes."""
        drone, goal = drone_and_goal(track)
        drone.heading, drone.size_m = track.frames.get("heading"), DRONE_M
        goal.size_m = 2 * float(track.scene.get("goal_radius_m", 0.5))
        return [drone, goal]

    def crowd(self, track: Trajectory) -> Crowd | None:
        """Return the moving obstacles around the drone; older recordings have only the nearest."""
        frames = track.frames
        if "crowd" in frames and "crowd_id" in frames:
            ids, pos = (
                frames["crowd_id"].astype(np.int16),
                frames["crowd"] / np.float32(track.scene.get("crowd_per_m", MM)),
            )
        elif "mover" in frames:
            there = np.isfinite(frames["mover"]).all(axis=1)
            kind = np.where(there, np.nan_to_num(frames["mover"][:, 3]) * 4 - 1, -1).astype(np.int16)
            tall = np.nan_to_num(frames["mover"][:, 2]) == STANDING_Z_M
            ids, pos = np.where(there & tall, kind + WIDTHS, kind)[:, None], np.nan_to_num(frames["mover"][:, None, :3])
        else:
            return None
        scene, count = track.scene, max(KINDS, int(ids.max(initial=0)) + 1)
        kinds = np.array(scene.get("kinds") or crowd_kinds(count, swings="one_kind" in scene))
        return Crowd(ids, pos.astype(np.float32), sizes(kinds), is_round(kinds), detected(track, ids, pos))

    def beams(self, track: Trajectory) -> Beams | None:
        """Return the LiDAR's distances without noise, of meshes to their voxels; None without heading or LiDAR geometry."""
        lidar = track.scene.get("lidar")
        if (
            not isinstance(lidar, Mapping)
            or "heading" not in track.frames
            or not {"cells", "voxels"} & set(track.scene)
        ):
            return None
        if "rays" in lidar:
            return self.ray_beams(track, lidar)
        around = 2.0 * math.pi * np.arange(int(lidar["azimuths"])) / int(lidar["azimuths"])
        up, reach = np.radians(np.asarray(lidar["elevations_deg"], np.float64)), float(lidar["range_m"])
        pos = track.frames["pos"].astype(np.float64)
        angle = track.frames["heading"].astype(np.float64)[:, None] + around
        ahead = np.stack([np.cos(angle), np.sin(angle)], axis=-1)  # [T, H, 2]
        distance = cast_scene(track.scene, pos, ahead, up, reach)
        crowd = self.crowd(track)
        if lidar.get("sees_movers") and crowd is not None:
            np.minimum(distance, cast_crowd(crowd, pos, ahead, up, reach), out=distance)
        return Beams(around, up, reach, distance.astype(np.float32))

    def ray_beams(self, track: Trajectory, lidar: Mapping[str, Any]) -> Beams:
        """Return distances along some rays of a sensor that casts single rays; with jitter, along the bins' middles."""
        local, reach = np.asarray(lidar["rays"], np.float64), float(lidar["range_m"])
        pos, tilt = track.frames["pos"].astype(np.float64), track.frames.get("tilt")
        rays = turned_rays(local, track.frames["heading"], tilt).reshape(len(pos), -1, 3)  # [T, R, 3]
        flat = np.maximum(np.linalg.norm(rays[..., :2], axis=-1), 1e-6)
        ahead, up = rays[..., :2] / flat[..., None], np.arctan2(rays[..., 2], flat)[..., None]
        distance = cast_scene(track.scene, pos, ahead, up, reach)
        crowd = self.crowd(track)
        if lidar.get("sees_movers") and crowd is not None:
            np.minimum(distance, cast_crowd(crowd, pos, ahead, up, reach), out=distance)
        distance[distance < float(lidar["min_range_m"])] = reach
        around = np.arctan2(local[..., 1], local[..., 0])
        shape = (len(pos), *local.shape[:2])
        return Beams(
            around.ravel(), np.arcsin(local[..., 2]).ravel(), reach, distance.reshape(shape).astype(np.float32), tilt
        )

    def instruments(self, track: Trajectory) -> list[Instrument]:
        """Return speed, height, and the distances to the goal and to the nearest mover."""
        pos, goal = track.frames["pos"], np.asarray(track.scene["goal"])
        shown = [
            Instrument("height", pos[:, 2], "m"),
            Instrument("to the goal", np.linalg.norm(pos - goal, axis=1), "m"),
        ]
        if "vel" in track.frames:
            shown.insert(0, Instrument("speed", np.linalg.norm(track.frames["vel"], axis=1), "m/s"))
        if "mover" in track.frames:
            x, y, _, width = track.frames["mover"].T
            shown.append(Instrument("nearest mover", np.hypot(x - pos[:, 0], y - pos[:, 1]) - width / 2, "m"))
        return shown


def drone_and_goal(track: Trajectory) -> tuple[SceneObject, SceneObject]:
    crashed = track.outcome.startswith("collision") or track.outcome == "out_of_bounds"
    drone = SceneObject("drone", track.frames["pos"], "drone", destroyed=crashed)
    return drone, SceneObject("goal", np.asarray(track.scene["goal"])[None], "goal", "green")


def boxes_of(cells: np.ndarray) -> np.ndarray:
    """Return boxes that cover the solid cells of a map [CELLS, CELLS]: centre and size along x, y, z, [B, 6] m.

    A box is a run of cells of one height along y, extended along x.
    """
    boxes: list[tuple[int, int, int, int, int]] = []  # x0, x1, y0, y1, value
    growing: dict[tuple[int, int, int], int] = {}  # (y0, y1, value) -> x0
    for x in range(CELLS + 1):
        row = np.where(cells[x] >= SOLID, cells[x], 0).astype(np.int16) if x < CELLS else np.zeros(CELLS, np.int16)
        edges = np.flatnonzero(np.diff(row, prepend=0, append=0))
        ends = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        runs = {(a, b, int(row[a])) for a, b in ends if row[a]}
        for run in [run for run in growing if run not in runs]:
            boxes.append((growing.pop(run), x, *run))
        for run in runs:
            growing.setdefault(run, x)
    if not boxes:
        return np.zeros((0, 6), np.float32)
    x0, x1, y0, y1, value = np.array(sorted(boxes), np.float32).T
    height = (value - SOLID) * HEIGHT_STEP
    middle = [(x0 + x1) / 2 * CELL_M - HALF_M, (y0 + y1) / 2 * CELL_M - HALF_M, height / 2]
    return np.stack([*middle, (x1 - x0) * CELL_M, (y1 - y0) * CELL_M, height], axis=1).astype(np.float32)


def detected(track: Trajectory, ids: np.ndarray, pos: np.ndarray) -> np.ndarray | None:
    """Return which movers the drone observes, [T, K]: the nearest within the LiDAR's range; None without LiDAR geometry."""
    lidar = track.scene.get("lidar")
    if not isinstance(lidar, Mapping):
        return None
    away = np.linalg.norm(pos[..., :2] - track.frames["pos"][:, None, :2], axis=-1)
    away = np.where(ids >= 0, away, np.inf)
    rank = away.argsort(axis=1).argsort(axis=1)
    return (rank < NEAREST) & (away <= float(lidar["range_m"]))


def crowd_unit(env: NavigationEnv) -> float:
    """Return the steps per metre in which the movers' positions are stored, so that int16 reaches to the map's borders."""
    reach = env.bank.worlds.reach_m if env.bank.worlds else HALF_M
    return MM if reach * MM <= 32767 else 10.0 ** math.floor(math.log10(32767 / reach))


def nearest(crowd: Tensor, away: Tensor, kinds: Tensor, unit: float) -> dict[str, Tensor]:
    """Return mover, crowd and crowd_id, as in `snapshot`, from the movers' positions [n, M, 3] and distances [n, M], m."""
    index = torch.arange(len(crowd), device=crowd.device)
    distance, order = away.topk(min(NEAR, away.shape[1]), largest=False)
    first = order[:, 0]
    width = widths(kinds[first])[:, None]
    mover = torch.where(distance[:, :1].isinf(), math.nan, torch.cat([crowd[index, first], width], dim=1))
    # sorted by number, so that a mover keeps its column from frame to frame; absent ones come last
    ids, place = order.masked_fill(distance.isinf(), away.shape[1]).sort(dim=1)
    found = crowd[index[:, None], order.gather(1, place)]
    ids = ids.masked_fill(ids == away.shape[1], -1)
    pos = (found * unit).round().clamp(-32767, 32767).masked_fill((ids < 0)[..., None], 0.0)
    return {"mover": mover, "crowd": pos.to(torch.int16), "crowd_id": ids.to(torch.int16)}
