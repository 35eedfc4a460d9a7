"""`fledge train`: from command-line words to a run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fledge.core.code import is_reference
from fledge.core.errors import ConfigError, InterruptedRunError
from fledge.core.machine import pick_device
from fledge.core.overrides import read_yaml, value_given
from fledge.core.settings import check_settings, flat_settings
from fledge.envs.reward_wrapper import find_reward
from fledge.storage import CheckpointHistory
from fledge.tasks.base import Task
from fledge.tasks.policy_factory import env_specs
from fledge.tasks.registry import find_task, is_code, task_names
from fledge.training.config import CollectMode, TrainConfig, make_config, read_run_config, with_named_code
from fledge.training.init_from import take_network
from fledge.training.loop import train
from fledge.training.memory import check_memory, memory_sentence
from fledge.training.ranks import default_ranks, joined_ranks
from fledge.training.run import env_with_reward, refuse_misfits


def run_training(
    tasks: Sequence[str],
    preset: str | None,
    overrides: Sequence[str],
    folder: Path | None,
    resume: Path | None,
    on_start: Callable[[Path], None] | None = None,
) -> dict[str, Any] | None:
    """Train on as many ranks as the config says. Return the last metrics on rank 0, None on others.

    `on_start` is called on rank 0 with the run's folder, before it is made.
    """
    if resume is not None and folder is not None:
        raise ConfigError("Pass --folder for a new run or --resume for an old one, not both.")
    if preset is not None and resume is not None:
        raise ConfigError("--preset is for a new run: a resumed one keeps its settings; change them with key=value.")
    named = [word.partition("=")[2].strip() for word in overrides if word.startswith("task=")]
    overrides = [word for word in overrides if not word.startswith("task=")]
    if bare := [word for word in tasks if "." in word and not is_code(word) and word not in task_names()]:
        raise ConfigError(f"{bare[0]!r} is not a task; a setting needs a value: {bare[0]}=VALUE.")
    names = list(dict.fromkeys([*tasks, *named]))
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(map(repr, names))} were given, but a run has one task: name it once.")
    task = find_task(names[0]) if names else None
    taken: list[str] = []
    if resume is not None:
        folder = resume
        moved = moved_algorithm(resume, overrides)
        task, before = read_run_config(resume, moved, task, named=overrides)
        _, cfg = read_run_config(resume, overrides, task)
        cfg = with_named_code(cfg, overrides)
        check_settings(before)
        policy = task.policy.build(task.policy.describe(task, before.learner.policy_form, before.env, before.policy))
        if has_saved(resume):
            refuse_misfits(flat_settings(before), cfg, policy.observes)
    else:
        task = task or find_task("navigation")
        cfg = make_config(task, preset, overrides)
        folder = folder or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        if (folder / "config.yaml").exists() and "RANK" not in os.environ:
            raise ConfigError(
                f"{folder} already holds a run: --resume {folder} continues it, or choose another --folder."
                if has_saved(folder)
                else f"{folder} already holds a run, but nothing was saved yet: --resume {folder} with the mended words "
                "begins it from its start, or remove the folder."
            )
        check_settings(cfg)
        taken = take_network(task, cfg, overrides) if cfg.init_from else []
    size = int(os.environ.get("WORLD_SIZE", 0)) or cfg.ranks or default_ranks(cfg.device, cfg.env.num_envs)
    check_before_start(task, cfg, size)
    check_folder(folder)
    mode = ["--resume", str(folder)] if resume is not None else ["--folder", str(folder)]
    mode += ["--preset", preset] if preset is not None and resume is None else []
    child = ["-m", "fledge.cli", "train", task.reference, *overrides, *mode]
    try:
        with joined_ranks(size, cfg.device, child, cfg.threads, lambda: how_to_go_on(folder)) as ranks:
            if ranks.is_first:
                many = f"{ranks.size} rank{'s' if ranks.size > 1 else ''} on {cfg.device}"
                print(f"run: {folder}  ({many}, {cfg.env.num_envs} {task.metrics.unit})", file=sys.stderr)
                if on_start is not None:
                    on_start(folder)
                if taken:
                    print(f"network of {cfg.init_from}: {' '.join(taken)}", file=sys.stderr)
            with memory_sentence(task, cfg):
                metrics = train(cfg, folder, ranks, resume=resume is not None, task=task)
    except KeyboardInterrupt:
        stopped = "Stopped at once." if has_saved(folder) else "Stopped before anything was saved."
        raise InterruptedRunError(f"{stopped} {how_to_go_on(folder)}".rstrip()) from None
    return {"run": str(folder), **metrics} if ranks.is_first else None


def has_saved(folder: Path) -> bool:
    """Whether a run has a checkpoint to continue from."""
    return not CheckpointHistory(folder / "checkpoints").is_empty


def how_to_go_on(folder: Path) -> str:
    """Return how to continue a run that has stopped; "" if nothing was saved."""
    return f"--resume {folder} continues from its newest checkpoint." if has_saved(folder) else ""


def moved_algorithm(run: Path, overrides: Sequence[str]) -> list[str]:
    """Return the algo= override of a run whose own algorithm is code, which may have moved.

    Raises:
        ConfigError: The override names another class.
    """
    path = run / "config.yaml"
    saved = str(read_yaml(path).get("algo", "ppo")) if path.is_file() else "ppo"
    named = value_given(overrides, "algo", {})
    if named is None or not is_reference(saved):
        return []
    if named.rpartition(":")[2] != saved.rpartition(":")[2]:
        raise ConfigError(f"{run} was trained with algo={saved}: a resumed run keeps its algorithm.")
    return [f"algo={named}"]


def check_before_start(task: Task, cfg: TrainConfig, ranks: int) -> None:
    """Raise ConfigError for what would otherwise fail only once every rank has started."""
    check_settings(cfg)
    if cfg.env.num_envs % ranks:
        raise ConfigError(
            f"env.num_envs is {cfg.env.num_envs}, but must be a multiple of the {ranks} ranks: "
            f"take {cfg.env.num_envs // ranks * ranks or ranks}, or set ranks."
        )
    if cfg.collect.mode is CollectMode.halves and cfg.env.num_envs // ranks % 2:
        unit = task.metrics.unit
        raise ConfigError(f"collect.mode=halves needs an even number of {unit} on each of the {ranks} ranks.")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    pick_device(cfg.device, torch.cuda.device_count(), here - 1)
    task.policy.build(task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy))
    if cfg.reward and (paid := env_with_reward(task, cfg.env, cfg.reward)) is not None:
        env_specs(task, paid)  # makes the reward
    elif cfg.reward:
        find_reward(cfg.reward)
    check_memory(task, cfg, ranks)


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless a run can be written to a folder; leaves nothing behind."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): choose another --folder.") from error
