"""The benchmark of worlds: a small run of the real thing, and a wrong world that it must catch."""

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import worlds
from fledge.core.errors import FledgeError
from fledge.tasks.navigation.physics import voxel_worlds
from fledge.tasks.navigation.worlds import routes
from fledge.tasks.navigation.worlds.world import World

pytestmark = pytest.mark.slow
voxels_of = worlds.voxels_of


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "MAPS", 1)
        patch.setattr(worlds, "TURNS", 2)
        patch.setattr(worlds, "GENERATED", ("hall",))
        patch.setattr(voxel_worlds, "ROUTES", 8)
        patch.setattr(routes, "GOALS", 2)
        yield


def test_beams_and_collisions_agree_and_every_kind_of_world_is_timed_beside_the_height_map() -> None:
    result = worlds.run(num_envs=128, threads=1, seconds=0.02)
    assert json.loads(json.dumps(result)) == result
    assert list(result["speed"]) == ["height map", "voxels", "mesh", "hall"]
    assert set(result["speed"]["height map"]["of_height_map"]["turns"]) == {1.0}
    for verdicts in result["parity"].values():
        assert verdicts["lidar"]["share_outside"] < 0.002
        assert verdicts["collisions"]["ok"]
    console = Console(width=80, file=io.StringIO())
    for part in worlds.render(result):
        console.print(part)
    assert "mesh, collisions" in console.file.getvalue()


def test_a_world_that_differs_from_the_height_map_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(cells: np.ndarray) -> World:
        return voxels_of(np.roll(cells, 1, axis=0))

    def never(*_: Any) -> None:
        raise AssertionError("timed")

    monkeypatch.setattr(worlds, "voxels_of", moved)
    monkeypatch.setattr(worlds, "time_all", never)
    with pytest.raises(FledgeError, match="disagree on lidar"):
        worlds.run(num_envs=64, threads=1, seconds=0.02)
