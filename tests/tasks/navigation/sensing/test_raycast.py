"""LiDAR against a brute-force reference: every ray against every box, the ground and every moving obstacle.

The reference is float64 NumPy and shares nothing with the simulator: it takes footprints, heights and positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv

RANGE = 4.0
TOLERANCE_M = 1e-4
MakeEnv = Callable[..., NavigationEnv]


# ---- the reference -------------------------------------------------------------------------------------------------


@dataclass
class Rays:
    """R rays with a common origin: unit directions from azimuths and elevations, in radians."""

    origin: np.ndarray  # [3]
    direction: np.ndarray  # [R, 3]


def make_rays(origin: np.ndarray, yaw: float, azimuths: int, elevations_deg: list[float]) -> Rays:
    """Beams (h, v) in the order of the observation: azimuth yaw + h turns / azimuths, counter-clockwise."""
    around = yaw + 2 * np.pi * np.arange(azimuths)[:, None] / azimuths
    up = np.radians(np.asarray(elevations_deg, dtype=np.float64))[None]
    parts = [np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.broadcast_to(np.sin(up), (azimuths, up.size))]
    return Rays(origin.astype(np.float64), np.stack(parts, -1).reshape(-1, 3))


def slabs(rays: Rays, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """[R, B] distance to axis-aligned boxes [B, 3]; infinite when missed, zero from inside."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t0 = (low[None] - rays.origin) / rays.direction[:, None]
        t1 = (high[None] - rays.origin) / rays.direction[:, None]
    inside = (rays.origin >= low) & (rays.origin <= high)
    parallel = np.broadcast_to(rays.direction[:, None] == 0, t0.shape)
    near = np.where(parallel, np.where(inside, -np.inf, np.inf), np.minimum(t0, t1)).max(-1)
    far = np.where(parallel, np.where(inside, np.inf, -np.inf), np.maximum(t0, t1)).min(-1)
    return np.where((near <= far) & (far >= 0), np.maximum(near, 0), np.inf)


def ground(rays: Rays) -> np.ndarray:
    """[R] distance to z = 0, which exists within ±25 m only."""
    down = rays.direction[:, 2] < 0
    t = np.where(down, rays.origin[2] / -np.where(down, rays.direction[:, 2], -1.0), np.inf)
    point = rays.origin[:2] + np.where(np.isfinite(t), t, 0.0)[:, None] * rays.direction[:, :2]
    return np.where(down & (np.abs(point) < 25).all(-1), np.maximum(t, 0), np.inf)


def cylinders(rays: Rays, centre: np.ndarray, radius: np.ndarray, half: float) -> np.ndarray:
    """[R, C] distance to upright cylinders: the circle's chord cut by the two planes."""
    offset = rays.origin[:2] - centre[:, :2]
    flat = rays.direction[:, None, :2]
    a = (flat**2).sum(-1)
    b = (flat * offset[None]).sum(-1)
    root = b**2 - a * ((offset**2).sum(-1) - radius**2)
    chord = np.sqrt(np.maximum(root, 0))
    near, far = (-b - chord) / a, (-b + chord) / a
    level = rays.origin[2] - centre[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        t0, t1 = (-half - level) / rays.direction[:, 2:], (half - level) / rays.direction[:, 2:]
    flat_ray = np.broadcast_to(rays.direction[:, 2:] == 0, near.shape)
    between = np.broadcast_to(np.abs(level) <= half, near.shape)
    enter = np.where(flat_ray, np.where(between, -np.inf, np.inf), np.minimum(t0, t1))
    leave = np.where(flat_ray, np.where(between, np.inf, -np.inf), np.maximum(t0, t1))
    near, far = np.maximum(near, enter), np.minimum(far, leave)
    return np.where((root >= 0) & (near <= far) & (far >= 0), np.maximum(near, 0), np.inf)


def columns_of(boxes: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corners [B, 3] in metres of footprints in cells of 0.1 m from (-20, -20); columns reach below the ground."""
    low = np.column_stack([boxes[:, :2] * 0.1 - 20.0, np.full(len(boxes), -1e3)])
    return low, np.column_stack([boxes[:, 2:] * 0.1 - 20.0, heights.astype(np.float64)])


def movers_of(pos: np.ndarray, rays: Rays) -> np.ndarray:
    """[R] distance to the nearest moving obstacle: kinds 0-3 of every eight are boxes, 4-7 cylinders."""
    j = np.arange(len(pos))
    width = 0.25 * (j % 4 + 1)
    box = j % 8 < 4
    half = np.column_stack([width / 2, width / 2, np.full(len(pos), 0.5)])
    cubes = slabs(rays, (pos - half)[box], (pos + half)[box]).min(-1, initial=np.inf)
    return np.minimum(cubes, cylinders(rays, pos[~box], width[~box] / 2, 2.5).min(-1, initial=np.inf))


# ---- the simulator -------------------------------------------------------------------------------------------------


@pytest.fixture
def make_env() -> Iterator[MakeEnv]:
    made: list[NavigationEnv] = []

    def make(**settings: object) -> NavigationEnv:
        cfg = NavigationConfig(**{"num_envs": 200, "num_maps": 4, "moving_obstacles": 0, **settings})
        made.append(NavigationEnv(cfg, seed=8))
        return made[-1]

    yield make
    for env in made:
        env.close()


def place(env: NavigationEnv, rng: np.random.Generator, pos: np.ndarray | None = None, tilt: float = 0.3) -> np.ndarray:
    """Put drones at positions, with any yaw and some tilt, on the maps in turn. Returns the yaws."""
    n = env.num_envs
    env.reset()
    if pos is None:
        pos = np.column_stack([rng.uniform(-23, 23, (n, 2)), rng.uniform(0.2, 4.0, n)])
    roll, pitch, yaw = rng.uniform(-tilt, tilt, n), rng.uniform(-tilt, tilt, n), rng.uniform(-np.pi, np.pi, n)
    (cr, cp, cy), (sr, sp, sy) = (f(np.stack([roll, pitch, yaw]) / 2) for f in (np.cos, np.sin))
    quat = [
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    ]
    env.state["pos"].copy_(torch.as_tensor(pos))
    env.state["quat"].copy_(torch.as_tensor(np.stack(quat, -1)))
    env.state["slot"].copy_(torch.arange(n) % env.cfg.num_maps)
    return yaw


def look(env: NavigationEnv) -> np.ndarray:
    """[N, H * V] distances that the env observes, without beginning an episode."""
    no_env = torch.zeros(env.num_envs, dtype=torch.bool)
    lidar = env.reset(env_mask=no_env)["obs"]["lidar"]
    return env.cfg.lidar_range_m - lidar.flatten(1).numpy().astype(np.float64)


def expected(env: NavigationEnv, yaw: np.ndarray, ignore_columns: bool = False, lift: float = 0.0) -> np.ndarray:
    """[N, H * V] distances by brute force, with the drones `lift` m higher."""
    cfg, rows = env.cfg, []
    reach = cfg.lidar_range_m
    for i in range(env.num_envs):
        slot = int(env.state["slot"][i])
        origin = env.state["pos"][i].double().numpy() + np.array([0.0, 0.0, lift])
        rays = make_rays(origin, yaw[i], cfg.lidar_azimuths, cfg.lidar_elevations_deg)
        hit = ground(rays)
        if not ignore_columns:
            low, high = columns_of(env.bank.boxes[slot].numpy(), env.bank.heights[slot].numpy())
            away = np.maximum(low[:, :2] - rays.origin[:2], rays.origin[:2] - high[:, :2])
            near = (away < reach).all(-1) & (high > low).all(-1)  # saves time, and leaves out empty boxes
            hit = np.minimum(hit, slabs(rays, low[near], high[near]).min(-1, initial=np.inf))
        if cfg.lidar_sees_movers:
            hit = np.minimum(hit, movers_of(env.bank.tensors["trail"][-1, slot].numpy().astype(np.float64), rays))
        rows.append(np.minimum(hit, reach))
    return np.stack(rows)


def check(ours: np.ndarray, theirs: np.ndarray, hits: float) -> None:
    """At least 99.9 % of the rays agree (float32 may decide a grazed edge otherwise), and enough of them hit."""
    assert (theirs < RANGE).mean() > hits
    assert (np.abs(ours - theirs) < TOLERANCE_M).mean() >= 0.999


# ---- claims --------------------------------------------------------------------------------------------------------


def test_lidar_equals_brute_force_over_maps_positions_and_yaws(make_env: MakeEnv) -> None:
    env = make_env()
    yaw = place(env, np.random.default_rng(1))
    ours = look(env)
    assert ours.size >= 20_000
    check(ours, expected(env, yaw), hits=0.25)


@pytest.mark.parametrize("elevations", [[-85.0, -60.0, -33.0, -3.0, 0.5, 45.0, 88.0], [15.0]])
def test_lidar_equals_brute_force_at_any_number_and_steepness_of_elevations(
    make_env: MakeEnv, elevations: list[float]
) -> None:
    env = make_env(lidar_elevations_deg=elevations, lidar_azimuths=77)
    yaw = place(env, np.random.default_rng(2))
    check(look(env), expected(env, yaw), hits=0.02)


def test_lidar_equals_brute_force_at_the_rim_of_the_map_and_beyond_it(make_env: MakeEnv) -> None:
    env = make_env()
    rng = np.random.default_rng(3)
    rim = np.column_stack([rng.uniform(21, 28, 200) * rng.choice([-1, 1], 200), rng.uniform(-28, 28, 200)])
    rim[::2] = rim[::2, ::-1]  # all four sides
    pos = np.column_stack([rim, rng.uniform(0.2, 0.6, 200)])
    yaw = place(env, rng, pos)
    check(look(env), expected(env, yaw), hits=0.02)


def test_lidar_equals_brute_force_close_to_columns_and_above_their_tops(make_env: MakeEnv) -> None:
    env = make_env()
    rng = np.random.default_rng(4)
    boxes, heights = env.bank.boxes.numpy(), env.bank.heights.numpy()
    slot, pick = np.arange(200) % env.cfg.num_maps, rng.integers(0, 350, 200)
    box, top = boxes[slot, pick], heights[slot, pick]
    centre = (box[:, :2] + box[:, 2:]) / 2 * 0.1 - 20
    aside = np.column_stack([centre + rng.uniform(-1, 1, (200, 2)), top + rng.uniform(-0.5, 0.5, 200)])
    yaw = place(env, rng, aside)
    check(look(env), expected(env, yaw), hits=0.2)


def test_beams_along_the_axes_equal_brute_force(make_env: MakeEnv) -> None:
    """Yaw 0: with 36 azimuths the cosine or sine of some beams is zero, or next to it."""
    env = make_env()
    place(env, np.random.default_rng(5), tilt=0.0)
    env.state["quat"].copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(200, 4))
    check(look(env), expected(env, np.zeros(200)), hits=0.25)


def test_a_reference_without_columns_disagrees(make_env: MakeEnv) -> None:
    """That the comparison can fail: most of what is hit is columns."""
    env = make_env()
    yaw = place(env, np.random.default_rng(1))
    bare = expected(env, yaw, ignore_columns=True)
    assert (np.abs(look(env) - bare) < TOLERANCE_M).mean() < 0.9


def test_where_boxes_overlap_the_taller_one_stops_the_beam(make_env: MakeEnv) -> None:
    env = make_env(num_maps=1, num_envs=1, static_obstacles=2, lidar_elevations_deg=[0.0, 10.0])
    # footprints in cells: a low box that begins nearer, a tall one behind and partly inside it
    env.bank.boxes[0] = torch.tensor([[200, 197, 207, 204], [204, 197, 211, 204]])
    rng = np.random.default_rng(0)
    for heights in ([1.5, 4.0], [4.0, 1.5]):
        env.bank.heights[0] = torch.tensor(heights)
        env.bank.draw_boxes(np.arange(1))
        place(env, rng, np.array([[-1.05, 0.05, 2.0]]), tilt=0.0)
        env.state["quat"][0] = torch.tensor([0.0, 0.0, 0.0, 1.0])
        ahead = look(env).reshape(36, 2)[0]
        front = 0.4 if heights[0] < 2.0 else 0.0  # the low box is flown over; the tall one begins 0.4 m later
        assert ahead[0] == pytest.approx(1.05 + front, abs=TOLERANCE_M)
        assert ahead[1] == pytest.approx((1.05 + front) / np.cos(np.radians(10)), abs=TOLERANCE_M)


def test_lidar_that_sees_movers_equals_analytic_boxes_and_cylinders(make_env: MakeEnv) -> None:
    env = make_env(static_obstacles=0, moving_obstacles=80, lidar_sees_movers=True)
    yaw = place(env, np.random.default_rng(6))
    check(look(env), expected(env, yaw), hits=0.07)


def test_lidar_sees_movers_and_columns_together_from_close_by_and_inside(make_env: MakeEnv) -> None:
    env = make_env(moving_obstacles=80, lidar_sees_movers=True)
    rng = np.random.default_rng(7)
    movers = env.bank.tensors["trail"][-1].numpy()[np.arange(200) % 4, rng.integers(0, 80, 200)]
    near = movers + rng.uniform(-1, 1, (200, 3)) * [1.2, 1.2, 1.0]
    near[:, 2] = np.clip(near[:, 2], 0.2, 4.0)
    yaw = place(env, rng, near)
    distances = expected(env, yaw)
    assert (distances == 0).all(-1).any()  # some drones are inside an obstacle
    check(look(env), distances, hits=0.4)


def test_lidar_sees_the_tops_of_movers_from_above(make_env: MakeEnv) -> None:
    steep = [-80.0, -60.0, -40.0, -20.0, 30.0]
    env = make_env(static_obstacles=0, moving_obstacles=80, lidar_sees_movers=True, lidar_elevations_deg=steep)
    rng = np.random.default_rng(9)
    movers = env.bank.tensors["trail"][-1].numpy()[np.arange(200) % 4, rng.integers(0, 80, 200)]
    above = movers + np.column_stack([rng.uniform(-0.7, 0.7, (200, 2)), rng.uniform(0.3, 4.5, 200)])
    yaw = place(env, rng, above)
    check(look(env), expected(env, yaw), hits=0.2)


def test_lidar_does_not_see_movers_unless_asked(make_env: MakeEnv) -> None:
    env = make_env(static_obstacles=0, moving_obstacles=80)
    yaw = place(env, np.random.default_rng(6))
    check(look(env), expected(env, yaw), hits=0.02)
