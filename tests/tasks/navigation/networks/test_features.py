"""Features against the geometry they describe: scenes in metres, observed as the specification says, one drone at a time.

The second implementation never reads an observation. It knows where things are, and finds the closest approach by search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fledge.tasks.navigation.networks.feature_policy import navigation_features, num_features, obstacle_features

Vec = tuple[float, float, float]
MOTION = ("dx", "dy", "dz", "vx", "vy", "vz")
OBSTACLE = (*MOTION, "gap", "closeness", "time", "miss", "clearance", "width", "box", "present")
SKIN_M = 0.3
HORIZON_S = 4.0


@dataclass
class Mover:
    """A moving obstacle, seen from the drone, goal frame. `at` is its centre for a box; a cylinder has no `at[2]`."""

    at: Vec
    vel: Vec = (0.0, 0.0, 0.0)
    width: float = 0.5
    box: bool = True


@dataclass
class Scene:
    """Surroundings of one drone, in metres and goal frame. A mover that is None is a slot without an obstacle."""

    goal: Vec = (10.0, 0.0, 0.0)
    vel: Vec = (0.0, 0.0, 0.0)
    beams: np.ndarray = field(default_factory=lambda: np.full((2, 2), np.inf))  # distance to what is hit
    movers: list[Mover | None] = field(default_factory=lambda: [None] * 5)


def unit(v: Vec) -> Vec:
    length = math.hypot(*v)
    return (v[0] / length, v[1] / length, v[2] / length) if length else (0.0, 0.0, 0.0)


def observe(scenes: list[Scene], range_m: float) -> dict[str, Tensor]:
    """The observation of each drone, laid out as the specification's section "Observation" says."""
    state, lidar, obstacles = [], [], []
    for s in scenes:
        state.append([*unit(s.goal), math.hypot(s.goal[0], s.goal[1]), s.goal[2], *s.vel])
        lidar.append([[[range_m - min(d, range_m) for d in column] for column in s.beams]])
        rows = []
        for m in s.movers:
            if m is None:
                rows.append([0.0] * 10)
                continue
            at = m.at if m.box else (m.at[0], m.at[1], 0.0)
            width_class = {0.25: 0, 0.5: 1, 0.75: 2, 1.0: 3}[m.width]
            rows.append([*unit(at), math.hypot(at[0], at[1]), at[2], *m.vel, width_class, 1.0 if m.box else 0.0])
        obstacles.append([rows])
    lists = {"state": state, "lidar": lidar, "dynamic_obstacle": obstacles}
    return {name: torch.tensor(rows, dtype=torch.float32) for name, rows in lists.items()}


def closest_approach(at: Vec, speed: Vec) -> tuple[float, float]:
    """When within the horizon, and how near, a point comes to the origin of the ground plane: by search."""

    def away(t: float) -> float:
        return math.hypot(at[0] + speed[0] * t, at[1] + speed[1] * t)

    low, high = 0.0, HORIZON_S
    if speed[0] == speed[1] == 0.0:
        return 0.0, away(0.0)
    for _ in range(120):  # the distance is convex in time
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if away(a) <= away(b):
            high = b
        else:
            low = a
    return low, away(low)


def features_of_mover(m: Mover, own_vel: Vec, range_m: float) -> list[float]:
    at = m.at if m.box else (m.at[0], m.at[1], 0.0)
    relative = (m.vel[0] - own_vel[0], m.vel[1] - own_vel[1], m.vel[2] - own_vel[2])
    touching = m.width / 2 + SKIN_M  # horizontal distance of the centres when the surfaces meet
    gap = math.hypot(at[0], at[1]) - touching
    when, miss = closest_approach(at, relative)
    clearance = abs(at[2]) - 1.0 / 2 - SKIN_M if m.box else 0.0  # boxes are 1 m high
    return [
        *(x / range_m for x in at),
        *(x / 2.0 for x in relative),
        gap / range_m,
        math.log(range_m / max(gap, 0.05)) / 4.0,
        when / HORIZON_S,
        (miss - touching) / 2.0,
        clearance,
        m.width,
        float(m.box),
        1.0,
    ]


def features_of_drone(s: Scene, range_m: float) -> list[float]:
    flat = math.hypot(s.goal[0], s.goal[1])
    out = [*unit(s.goal), flat / 20.0, min(flat / range_m, 1.0), s.goal[2], *(v / 2.0 for v in s.vel)]
    for d in s.beams.ravel():
        distance = min(max(d, 0.1), range_m)
        out.append(math.log(range_m / distance) / math.log(range_m / SKIN_M))
    for m in s.movers:
        out += [0.0] * 14 if m is None else features_of_mover(m, s.vel, range_m)
    return out


def random_scene(rng: np.random.Generator, range_m: float, lidar: tuple[int, int], movers: int) -> Scene:
    def vec(scale: float) -> Vec:
        x, y, z = rng.uniform(-scale, scale, 3)
        return float(x), float(y), float(z)

    beams = rng.uniform(0.0, 1.5 * range_m, lidar)  # a third are free
    beams.flat[rng.integers(beams.size)] = SKIN_M
    beams.flat[rng.integers(beams.size)] = 0.01
    scene = Scene(goal=vec(30.0), vel=vec(2.0), beams=beams, movers=[])
    for _ in range(movers):
        bearing, flat = rng.uniform(-math.pi, math.pi), rng.uniform(0.05, range_m)
        at = (flat * math.cos(bearing), flat * math.sin(bearing), float(rng.uniform(-2, 2)))
        width = float(rng.choice([0.25, 0.5, 0.75, 1.0]))
        vel = scene.vel if rng.random() < 0.1 else vec(1.5)
        mover = Mover(at, vel, width, bool(rng.random() < 0.5))
        scene.movers.append(None if rng.random() < 0.3 else mover)
    return scene


@pytest.mark.parametrize(
    ("range_m", "lidar", "movers"), [(4.0, (36, 4), 5), (6.0, (36, 4), 5), (6.0, (12, 1), 5), (2.5, (7, 3), 2)]
)
@pytest.mark.parametrize("seed", range(3))
def test_features_are_those_of_the_geometry_drone_by_drone(
    seed: int, range_m: float, lidar: tuple[int, int], movers: int
) -> None:
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, range_m, lidar, movers) for _ in range(40)]
    got = navigation_features(observe(scenes, range_m), range_m)
    assert got.dtype == torch.float32
    assert got.shape == (40, num_features(lidar[0] * lidar[1], movers))
    for k, scene in enumerate(scenes):
        want = torch.tensor(features_of_drone(scene, range_m))
        torch.testing.assert_close(got[k], want, rtol=1e-4, atol=1e-4, msg=lambda m, k=k: f"drone {k}: {m}")


def test_the_range_is_4_m_unless_given() -> None:
    obs = observe([random_scene(np.random.default_rng(5), 4.0, (6, 2), 5)], 4.0)
    assert torch.equal(navigation_features(obs), navigation_features(obs, 4.0))
    assert not torch.equal(navigation_features(obs), navigation_features(obs, 6.0))


def test_observations_stay_as_they_were() -> None:
    obs = observe([random_scene(np.random.default_rng(5), 4.0, (6, 2), 5)], 4.0)
    before = {name: t.clone() for name, t in obs.items()}
    navigation_features(obs)
    assert all(torch.equal(obs[name], before[name]) for name in obs)


@pytest.mark.parametrize("range_m", [4.0, 6.0])
def test_a_free_beam_is_0_one_at_the_skin_is_1_and_nearer_than_10_cm_does_not_grow(range_m: float) -> None:
    beams = np.array([[np.inf, range_m, SKIN_M], [0.1, 0.05, 0.0]])
    got = navigation_features(observe([Scene(beams=beams)], range_m), range_m)[0, 9:15].tolist()
    most = math.log(range_m / 0.1) / math.log(range_m / SKIN_M)
    assert got == pytest.approx([0.0, 0.0, 1.0, most, most, most], abs=1e-5)


def test_a_drone_with_nothing_around_has_only_its_own_nine_features() -> None:
    scene = Scene(goal=(3.0, 4.0, -1.5), vel=(2.0, -1.0, 0.5))
    got = navigation_features(observe([scene], 4.0))[0]
    slant = math.sqrt(3**2 + 4**2 + 1.5**2)
    assert got[:3].tolist() == pytest.approx([3 / slant, 4 / slant, -1.5 / slant])
    assert got[3:9].tolist() == pytest.approx([0.25, 1.0, -1.5, 1.0, -0.5, 0.25])
    assert torch.count_nonzero(got[9:]) == 0


@pytest.mark.parametrize(("distance", "near"), [(0.0, 0.0), (1.0, 0.25), (4.0, 1.0), (5.0, 1.0)])
def test_the_near_distance_grows_up_to_the_range_and_is_0_at_the_goal(distance: float, near: float) -> None:
    got = navigation_features(observe([Scene(goal=(distance, 0.0, 0.0))], 4.0))[0]
    assert got[:6].tolist() == pytest.approx([float(distance > 0), 0.0, 0.0, distance / 20, near, 0.0])
    assert torch.isfinite(got).all()


def seen(mover: Mover, vel: Vec = (0.0, 0.0, 0.0), range_m: float = 4.0) -> dict[str, float]:
    """Features of a single mover, by name."""
    scene = Scene(vel=vel, movers=[mover])
    got = navigation_features(observe([scene], range_m), range_m)[0, 9 + 4 :]
    return dict(zip(OBSTACLE, got.tolist(), strict=True))


def test_a_head_on_meeting_by_hand() -> None:
    """3 m ahead, closing at 1 + 1 m/s: the centres meet in 1.5 s, and the surfaces overlap by 0.25 + 0.3 m then."""
    got = seen(Mover((3.0, 0.0, 0.0), vel=(-1.0, 0.0, 0.2), width=0.5), vel=(1.0, 0.0, -0.2))
    want = dict.fromkeys(OBSTACLE, 0.0) | {"dx": 0.75, "vx": -1.0, "vz": 0.2, "gap": 2.45 / 4, "time": 1.5 / 4}
    want |= {"closeness": math.log(4 / 2.45) / 4, "miss": -0.55 / 2, "clearance": -0.8}
    want |= {"width": 0.5, "box": 1.0, "present": 1.0}
    assert got == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("vel", [(0.0, 0.0, 0.0), (1.7, -0.4, 0.3)])
def test_a_mover_that_keeps_its_place_beside_the_drone_is_closest_now(vel: Vec) -> None:
    got = seen(Mover((1.2, 0.9, 0.0), vel=vel, width=1.0), vel=vel)  # 1.5 m away
    assert (got["vx"], got["vy"], got["vz"], got["time"]) == (0.0, 0.0, 0.0, 0.0)
    assert got["miss"] * 2 == pytest.approx(1.5 - 0.8, abs=1e-6)
    assert got["gap"] * 4 == pytest.approx(1.5 - 0.8, abs=1e-6)


def test_a_mover_flying_away_is_closest_now() -> None:
    got = seen(Mover((2.0, 0.0, 0.0), vel=(1.0, 0.5, 0.0)))
    assert got["time"] == 0.0
    assert got["miss"] * 2 == pytest.approx(got["gap"] * 4, abs=1e-6)


def test_what_comes_closest_after_4_s_counts_as_it_stands_at_4_s() -> None:
    got = seen(Mover((3.0, 0.0, 0.0), vel=(-0.5, 0.0, 0.0), width=0.25))
    assert got["time"] == 1.0
    assert got["miss"] * 2 == pytest.approx(1.0 - 0.125 - 0.3, abs=1e-6)


@given(
    bearing=st.floats(-math.pi, math.pi), flat=st.floats(0.05, 4.0), heading=st.floats(0, 6.3), speed=st.floats(0, 0.04)
)
@settings(max_examples=100, deadline=None)
def test_a_crawling_mover_may_be_timed_wrongly_but_its_miss_by_less_than_13_cm(
    bearing: float, flat: float, heading: float, speed: float
) -> None:
    """Below 3.2 cm/s the time would divide by almost nothing; what can be lost is 4 s of such a speed."""
    mover = Mover(
        (flat * math.cos(bearing), flat * math.sin(bearing), 0.0),
        vel=(speed * math.cos(heading), speed * math.sin(heading), 0.0),
    )
    got = seen(mover)
    miss = closest_approach(mover.at, mover.vel)[1] - 0.55
    assert 0.0 <= got["time"] <= 1.0
    assert miss - 1e-4 <= got["miss"] * 2 <= miss + 0.13


@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize(("width", "skin"), [(0.25, 0.425), (0.5, 0.55), (0.75, 0.675), (1.0, 0.8)])
def test_the_gap_is_0_where_surfaces_meet_and_closeness_does_not_grow_within_5_cm(
    box: bool, width: float, skin: float
) -> None:
    most = math.log(4.0 / 0.05) / 4.0
    for inside, closeness in ((-0.2, math.log(4.0 / 0.2) / 4.0), (-0.05, most), (0.0, most), (0.3, most)):
        got = seen(Mover((0.0, skin - inside, 0.0), width=width, box=box))
        assert got["gap"] * 4 == pytest.approx(-inside, abs=1e-6)
        assert got["miss"] * 2 == pytest.approx(-inside, abs=1e-6)
        assert got["closeness"] == pytest.approx(closeness, abs=1e-5)
        assert got["width"] == width


@pytest.mark.parametrize(("dz", "clearance"), [(0.0, -0.8), (0.8, 0.0), (-0.8, 0.0), (-2.0, 1.2)])
def test_a_box_is_cleared_by_height_whether_above_or_below(dz: float, clearance: float) -> None:
    got = seen(Mover((1.0, 0.0, dz)))
    assert got["clearance"] == pytest.approx(clearance, abs=1e-6)
    assert got["gap"] * 4 == pytest.approx(0.45, abs=1e-6), "the gap is horizontal"
    assert got["dz"] * 4 == pytest.approx(dz, abs=1e-6)


def test_a_cylinder_is_never_cleared_by_height() -> None:
    low, high = (seen(Mover((1.0, 0.0, dz), box=False)) for dz in (0.0, 2.0))
    assert low == high
    assert (low["dz"], low["clearance"], low["box"], low["present"]) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("vel", [(0.0, 0.0, 0.0), (2.0, -1.0, 0.5)])
def test_an_absent_obstacle_is_all_zeros_between_present_ones_too(vel: Vec) -> None:
    near, far = Mover((1.0, 0.0, 0.0)), Mover((3.0, 0.0, 0.0))
    obs = observe([Scene(vel=vel, movers=[near, None, far, None, None])], 4.0)
    got = obstacle_features(obs["dynamic_obstacle"].squeeze(1), obs["state"][:, 5:8], 4.0)[0]
    assert got.shape == (5, 14)
    assert got.any(dim=-1).tolist() == [True, False, True, False, False]
    assert torch.equal(got.flatten(), navigation_features(obs)[0, 9 + 4 :])


@pytest.mark.parametrize(("beams", "obstacles", "width"), [(144, 5, 223), (12, 5, 91), (1, 0, 10)])
def test_the_width_counts_state_beams_and_obstacles(beams: int, obstacles: int, width: int) -> None:
    assert num_features(beams, obstacles) == width
    if obstacles == 5:
        assert num_features(beams) == width
