"""Generated worlds: pure functions of (name, seed, index), of the promised size, and connected for a body of 0.3 m."""

import hashlib

import numpy as np
import pytest

from fledge.core.errors import ConfigError
from fledge.tasks.navigation.worlds.free_space import find_free_space
from fledge.tasks.navigation.worlds.routes import draw_routes
from fledge.tasks.navigation.worlds.world import GENERATORS, make_world


def test_there_are_eight_generators() -> None:
    assert list(GENERATORS) == ["rooms", "corridors", "pillars", "cave", "canopy", "stairs", "city", "hall"]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_world_is_a_pure_function_of_name_seed_and_index(name: str) -> None:
    first, again = make_world(name, 3, 1), make_world(name, 3, 1)
    np.testing.assert_array_equal(first.solid, again.solid)
    others = [make_world(name, 3, 2), make_world(name, 4, 1)]
    for other in others:
        assert first.solid.shape != other.solid.shape or (first.solid != other.solid).any()
    assert first.name == name
    assert first.triangles is None


@pytest.mark.parametrize(
    ("name", "digest"), [("rooms", "6101be30b12909ab"), ("corridors", "45a9f9ddc6600a09"), ("city", "91591d4c4b270ddb")]
)
def test_a_world_of_a_seed_never_changes(name: str, digest: str) -> None:
    world = make_world(name, 1, 2)
    found = hashlib.sha256(str(world.solid.shape).encode() + np.packbits(world.solid).tobytes()).hexdigest()
    assert found[:16] == digest


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_body_of_30_cm_gets_everywhere(name: str, index: int) -> None:
    world = make_world(name, 10 + index, index)
    low, high = world.bounds
    size = high - low
    assert (size[:2] >= 20.0 - 1e-9).all()
    assert (size[:2] <= 40.0 + 1e-9).all()
    assert size[2] >= 4.0
    assert abs(low[:2] + high[:2]).max() < 1e-9
    assert low[2] == -0.1
    assert world.solid[:, :, 0].all(), "a hole in the floor"
    space = find_free_space(world, 0.3)
    assert space.inside.sum() > 0.95 * space.clear.sum()
    assert space.clear.mean() > 0.15
    routes = draw_routes(world, seed=index, count=16, clearance_m=0.3, space=space)
    assert np.linalg.norm(routes.goal - routes.start, axis=1).max() > 8.0
    assert find_free_space(world, 0.5).inside.mean() > 0.1, "too narrow for the default clearance"


def test_routes_lead_from_one_storey_to_the_other() -> None:
    routes = draw_routes(make_world("stairs", 0, 0), seed=0, count=256)
    up = (routes.start[:, 2] < 2.6) & (routes.goal[:, 2] > 2.8)
    assert up.sum() > 10
    straight = np.linalg.norm(routes.goal - routes.start, axis=1)
    assert (routes.length[up] > straight[up] * 1.01).mean() > 0.5


def test_an_unknown_generator_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"choose one of rooms, corridors.* Did you mean rooms\?"):
        make_world("roms", 0, 0)
    with pytest.raises(ConfigError, match="index is -1"):
        make_world("rooms", 0, -1)
