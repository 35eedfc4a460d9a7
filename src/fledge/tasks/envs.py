"""`fledge.make_env`, which makes the envs of any task in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fledge.core.config_help import field_help
from fledge.core.machine import pick_device
from fledge.core.overrides import build_config, leaves, settings_to_overrides
from fledge.core.settings import check_settings
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.base import Task, check_env
from fledge.tasks.registry import find_task


def make_env(
    task: str | Task | type[Task] = "navigation",
    num_envs: int | None = None,
    preset: str | None = None,
    device: str = "auto",
    seed: int = 0,
    *,
    held_out: bool = False,
    num_threads: int | None = None,
    **settings: Any,
) -> TensorEnv:
    """Make many parallel envs of a task, as one TensorEnv: tensors in, tensors out.

    Example:
        >>> env = fledge.make_env("navigation", num_envs=64, static_obstacles=100)
        >>> out = env.reset()
        >>> out = env.step(torch.rand(64, 3))
        >>> out["obs"]["lidar"].shape, out["reward"].shape

    Args:
        task: A name, `gym:ID`, a Python file, `module:object`, or a Task class or object.
        num_envs: Number of envs. By default the number in the task's config.
        preset: Name of an env preset of the task. Navigation has `crossing`, `default`, `empty`, `fapp`, `navrl`, `p2m`,
            `sando`, `static` and `swarm`.
        device: "cpu", "cuda", "cuda:N", or "auto": a GPU if there is one.
        seed: Seed of everything random in the envs.
        held_out: Use maps and seeds that no training uses, as evaluations do.
        num_threads: CPU threads. By default all cores.
        settings: Settings of the env (`fledge train TASK --help-config` lists them under env.): static_obstacles=100,
            reward={"crash": 5.0}, env={"static_obstacles": 100}, or **{"env.static_obstacles": 100}. perception="typical"
            chooses a preset of faults, sensor="d435" a sensor.

    Raises:
        ConfigError: if a setting or preset does not exist, or a value is not allowed.
    """
    found = find_task(task)
    cfg = env_config(found, preset, settings if num_envs is None else {**settings, "num_envs": num_envs})
    place = pick_device(device, torch.cuda.device_count())
    placement = EnvPlacement(device=place, seed=seed, num_threads=num_threads, held_out=held_out)
    return check_env(found, cfg, found.make_env(cfg, placement))


def env_config(task: Task, preset: str | None, settings: Mapping[str, Any]) -> Any:
    """Return the task's `default` env config, changed by a preset and by settings."""
    layers = [(f"training of task {task.name}", task.presets.defaults.get("env", {}))]
    names = [
        *(["default"] if "default" in task.presets.names("env") else []),
        *([preset] if preset is not None else []),
    ]
    layers += [(f"preset {name}", task.presets.load("env", name)) for name in names]
    words, presets = env_overrides(task, settings), task.presets
    cfg: Any = build_config(task.config, layers, words, presets.aliases, presets.env_groups, "env.")
    check_settings(cfg, "env.")
    return cfg


def env_overrides(task: Task, settings: Mapping[str, Any]) -> list[str]:
    """Return settings of a Python call as `env.key=value` overrides; keys may omit the prefix `env.`."""
    known = field_help(task.config)
    plain = {f"env.{key}" if key in known else key: value for key, value in leaves(settings)}
    return settings_to_overrides(plain)
