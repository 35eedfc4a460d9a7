"""The `view` part of a task: pictures, recordings, the browser, and manual control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents.base import Action
from fledge.envs.base import TensorEnv
from fledge.tasks.view.controls import Control, command_of, controls_of, without_buttons
from fledge.tasks.view.drawing import draw_trajectories
from fledge.tasks.view.objects import SceneObject, objects_in
from fledge.tasks.view.stage import Beams, Crowd, Instrument, Stage, motion_of, numbers_in, track_seconds
from fledge.tasks.view.trajectory import LossReason, Trajectory


class TaskView:
    """Recordings, pictures and controls of a task. Every default works with any env."""

    page: Path | None = None
    """Folder of the task's part of the browser app: index.js and *.css for playing, graph.js to draw `graph`."""

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the static part of the current episode of each env in `ids`, as a dict of plain values and arrays."""
        return [{} for _ in ids]

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the state of everything that moves in the envs `ids`: arrays by name, each of shape [len(ids), ...].

        "pos", if any, is [len(ids), 3] in m.
        """
        return {}

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        """Return a matplotlib figure of recorded episodes."""
        return draw_trajectories(tracks, title)

    def draw_closely(self, track: Trajectory, title: str = "") -> Any:
        """Return a detailed matplotlib figure of one recorded episode."""
        return self.draw([track], title)

    def explain(self, track: Trajectory, side: int = 0) -> LossReason | None:
        """Return why a side lost a recorded episode; None if it did not lose, or the reason is unknown.

        Args:
            side: 0 is the side that `track.outcome` is about, 1 the other side.
        """
        return None

    def objects(self, track: Trajectory) -> list[SceneObject]:
        """Return the moving objects of a recorded episode, for export to other programs (see `view/objects.py`)."""
        return objects_in(track)

    def stage_of(self, env: TensorEnv) -> Tensor:
        """Return the stage (shared scene) of each env's episode, [N] integers; episodes on one stage are shown together."""
        return torch.arange(env.num_envs) // env.group

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        """Return the static shapes of an episode with this scene."""
        return Stage()

    def actors(self, track: Trajectory) -> list[SceneObject]:
        """Return the objects of a recorded episode that leave a trail."""
        return self.objects(track)

    def crowd(self, track: Trajectory) -> Crowd | None:
        """Return the moving obstacles of a recorded episode; None if it has none."""
        return None

    def beams(self, track: Trajectory) -> Beams | None:
        """Return the readings of the first actor's ranging sensor; None if it has none."""
        return None

    def instruments(self, track: Trajectory) -> list[Instrument]:
        """Return the numbers of a recorded episode to show over time, with units."""
        return [*motion_of(self.actors(track), track_seconds(track)), *numbers_in(track)]

    def controls(self, env: TensorEnv) -> Sequence[Control]:
        """Return the manual controls of an env; an empty list if it cannot be controlled by hand."""
        return controls_of(env.action_spec)

    def command(self, env: TensorEnv, values: Mapping[str, float]) -> Action:
        """Return the action of a single env, with batch shape [1], for these values of all controls."""
        return command_of(env.action_spec, values)

    def hold(self, env: TensorEnv, action: Action) -> Action:
        """Return the action to repeat after `action` was applied once: the same action with its buttons released."""
        return without_buttons(self.controls(env), action)

    def graph(self, cfg: Any, frame: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """Return plain data about one moment, which the task's graph.js draws; None if the task has no graph.js.

        `frame` is the `snapshot` of one env.

        Raises:
            InputError: if the frame, which may come from an untrusted recording, does not fit the task.
        """
        return None
