"""`gym:ID`: any Gymnasium env as a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.core.settings import setting
from fledge.core.yaml_text import parse_yaml
from fledge.envs.adapters.from_gymnasium import FromGymnasium
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.base import Task
from fledge.tasks.metrics import TaskMetrics
from fledge.tasks.presets import Presets
from fledge.tasks.view.base import TaskView


@dataclass
class GymConfig:
    """Settings of a Gymnasium env."""

    num_envs: int = setting(8, at_least=1, resume="restart")
    """Number of copies of the env, over all ranks."""
    options: str = setting("", resume="weights")
    """Keyword arguments for gymnasium.make, as YAML, for example {gravity: 9.81}."""


class GymView(TaskView):
    """Records and draws the observations of the envs."""

    def snapshot(self, env: TensorEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
        assert isinstance(env, FromGymnasium)
        return {name: value[list(ids)].copy() for name, value in env._obs.items()}


class GymPresets(Presets):
    """Presets by algorithm; an algorithm without a preset starts from the general defaults."""

    def default(self, algo: str) -> str | None:
        return algo if algo in self.names("train") else None


class GymTask(Task):
    """A Gymnasium env by its ID."""

    config = GymConfig
    presets = GymPresets(Path(__file__).parent / "presets")
    view = GymView()
    metrics = TaskMetrics({"terminated": "terminated", "truncated": "time limit"})

    def __init__(self, env_id: str) -> None:
        super().__init__(name=f"gym:{env_id}")
        self.env_id = env_id

    def make_env(self, cfg: GymConfig, placement: EnvPlacement = EnvPlacement()) -> FromGymnasium:
        p = placement
        seed = derive_seed(p.seed, Purpose.HELD_OUT) if p.held_out else p.seed
        return FromGymnasium(self.env_id, cfg.num_envs, p.device, seed, p.env_offset, read_options(cfg.options))


def read_options(text: str) -> dict[str, Any]:
    """Return the keyword arguments for gymnasium.make that the YAML text of `env.options` holds."""
    try:
        options = parse_yaml(text) if text else {}
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"env.options={text} is not valid YAML ({reason}): write {{name: value}}.") from error
    if not isinstance(options, dict):
        raise ConfigError(f"env.options={text} is not a mapping: write {{name: value}}, for example {{gravity: 9.81}}.")
    return options
