"""One room from files of four kinds: load it, train in it, evaluate the run in it, and show the flights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fledge.cli import main
from fledge.tasks.navigation.worlds.world import load_world
from tests.tasks.navigation.worlds.rooms import box, centres, write_octomap

SHAPE = (60, 50, 26)  # 6.0 x 5.0 x 2.6 m at 0.1 m
PILLAR = (slice(38, 42), slice(23, 27))  # 0.4 x 0.4 m, off the middle
EPISODES = 6


def room() -> np.ndarray:
    """Return floor, walls and a pillar, [60, 50, 26] bool."""
    solid = np.zeros(SHAPE, bool)
    solid[:, :, 0] = True
    solid[[0, -1]] = True
    solid[:, [0, -1]] = True
    solid[PILLAR] = True
    return solid


def write_mesh(folder: Path) -> Path:
    trimesh = pytest.importorskip("trimesh")
    triangles = np.concatenate([box((0.05, 0.05, 0.05), (5.95, 4.95, 2.7)), box((3.81, 2.31, 0.05), (4.19, 2.69, 2.6))])
    open_above = triangles[~(triangles[..., 2] == 2.7).all(axis=1)]
    trimesh.Trimesh(open_above.reshape(-1, 3), np.arange(3 * len(open_above)).reshape(-1, 3), process=False).export(
        folder / "room.stl"
    )
    return folder / "room.stl"


def write_cloud(folder: Path) -> Path:
    xyz = centres(room()).astype("<f4")
    head = f"VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH {len(xyz)}\nHEIGHT 1\n"
    head += f"VIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(xyz)}\nDATA binary\n"
    (folder / "room.pcd").write_bytes(head.encode() + xyz.tobytes())
    return folder / "room.pcd"


def write_ros_map(folder: Path) -> Path:
    Image.fromarray(np.where(room()[:, :, 5], 0, 254).astype(np.uint8).T[::-1]).save(folder / "room.pgm")
    about = "image: room.pgm\nresolution: 0.1\norigin: [0.0, 0.0, 0.0]\nnegate: 0\noccupied_thresh: 0.65\nfree_thresh: 0.196\n"
    (folder / "room.yaml").write_text(about)
    return folder / "room.yaml"


def write_tree(folder: Path) -> Path:
    return write_octomap(folder / "room.bt", room(), 0.1)


KINDS = {"mesh": write_mesh, "cloud": write_cloud, "octomap": write_tree, "ros map": write_ros_map}
SMALL = [
    "env.num_envs=4",
    "env.num_maps=1",
    "env.moving_obstacles=3",
    "env.decimation=5",
    "policy.hidden=[8]",
    "ppo.rollout_steps=4",
    "ppo.minibatch=16",
    "total_frames=32",
    "tensorboard=false",
    "ranks=1",
]


def call(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.stdout


def covers(boxes: np.ndarray, point: tuple[float, float, float]) -> bool:
    centre, size = boxes[:, :3], boxes[:, 3:]
    return bool((np.abs(centre - point) <= size / 2).all(axis=1).any())


@pytest.mark.parametrize(
    "kind", [kind if kind == "ros map" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_policy_trains_flies_and_is_shown_in_a_room_from_a_file(tmp_path: Path, kind: str) -> None:
    file = KINDS[kind](tmp_path)
    loaded = load_world(file)
    assert loaded.solid[38, 23:27, 5].all()  # a side of the pillar
    assert not loaded.solid[10:30, 10:40, 5:20].any()
    assert (loaded.triangles is not None) == (kind == "mesh")

    run, flights = tmp_path / "run", tmp_path / "flights.frec"
    call("train", "navigation", f"env.world={file}", *SMALL, "--folder", str(run))
    flown = [f"env.num_envs={EPISODES}", "env.num_maps=1", "env.max_episode_steps=300", "--episodes", str(EPISODES)]
    drawn = ["--picture", str(tmp_path / "flights.png"), "--record", str(flights)]
    row = json.loads(call("eval", str(run), *flown, *drawn, "--json"))
    assert row["episodes"] == EPISODES
    assert (tmp_path / "flights.png").read_bytes()[:4] == b"\x89PNG"

    shown = json.loads(call("replay", str(flights), "--json", "--episode", "0"))
    boxes = np.array(shown["arrays"]["stage/boxes"], float)
    assert covers(boxes, (0.85, 0.0, 1.0))  # the pillar; the world's middle is at x = y = 0
    assert covers(boxes, (-2.95, 0.0, 1.0))
    assert covers(boxes, (0.0, 2.45, 1.0))
    assert not covers(boxes, (-1.0, 0.0, 1.0))
    drone = shown["arrays"][shown["actors"][0]["pos"]]
    assert len(drone) > 5
    assert not any(covers(boxes, tuple(point)) for point in drone)
