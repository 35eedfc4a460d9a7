"""LiDAR in object order: every beam against brute force (float64 NumPy of `test_raycast`), and the buckets of columns."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import Layout, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.columns import BUCKETS, LONG_M
from tests.tasks.navigation.sensing.test_raycast import expected, look, place

DRONES = 120
TOLERANCE_M = 1e-4
HAIR = 2e-5  # rad and m: how far off float32 may be where a beam grazes an edge or a top
WALLS = {"starts": Starts.crossing, "walls": True}
ARENA = {"layout": Layout.arena, "starts": Starts.lane, "static_obstacles": 60}
Make = Callable[..., NavigationEnv]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[NavigationEnv] = []

    def make_env(**settings: Any) -> NavigationEnv:
        small = {"num_envs": DRONES, "num_maps": 4, "moving_obstacles": 0}
        made.append(NavigationEnv(NavigationConfig(**(small | settings)), seed=11, num_threads=1))
        return made[-1]

    yield make_env
    for env in made:
        env.close()


def check_every_beam(env: NavigationEnv, yaw: np.ndarray, hits: float) -> None:
    """Every beam is as long as the reference's, or between those of references turned or lifted by a hair."""
    ours = look(env)
    variants = [(0.0, 0.0), (HAIR, 0.0), (-HAIR, 0.0), (0.0, HAIR), (0.0, -HAIR)]
    theirs = np.stack([expected(env, yaw + turn, lift=lift) for turn, lift in variants])
    assert (theirs[0] < env.cfg.lidar_range_m).mean() > hits
    wrong = (ours < theirs.min(0) - TOLERANCE_M) | (ours > theirs.max(0) + TOLERANCE_M)
    assert not wrong.any(), (np.argwhere(wrong)[:5], ours[wrong][:5], theirs[0][wrong][:5])


def boxes_m(env: NavigationEnv) -> tuple[np.ndarray, np.ndarray]:
    """Footprints [K, B, 4], m, and heights [K, B] of all maps."""
    return env.bank.boxes.numpy() * 0.1 - 20.0, env.bank.heights.numpy()


def beside_boxes(env: NavigationEnv, rng: np.random.Generator, chosen: slice, apart: float) -> np.ndarray:
    """Positions up to `apart` m from the corners of random boxes among the chosen ones, at heights around their tops."""
    boxes, tops = boxes_m(env)
    slot = np.arange(env.num_envs) % env.cfg.num_maps
    pick = rng.choice(np.arange(boxes.shape[1])[chosen], env.num_envs)
    corner = boxes[slot, pick][:, [[0, 1], [0, 3], [2, 1], [2, 3]]][
        np.arange(env.num_envs), rng.integers(0, 4, env.num_envs)
    ]
    level = np.clip(tops[slot, pick] + rng.uniform(-0.4, 0.4, env.num_envs), 0.2, None)
    return np.column_stack([corner + rng.uniform(-apart, apart, (env.num_envs, 2)), level])


@pytest.mark.parametrize("settings", [{}, WALLS, ARENA, {"static_obstacles": 0}, {"lidar_range_m": 11.0}])
def test_every_beam_equals_brute_force_anywhere_on_the_map(make: Make, settings: dict[str, Any]) -> None:
    env = make(**settings)
    assert env.scans_objects
    rng = np.random.default_rng(1)
    spread = (6.0, 17.0) if settings is ARENA else (24.9, 24.9)
    pos = np.column_stack([rng.uniform(-1, 1, (DRONES, 2)) * spread, rng.uniform(0.2, 4.0, DRONES)])
    check_every_beam(env, place(env, rng, pos), hits=0.01)


@pytest.mark.parametrize("apart", [0.02, 0.6])
def test_every_beam_equals_brute_force_inside_boxes_at_their_corners_and_over_their_tops(
    make: Make, apart: float
) -> None:
    env = make(lidar_elevations_deg=[-60.0, -10.0, 0.0, 10.0, 45.0], lidar_azimuths=77)
    rng = np.random.default_rng(2)
    check_every_beam(env, place(env, rng, beside_boxes(env, rng, slice(None), apart)), hits=0.2)


def test_every_beam_equals_brute_force_beside_and_above_walls(make: Make) -> None:
    env = make(**WALLS, lidar_elevations_deg=[-45.0, -10.0, 0.0, 20.0])
    rng = np.random.default_rng(3)
    pos = beside_boxes(env, rng, slice(-2, None), apart=0.5)
    boxes, tops = boxes_m(env)
    slot = np.arange(DRONES) % env.cfg.num_maps
    along = rng.uniform(boxes[slot, -1, :2], boxes[slot, -1, 2:])  # over and inside the wall, anywhere
    pos[::2, :2] = along[::2]
    pos[::4, 2] = tops[slot, -1][::4] + 0.3
    pos[:, :2] = pos[:, :2].clip(-24.9, 24.9)
    check_every_beam(env, place(env, rng, pos), hits=0.2)


def test_beams_along_the_axes_equal_brute_force_from_any_side(make: Make) -> None:
    """Drones look along x or y, in line with the middles of boxes: some beams are parallel to sides."""
    env = make()
    rng = np.random.default_rng(4)
    boxes, _ = boxes_m(env)
    middle = boxes[np.arange(DRONES) % 4, rng.integers(0, 350, DRONES)].reshape(-1, 2, 2).mean(1)
    quarter = rng.integers(0, 4, DRONES)
    ahead = np.column_stack([np.cos(quarter * np.pi / 2), np.sin(quarter * np.pi / 2)])
    place(env, rng, np.column_stack([middle - 1.5 * ahead, rng.uniform(0.5, 1.0, DRONES)]), tilt=0.0)
    half = torch.as_tensor(quarter * np.pi / 4)
    zero = torch.zeros_like(half)
    env.state["quat"].copy_(torch.stack([zero, zero, half.sin(), half.cos()], 1))
    check_every_beam(env, quarter * np.pi / 2, hits=0.3)


def test_every_beam_equals_brute_force_under_floating_boxes_and_among_columns(make: Make) -> None:
    env = make(moving_obstacles=80, lidar_sees_movers=True, lidar_elevations_deg=[-20.0, 0.0, 40.0, 70.0, 88.0])
    rng = np.random.default_rng(5)
    floating = 8 * rng.integers(0, 10, DRONES) + rng.integers(0, 4, DRONES)
    movers = env.bank.tensors["trail"][-1].numpy()[np.arange(DRONES) % 4, floating]
    below = movers - np.column_stack([rng.uniform(-0.3, 0.3, (DRONES, 2)), rng.uniform(0.2, 2.5, DRONES)])
    below[:, 2] = np.maximum(below[:, 2], 0.2)
    check_every_beam(env, place(env, rng, below), hits=0.3)


def test_the_walk_over_the_grid_and_the_object_order_agree(make: Make) -> None:
    env = make()
    place(env, np.random.default_rng(6))
    boxes = look(env)
    env.scans_objects = False
    env._bindings.clear()
    differ = np.abs(look(env) - boxes) > TOLERANCE_M
    assert differ.mean() < 2e-4  # beams that graze an edge
    assert (boxes < env.cfg.lidar_range_m).mean() > 0.2


def test_drones_off_the_map_see_no_columns_as_on_the_grid(make: Make) -> None:
    env = make(**WALLS)  # walls reach the edge of the map
    rng = np.random.default_rng(7)
    _, tops = boxes_m(env)
    edge = rng.choice([-1.0, 1.0], (DRONES, 1)) * np.where(
        np.arange(DRONES)[:, None] % 2 == 0, [[25.2, 20.0]], [[20.0, 25.2]]
    )
    place(env, rng, np.column_stack([edge, np.full(DRONES, tops.max() - 3.0)]))
    assert (look(env) == env.cfg.lidar_range_m).all()


def test_a_beam_that_misses_a_box_is_found(make: Make) -> None:
    """That the comparison can fail: a box moved by 1 mm is noticed."""
    env = make()
    yaw = place(env, np.random.default_rng(1))
    env.bank.columns["edges"] += 1e-3
    with pytest.raises(AssertionError):
        check_every_beam(env, yaw, hits=0.1)


@pytest.mark.parametrize("settings", [{}, WALLS, ARENA])
def test_every_box_is_once_in_the_bucket_of_its_corner(make: Make, settings: dict[str, Any]) -> None:
    env = make(**settings)
    columns = {name: tensor.double().numpy() for name, tensor in env.bank.columns.items()}
    boxes, tops = boxes_m(env)
    for slot in range(4):
        real = (boxes[slot, :, 2:] > boxes[slot, :, :2] + 1e-6).all(1)
        first = columns["first"][slot].astype(int)
        assert first[0] == 0
        assert first[-1] == real.sum()
        edges, heights = columns["edges"][slot, : first[-1]], columns["tops"][slot, : first[-1]]
        ours = np.column_stack([edges, heights])
        theirs = np.column_stack([boxes[slot], tops[slot]])[real]
        assert np.allclose(ours[np.lexsort(ours.round(2).T)], theirs[np.lexsort(theirs.round(2).T)], atol=1e-4)
        for bucket in range(BUCKETS):
            inside = edges[first[bucket] : first[bucket + 1]]
            long = (inside[:, 2:] - inside[:, :2]).max(1, initial=0.0) > LONG_M + 1e-3
            assert long.all() if bucket == BUCKETS - 1 else not long.any()
            corner = np.floor((inside[:, :2] + 25.0 + 1e-3) / 2.5).astype(int)
            assert bucket == BUCKETS - 1 or (corner @ [20, 1] == bucket).all()
    assert (env.bank.columns["first"][:, -1] > env.bank.columns["first"][:, -2]).all() == bool(
        settings
    )  # walls are long
