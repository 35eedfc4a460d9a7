"""How navigation is shown: the task's `view` part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fledge.envs.base import TensorEnv
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.view.frame_capture import flight_frames, flight_scenes
from fledge.tasks.navigation.view.objects import flight_objects
from fledge.tasks.navigation.view.stage import (
    flight_actors,
    flight_beams,
    flight_crowd,
    flight_instruments,
    flight_stage,
)
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Beams, Crowd, Instrument, Stage
from fledge.tasks.view.trajectory import Trajectory


class NavigationView(TaskView):
    """Drones, columns, moving obstacles and LiDAR beams."""

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        assert isinstance(env, NavigationEnv)
        return flight_scenes(env, ids)

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        assert isinstance(env, NavigationEnv)
        return flight_frames(env, ids)

    def stage_of(self, env: TensorEnv) -> Tensor:
        """Drones on one map share a stage."""
        assert isinstance(env, NavigationEnv)
        return env.state["slot"]

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        from fledge.tasks.navigation.view.picture import flights_figure  # Matplotlib takes a while to load

        return flights_figure(tracks, title)

    def objects(self, track: Trajectory) -> list[SceneObject]:
        return flight_objects(track)

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        return flight_stage(scene)

    def actors(self, track: Trajectory) -> list[SceneObject]:
        return flight_actors(track)

    def crowd(self, track: Trajectory) -> Crowd | None:
        return flight_crowd(track)

    def beams(self, track: Trajectory) -> Beams | None:
        return flight_beams(track)

    def instruments(self, track: Trajectory) -> list[Instrument]:
        return flight_instruments(track)
