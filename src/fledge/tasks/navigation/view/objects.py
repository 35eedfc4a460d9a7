"""What moved in a recorded flight, for other programs."""

from __future__ import annotations

import numpy as np

from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.trajectory import Trajectory

JUMP_M = 0.5  # no mover goes as far from one decision to the next


def flight_objects(track: Trajectory) -> list[SceneObject]:
    """The drone, its goal, and whichever mover was nearest: a new one each time that is another."""
    pos, mover = track.frames["pos"], track.frames["mover"]
    crashed = track.outcome.startswith("collision") or track.outcome == "out_of_bounds"
    drone = SceneObject("drone", pos, "drone", destroyed=crashed)
    goal = SceneObject("goal", track.scene["goal"][None], "goal", "green")
    there = np.isfinite(mover).all(axis=1)
    step = np.linalg.norm(np.diff(mover[:, :2], axis=0), axis=1)
    another = np.concatenate([[False], ~(step < JUMP_M) | (mover[1:, 3] != mover[:-1, 3])])
    number = np.cumsum(another)
    met = [there & (number == k) for k in np.unique(number[there])]
    return [drone, goal, *(SceneObject("mover", mover[:, :3], "obstacle", "orange", present=seen) for seen in met)]
