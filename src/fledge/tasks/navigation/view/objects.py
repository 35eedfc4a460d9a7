"""Objects of a recorded flight, for exporters."""

from __future__ import annotations

import numpy as np

from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.trajectory import Trajectory

JUMP_M = 0.5  # no mover goes as far from one decision to the next


def drone_and_goal(track: Trajectory) -> tuple[SceneObject, SceneObject]:
    crashed = track.outcome.startswith("collision") or track.outcome == "out_of_bounds"
    drone = SceneObject("drone", track.frames["pos"], "drone", destroyed=crashed)
    return drone, SceneObject("goal", np.asarray(track.scene["goal"])[None], "goal", "green")


def flight_objects(track: Trajectory) -> list[SceneObject]:
    """Return the drone, its goal, and the nearest mover: a new object each time that another one is nearest."""
    mover = track.frames["mover"]
    there = np.isfinite(mover).all(axis=1)
    step = np.linalg.norm(np.diff(mover[:, :2], axis=0), axis=1)
    another = np.concatenate([[False], ~(step < JUMP_M) | (mover[1:, 3] != mover[:-1, 3])])
    number = np.cumsum(another)
    met = [there & (number == k) for k in np.unique(number[there])]
    return [
        *drone_and_goal(track),
        *(SceneObject("mover", mover[:, :3], "obstacle", "orange", present=seen) for seen in met),
    ]
