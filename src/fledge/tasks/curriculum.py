"""The curriculum of a task: how hard its envs are, as a function of training progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fledge.envs.base import TensorEnv


@dataclass
class NoCurriculum:
    """Empty settings, for tasks without a curriculum."""


class Curriculum:
    """A curriculum that changes nothing. Tasks override `set_progress`."""

    config: type = NoCurriculum
    """Dataclass of the curriculum's settings (`curriculum.*`)."""

    def set_progress(self, env: TensorEnv, settings: Any, progress: float) -> None:
        """Set the curriculum difficulty of an idle env.

        Args:
            settings: Settings of the curriculum, an instance of the class `config`.
            progress: Share of training that is done, 0 to 1.
        """
