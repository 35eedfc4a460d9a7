"""Maps and worlds as the scenes of recordings store them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.worlds.voxels import World


def map_of(env: NavigationEnv, slot: int) -> dict[str, Any]:
    """Return the map of a slot, as scenes store it."""
    if env.bank.worlds is None:
        return {"map": slot, "cells": env.bank.grid[slot].cpu().numpy().copy()}
    number = int(env.bank.worlds.number[slot])
    world = env.bank.worlds.worlds[number]
    if world.scene is not None:
        bounds = np.clip(world.bounds, [-np.inf, -np.inf, 0.0], np.inf)
        return {"map": number, "world": world.name, "boxes": world.scene.boxes, "bounds": bounds.tolist()}
    facts = {"world": world.name, "origin": world.origin, "cell_m": world.cell_m, "shape": list(world.solid.shape)}
    return {"map": number, "voxels": np.packbits(world.solid), **facts}


def scene_world(scene: Mapping[str, Any]) -> World | None:
    """Return the world of a scene; None if the scene has cells or boxes instead of voxels."""
    if "voxels" not in scene:
        return None
    shape = tuple(int(n) for n in scene["shape"])
    solid = np.unpackbits(np.asarray(scene["voxels"]), count=math.prod(shape)).reshape(shape).astype(bool)
    return World(str(scene["world"]), solid, np.asarray(scene["origin"]), float(scene["cell_m"]))
