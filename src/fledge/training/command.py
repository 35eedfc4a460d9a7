"""Start or resume a training: read its config, check it, start its ranks, and train."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fledge.core.code import is_reference
from fledge.core.errors import ConfigError
from fledge.core.machine import pick_device
from fledge.core.overrides import read_yaml, value_given
from fledge.core.settings import check_settings, flat_settings
from fledge.envs.reward_wrapper import find_reward
from fledge.storage import CheckpointHistory
from fledge.tasks.base import Task
from fledge.tasks.policy_factory import env_specs
from fledge.tasks.registry import LOCAL, find_task, is_code, task_names
from fledge.training.config import CollectMode, TrainConfig, make_config, read_run_config, with_named_code
from fledge.training.init_from import other_env, take_network
from fledge.training.loop import train
from fledge.training.memory import check_memory, memory_sentence
from fledge.training.ranks import default_ranks, joined_ranks
from fledge.training.run import env_with_reward, refuse_misfits


@dataclass
class TrainingResult:
    """Result of a training."""

    folder: Path
    task: Task
    metrics: dict[str, float]
    """Metrics of the last iteration; empty on ranks other than 0."""
    interrupted: bool = False
    """Whether Ctrl-C or SIGTERM ended the training."""


def run_training(
    task: Task | None,
    preset: str | None,
    overrides: Sequence[str],
    folder: Path | None,
    resume: Path | None,
    on_start: Callable[[Path], None] | None = None,
    quiet: bool = False,
) -> TrainingResult:
    """Train on as many ranks as the config says.

    Args:
        task: By default the task of the resumed run, or navigation for a new run.
        overrides: `key=value` settings.
        folder: Folder of a new run; by default runs/<time>.
        resume: Folder of the run to continue.
        on_start: Called on rank 0 with the path of the run's folder, before the folder is created.
        quiet: Print nothing.

    Raises:
        KeyboardInterrupt: Ctrl-C before training began, or a second Ctrl-C; the message says how to continue.
    """
    task, cfg, folder, taken = read_training(task, preset, overrides, folder, resume)
    size = choose_ranks(task, cfg, overrides, quiet)
    check_before_start(task, cfg, size)
    check_folder(folder)
    mode = ["--resume", str(folder)] if resume is not None else ["--folder", str(folder)]
    mode += ["--preset", preset] if preset is not None and resume is None else []
    child = ["-m", "fledge.cli", "train", task.reference, *overrides, *mode]
    interrupts: list[bool] = []
    try:
        with joined_ranks(size, cfg.device, child, cfg.threads, lambda: how_to_go_on(folder)) as ranks:
            if ranks.is_first and not quiet:
                many = f"{ranks.size} rank{'s' if ranks.size > 1 else ''} on {cfg.device}"
                print(f"run: {folder}  ({many}, {cfg.env.num_envs} {task.metrics.unit})", file=sys.stderr)
                if taken:
                    print(f"network of {cfg.init_from}: {' '.join(taken)}", file=sys.stderr)
                if cfg.init_from and resume is None and (text := other_env(task, cfg)):
                    print(text, file=sys.stderr)
            if ranks.is_first and on_start is not None:
                on_start(folder)
            options: Any = {"quiet": quiet, "on_interrupt": lambda: interrupts.append(True)}
            with memory_sentence(task, cfg):
                metrics = train(cfg, folder, ranks, resume is not None, task, **options)
    except KeyboardInterrupt:
        stopped = "Stopped at once." if has_saved(folder) else "Stopped before anything was saved."
        raise KeyboardInterrupt(f"{stopped} {how_to_go_on(folder)}".rstrip()) from None
    return TrainingResult(folder, task, metrics if ranks.is_first else {}, bool(interrupts))


def read_training(
    task: Task | None, preset: str | None, overrides: Sequence[str], folder: Path | None, resume: Path | None
) -> tuple[Task, TrainConfig, Path, list[str]]:
    """Return the task, config and folder of a new or resumed run, and the `policy.*` settings that init_from changed."""
    if preset is not None and resume is not None:
        raise ConfigError(
            f"preset={preset} cannot be used with resume: a resumed run keeps its settings. Change single settings instead, "
            "for example ppo.lr=1e-4."
        )
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
        folder = folder or new_folder()
        if (folder / "config.yaml").exists() and "RANK" not in os.environ:
            raise ConfigError(
                f"{folder} already holds a run: --resume {folder} (in Python, resume=True) continues it, or choose another "
                "folder."
                if has_saved(folder)
                else f"{folder} already holds a run, but nothing was saved yet: --resume {folder} (in Python, resume=True) "
                "with corrected settings begins it from its start, or remove the folder."
            )
        check_settings(cfg)
        taken = take_network(task, cfg, overrides) if cfg.init_from else []
    return task, cfg, folder, taken


def choose_ranks(task: Task, cfg: TrainConfig, overrides: Sequence[str], quiet: bool) -> int:
    """Return the number of ranks: torchrun's, the config's or the default; 1 if other ranks could not import the code."""
    size = int(os.environ.get("WORLD_SIZE", 0)) or cfg.ranks or default_ranks(cfg.device, cfg.env.num_envs)
    local = local_code(task, overrides)
    if size == 1 or not local:
        return size
    if size == cfg.ranks or "WORLD_SIZE" in os.environ:
        raise ConfigError(
            f"{local} is defined in the calling program, from which the other {size - 1} ranks cannot import it: put it "
            "into a Python file and import it from there, or set ranks=1."
        )
    if not quiet:
        print(
            f"{local} is defined in the calling program, so training uses 1 rank. Put it into a Python file to use more.",
            file=sys.stderr,
        )
    return 1


def read_task(tasks: Sequence[str], overrides: Sequence[str]) -> tuple[Task | None, list[str]]:
    """Return the task that a command line names, by itself or as `task=NAME`, or None; and the other overrides."""
    named = [word.partition("=")[2].strip() for word in overrides if word.startswith("task=")]
    if bare := [word for word in tasks if "." in word and not is_code(word) and word not in task_names()]:
        raise ConfigError(f"{bare[0]!r} is not a task; a setting needs a value: {bare[0]}=VALUE.")
    names = list(dict.fromkeys([*tasks, *named]))
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(map(repr, names))} were given, but a run has one task: name it once.")
    return (find_task(names[0]) if names else None), [word for word in overrides if not word.startswith("task=")]


def new_folder() -> Path:
    """Return runs/<time>, with a number appended if that folder exists already."""
    name = time.strftime("%Y%m%d-%H%M%S")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / each for each in names) if not path.exists())


def local_code(task: Task, overrides: Sequence[str]) -> str:
    """Return the name of the task or class that only the calling program defines; "" if there is none."""
    references = [task.reference, *(word.partition("=")[2].strip() for word in overrides)]
    return next((each.removeprefix(LOCAL) for each in references if each.startswith(LOCAL)), "")


def has_saved(folder: Path) -> bool:
    """Return whether a run has a checkpoint to continue from."""
    return not CheckpointHistory(folder / "checkpoints").is_empty


def how_to_go_on(folder: Path) -> str:
    """Return a sentence on how to continue a stopped run; "" if nothing was saved."""
    return f"--resume {folder} continues from its newest checkpoint." if has_saved(folder) else ""


def moved_algorithm(run: Path, overrides: Sequence[str]) -> list[str]:
    """Return the algo= override, in a list, if the run's algorithm is a user's class, whose file may have moved; else [].

    Raises:
        ConfigError: The override names another class than the run was trained with.
    """
    path = run / "config.yaml"
    saved = str(read_yaml(path).get("algo", "ppo")) if path.is_file() else "ppo"
    named = value_given(overrides, "algo", {})
    if named is None or not is_reference(saved):
        return []
    if named.rpartition(":")[2] != saved.rpartition(":")[2]:
        raise ConfigError(
            f"algo={named} is not the algorithm that {run} was trained with, algo={saved}: a resumed run keeps its "
            "algorithm, so name that class."
        )
    return [f"algo={named}"]


def check_before_start(task: Task, cfg: TrainConfig, ranks: int) -> None:
    """Raise ConfigError for problems that would otherwise appear only after every rank has started."""
    check_settings(cfg)
    if cfg.env.num_envs % ranks:
        raise ConfigError(
            f"env.num_envs is {cfg.env.num_envs}, but must be a multiple of the {ranks} ranks: "
            f"set env.num_envs={cfg.env.num_envs // ranks * ranks or ranks}, or another number of ranks."
        )
    if cfg.collect.mode is CollectMode.halves and cfg.env.num_envs // ranks % 2:
        unit = task.metrics.unit
        raise ConfigError(
            f"collect.mode=halves needs an even number of {unit} on each of the {ranks} ranks, but "
            f"env.num_envs={cfg.env.num_envs} gives {cfg.env.num_envs // ranks}: change env.num_envs or ranks."
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    pick_device(cfg.device, torch.cuda.device_count(), here - 1)
    task.policy.build(task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy))
    if cfg.reward and (paid := env_with_reward(task, cfg.env, cfg.reward)) is not None:
        env_specs(task, paid)  # makes the reward
    elif cfg.reward:
        find_reward(cfg.reward)
    check_memory(task, cfg, ranks)


def check_folder(folder: Path) -> None:
    """Raise ConfigError if a run cannot be written to a folder; create nothing."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): choose another --folder.") from error
