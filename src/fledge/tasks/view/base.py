"""The part of the Task contract that is for eyes and hands: pictures, recordings, the browser, and flying by hand.

scene, snapshot                                                 what stands still, and what moves now
draw, draw_closely, explain, objects                            recorded episodes, for pictures and other programs
stage, actors, crowd, beams, instruments, stage_of              a recorded episode as something to look at (tasks.stage)
controls, command, hold                                         what a person's hands move, and the action that it means
graph                                                           what a moment means, for a display
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents.base import Action
from fledge.envs.base import TensorEnv
from fledge.tasks.view.controls import Control, command_of, controls_of, without_buttons
from fledge.tasks.view.trajectory import LossReason, Trajectory

if TYPE_CHECKING:
    from fledge.tasks.view.objects import SceneObject
    from fledge.tasks.view.stage import Beams, Crowd, Instrument, Stage


class TaskView:
    """How a world shows itself; every default works with what a world records."""

    page: Path | None = None
    """Folder of this world's part of the browser app: index.js and *.css for playing it, graph.js for its `graph`."""

    def scene(self, env: TensorEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
        """What stands still in the present episodes of some envs."""
        return [{} for _ in ids]

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """What moves in some envs, now: [len(ids), ...] each; "pos" [len(ids), 3] in metres, if there is such a thing."""
        return {}

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        """A matplotlib figure of recorded episodes."""
        from fledge.tasks.view.drawing import draw_trajectories

        return draw_trajectories(tracks, title)

    def draw_closely(self, track: Trajectory, title: str = "") -> Any:
        """A matplotlib figure of one recorded episode, with all that is to be seen of it."""
        return self.draw([track], title)

    def explain(self, track: Trajectory, side: int = 0) -> LossReason | None:
        """Why a side lost a recorded episode, from what was recorded; None if it did not lose, or nobody knows.

        Args:
            side: 0 is the side whose outcome the track has, 1 the other.
        """
        return None

    def objects(self, track: Trajectory) -> list[SceneObject]:
        """What moves in a recorded episode, as things that other programs know (see `tasks.objects`)."""
        from fledge.tasks.view.objects import objects_in

        return objects_in(track)

    def stage_of(self, env: TensorEnv) -> Tensor:
        """Which stage each env's present episode is on, [N] integers: those on one stage are watched beside each other."""
        return torch.arange(env.num_envs) // env.group

    def stage(self, scene: Mapping[str, Any]) -> Stage:
        """What stands still in an episode with this scene, as shapes."""
        from fledge.tasks.view.stage import Stage

        return Stage()

    def actors(self, track: Trajectory) -> list[SceneObject]:
        """Who moves in a recorded episode and leaves a trail."""
        return self.objects(track)

    def crowd(self, track: Trajectory) -> Crowd | None:
        """Obstacles that move in a recorded episode."""
        return None

    def beams(self, track: Trajectory) -> Beams | None:
        """What a ranging sensor of the first actor saw."""
        return None

    def instruments(self, track: Trajectory) -> list[Instrument]:
        """Figures over time, with units."""
        from fledge.tasks.view.stage import motion_of, numbers_in, track_seconds

        return [*motion_of(self.actors(track), track_seconds(track)), *numbers_in(track)]

    def controls(self, env: TensorEnv) -> Sequence[Control]:
        """What a person's hands move in an env; nothing: nobody can fly it by hand."""
        return controls_of(env.action_spec)

    def command(self, env: TensorEnv, values: Mapping[str, float]) -> Action:
        """The action of one row [1, ...] that hands mean; `values` has every control."""
        return command_of(env.action_spec, values)

    def hold(self, env: TensorEnv, action: Action) -> Action:
        """A command as it goes on until the next decision, where moments are shorter than decisions: buttons are let go."""
        return without_buttons(self.controls(env), action)

    def graph(self, cfg: Any, frame: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """What a moment means, as plain data for a display; `frame` is what `snapshot` shows of one episode.

        Raises:
            InputError: when the frame, which may come from a stranger's recording, is none of this world.
        """
        return None
