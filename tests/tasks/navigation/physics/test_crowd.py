"""Moving obstacles: NavRL's rules, one by one, on crowds stepped by their kernels alone."""

import numpy as np
import pytest
import warp as wp

from fledge.core.random import Purpose, split_seed, uniform
from fledge.tasks.navigation.physics.crowd import Crowd, crowd_kinds, place_crowd, step_crowd
from fledge.tasks.navigation.physics.shapes import height_of, is_standing, width_class, width_of

DT = 0.016
SPEED_STEPS = 125


class World:
    """Crowds of some maps: what the env's bank holds, without forests and drones."""

    def __init__(
        self,
        counts: list[int],
        seed: int = 0,
        decimation: int = 1,
        floating: bool = True,
        born: int = 0,
        size: int = 80,
    ) -> None:
        k = len(counts)
        self.seed, self.decimation, self.k, self.size = seed, decimation, k, size
        self.keys = np.stack([np.arange(k) + 100, np.full(k, 5)], 1).astype(np.uint32)
        self.clock = 0
        crowd = Crowd()
        crowd.speed = 1.0
        crowd.floating, crowd.kinds = int(floating), wp.array(crowd_kinds(size, False), device="cpu")
        crowd.placed = wp.array(np.array(counts, dtype=np.int32), device="cpu")
        crowd.count = wp.clone(crowd.placed)
        crowd.born = wp.full(k, born, dtype=wp.int32, device="cpu")
        for name in ("origin", "goal", "vel", "before"):
            setattr(crowd, name, wp.zeros((k, size), dtype=wp.vec3, device="cpu"))
        crowd.trail = wp.zeros((decimation, k, size), dtype=wp.vec3, device="cpu")
        self.crowd = crowd
        self.key_array = wp.array(self.keys, dtype=wp.vec2ui, device="cpu")
        self.words = wp.vec2ui(*split_seed(seed))
        slots = wp.array(np.arange(k, dtype=np.int32), device="cpu")
        wp.launch(place_crowd, k, [slots, self.key_array, self.words, crowd], device="cpu")

    def step(self) -> None:
        clock = wp.array(np.array([self.clock], dtype=np.int32), device="cpu")
        args = [0, self.key_array, clock, DT, self.words, self.crowd]
        wp.launch(step_crowd, self.k * self.size, args, device="cpu")
        self.clock += self.decimation

    def get(self, name: str) -> np.ndarray:
        """A copy: [K, M, 3], or [D, K, M, 3] for the trail."""
        return getattr(self.crowd, name).numpy().copy()

    @property
    def pos(self) -> np.ndarray:
        return self.get("trail")[-1]


def film(world: World, steps: int) -> dict[str, np.ndarray]:
    """Position before, then goal, velocity and position after, of every step: [T, K, M, 3] each."""
    frames: dict[str, list[np.ndarray]] = {"before": [], "goal": [], "vel": [], "after": []}
    for _ in range(steps):
        frames["before"].append(world.pos)
        world.step()
        frames["goal"].append(world.get("goal"))
        frames["vel"].append(world.get("vel"))
        frames["after"].append(world.pos)
    return {name: np.stack(rows) for name, rows in frames.items()}


@pytest.fixture(scope="module")
def filmed() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Origins and 1300 steps (20.8 s) of four crowds of 80."""
    world = World([80] * 4, seed=2)
    origin = world.get("origin")
    return origin, film(world, 1300)


@wp.kernel(enable_backward=False)
def describe(crowd: Crowd, rows: wp.array(dtype=wp.vec4)):
    j = wp.tid()
    kind = crowd.kinds[j]
    cylinder = float(0.0)  # noqa: UP018 - a kernel variable, not a constant
    if is_standing(kind):
        cylinder = 1.0
    rows[j] = wp.vec4(cylinder, float(width_class(kind)), width_of(kind), height_of(kind))


def test_eight_kinds_alternate_so_that_every_prefix_is_balanced() -> None:
    kind = wp.zeros(80, dtype=wp.vec4, device="cpu")
    wp.launch(describe, 80, [World([80]).crowd, kind], device="cpu")
    rows = kind.numpy()
    widths = [0.25, 0.5, 0.75, 1.0]
    boxes = [[0, c, w, 1] for c, w in enumerate(widths)]
    cylinders = [[1, c, w, 5] for c, w in enumerate(widths)]
    assert rows[:8].tolist() == boxes + cylinders
    assert rows.tolist() == rows[:8].tolist() * 10


def test_cylinders_stand_and_boxes_float_anywhere_up_to_the_ceiling(filmed: tuple) -> None:
    origin, films = filmed
    is_box = np.arange(80) % 8 < 4
    assert (origin[:, ~is_box, 2] == 2.5).all()
    np.testing.assert_allclose(films["after"][:, :, ~is_box, 2], 2.5, atol=1e-4)
    heights = origin[:, is_box, 2]
    assert heights.min() >= 0
    assert heights.max() <= 4.5
    assert np.histogram(heights, bins=3, range=(0, 4.5))[0].min() > 0.2 * heights.size


def test_boxes_near_the_ground_stay_at_height_zero() -> None:
    world = World([80], seed=4, floating=False)
    films = film(world, 300)
    is_box = np.arange(80) % 8 < 4
    assert (films["after"][:, 0, is_box, 2] == 0).all()
    assert (films["goal"][:, 0, is_box, 2] == 0).all()
    np.testing.assert_allclose(films["after"][:, 0, ~is_box, 2], 2.5, atol=1e-4)
    assert np.abs(films["vel"][-1, 0, is_box, :2]).max() > 0.5


@pytest.mark.parametrize("n", [4, 20, 80])
def test_origins_keep_the_wanted_spacing_shrunk_by_a_fifth_after_each_200_misses(n: int) -> None:
    """The rule replayed in plain Python."""
    world = World([n], seed=6, size=n)
    spacing_wanted = 2 * np.sqrt(20 * 20 / n)
    placed: list[np.ndarray] = []
    for j in range(n):
        stream = np.array([[*world.keys[0], int(Purpose.CROWD_ORIGIN) + 256 * j, k] for k in range(2500)])
        for tries, point in enumerate(20 * (2 * uniform(stream, 6)[:, :2].astype(np.float64) - 1)):
            spacing = spacing_wanted * 0.8 ** (tries // 200)
            if all(np.hypot(*(point - other)) > spacing for other in placed):
                break
        placed.append(point)
    np.testing.assert_allclose(world.get("origin")[0, :, :2], placed, atol=1e-5)


def test_crowds_of_eighty_are_spread_far_wider_than_chance(filmed: tuple) -> None:
    for origin in filmed[0][:, :, :2]:
        gaps = np.linalg.norm(origin[:, None] - origin[None], axis=-1)[np.triu_indices(80, 1)]
        assert gaps.min() > 0.5 * 2 * np.sqrt(400 / 80)  # chance would leave pairs some 0.3 m apart
        assert np.abs(origin).max() <= 20


def test_goals_lie_within_five_metres_of_the_origin_and_inside_the_map(filmed: tuple) -> None:
    origin, films = filmed
    offset = films["goal"] - origin
    assert np.abs(offset[..., :2]).max() <= 5 + 1e-5
    assert np.abs(offset[..., :2]).max() > 4.9
    assert np.abs(films["goal"][..., :2]).max() == 20  # some are clamped
    assert films["goal"][..., 2].min() == 0
    assert films["goal"][..., 2].max() == 4.5
    is_box = np.arange(80) % 8 < 4
    free = films["goal"][..., is_box, 2]
    unclamped = (free > 0) & (free < 4.5)
    climb = offset[..., is_box, 2][unclamped]
    assert climb.min() >= -5
    assert climb.max() <= 4


def test_a_goal_changes_only_at_birth_or_when_closer_than_half_a_metre(filmed: tuple) -> None:
    _, films = filmed
    goal = films["goal"]
    changed = (goal[1:] != goal[:-1]).any(-1)
    away = np.linalg.norm(goal[:-1] - films["before"][1:], axis=-1)
    assert not changed[away > 0.5 + 1e-5].any()
    # a goal clamped into a corner of the map may be drawn again as it was
    in_corner = (np.abs(goal[:-1, ..., :2]) == 20).all(-1)
    assert changed[(away < 0.5 - 1e-5) & ~in_corner].all()
    assert changed.sum() > 100


def test_speed_is_renewed_every_125_steps_and_velocity_is_constant_in_between(filmed: tuple) -> None:
    vel = filmed[1]["vel"]
    changed = (vel[1:] != vel[:-1]).any(-1)
    for step in range(1, len(vel)):
        if step % SPEED_STEPS == 0:
            assert changed[step - 1].all(), step
        else:
            assert not changed[step - 1].any(), step


def test_speeds_are_uniform_between_half_and_one_and_a_half(filmed: tuple) -> None:
    speed = np.linalg.norm(filmed[1]["vel"][::SPEED_STEPS], axis=-1).ravel()
    assert speed.size == 11 * 4 * 80
    assert speed.min() >= 0.5 - 1e-5
    assert speed.max() <= 1.5 + 1e-5
    shares = np.histogram(speed, bins=4, range=(0.5, 1.5))[0] / speed.size
    assert np.abs(shares - 0.25).max() < 0.04


def test_a_new_velocity_points_at_the_goal(filmed: tuple) -> None:
    films = filmed[1]
    for step in range(0, 1300, SPEED_STEPS):
        towards = films["goal"][step] - films["before"][step]
        along = (films["vel"][step] * towards).sum(-1)
        np.testing.assert_allclose(
            along, np.linalg.norm(films["vel"][step], axis=-1) * np.linalg.norm(towards, axis=-1), rtol=1e-4
        )


def test_positions_advance_by_velocity_times_dt(filmed: tuple) -> None:
    films = filmed[1]
    np.testing.assert_allclose(films["after"] - films["before"], films["vel"] * DT, atol=5e-6)


def test_showing_only_the_first_obstacles_changes_nobodys_motion() -> None:
    """So a curriculum that shows more of a crowd reveals obstacles that were on their way all along."""
    whole, prefix = World([80], seed=9), World([80], seed=9)
    prefix.crowd.count.assign([24])
    for _ in range(260):
        whole.step()
        prefix.step()
    np.testing.assert_array_equal(whole.pos, prefix.pos)


def test_obstacles_beyond_those_placed_are_left_alone() -> None:
    world = World([24], seed=9)
    for _ in range(10):
        world.step()
    assert (np.abs(world.get("vel")[0, :24]).max(-1) > 0).all()
    for name in ("origin", "goal", "vel", "before"):
        assert (world.get(name)[0, 24:] == 0).all(), name


@pytest.mark.parametrize(("decimation", "decisions"), [(5, 2), (5, 80), (4, 64)])
def test_motion_does_not_depend_on_decimation(decimation: int, decisions: int) -> None:
    fine, coarse = World([80, 16], seed=1), World([80, 16], seed=1, decimation=decimation)
    for _ in range(decisions):
        passed = []
        for _ in range(decimation):
            fine.step()
            passed.append(fine.pos)
        coarse.step()
        np.testing.assert_array_equal(coarse.get("trail"), passed)
    np.testing.assert_array_equal(coarse.get("goal"), fine.get("goal"))
    np.testing.assert_array_equal(coarse.get("vel"), fine.get("vel"))


def test_a_crowd_depends_on_its_age_not_on_the_clock_at_its_birth() -> None:
    early, late = World([80], seed=3), World([80], seed=3, born=1000)
    for _ in range(1000):
        late.step()
    np.testing.assert_array_equal(late.pos, late.get("origin"))  # not born yet: at rest
    for _ in range(200):
        early.step()
        late.step()
    np.testing.assert_array_equal(late.pos, early.pos)
