"""Generators of worlds, by name. Each is a pure function of its random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fledge.tasks.navigation.worlds.generators.canvas import Draws
from fledge.tasks.navigation.worlds.generators.indoor import corridors, hall, rooms, stairs
from fledge.tasks.navigation.worlds.generators.outdoor import canopy, cave, city, pillars
from fledge.tasks.navigation.worlds.generators.scenes import SCENES as SCENES
from fledge.tasks.navigation.worlds.voxels import World

GENERATORS: Mapping[str, Callable[[Draws], World]] = {
    maker.__name__: maker for maker in (rooms, corridors, pillars, cave, canopy, stairs, city, hall)
}
