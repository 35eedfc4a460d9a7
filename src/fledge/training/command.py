"""Start or resume a training: read its config, check it, start its ranks, and train."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fledge.core.code import is_reference
from fledge.core.errors import ConfigError
from fledge.core.machine import pick_device
from fledge.core.overrides import read_yaml, value_given
from fledge.core.settings import check_settings, flat_settings
from fledge.envs.checker import draw_actions
from fledge.envs.reward_wrapper import find_reward
from fledge.storage import CheckpointHistory
from fledge.tasks.base import Task
from fledge.tasks.registry import LOCAL, find_task, is_code, task_names
from fledge.training.collectors import check_actors
from fledge.training.config import CollectMode, TrainConfig, make_config, read_run_config, with_named_code
from fledge.training.init_from import other_env, take_network
from fledge.training.loop import train
from fledge.training.memory import check_memory, memory_sentence
from fledge.training.ranks import Ranks, default_ranks, joined_ranks, ranks_from_environment, read_variable
from fledge.training.run import env_with_reward, make_rank_envs, refuse_misfits
from fledge.training.run_lock import RunLock, refuse_busy

TRIAL_STEPS = 3  # of a user's reward, before the run starts


@dataclass
class TrainingResult:
    """Result of `run_training`: the folder and task of the run, its last metrics, and whether it was interrupted."""

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
    resume: bool | Literal["auto"] = False,
    on_start: Callable[[Path], None] | None = None,
    quiet: bool = False,
    force: bool = False,
) -> TrainingResult:
    """Train on as many ranks as the config says.

    Args:
        task: By default the task of the resumed run, or navigation for a new run.
        overrides: `key=value` settings.
        folder: Folder of the run; by default runs/<time> for a new run.
        resume: True continues the run in `folder`; "auto" continues it if there is one, and starts a new run otherwise.
        on_start: Called on rank 0 with the path of the run's folder, before the run is written to it.
        quiet: Print nothing.
        force: Train even if a process that has ended left the folder locked.

    Raises:
        KeyboardInterrupt: Ctrl-C before training began, or a second Ctrl-C; the message says how to continue.
    """
    place = ranks_from_environment()
    is_first = place is None or place.is_first
    if folder is not None and is_first:
        refuse_busy(folder)
    if resume == "auto":
        resume = folder is not None and (folder / "config.yaml").exists()
        preset = None if resume else preset  # a resumed run keeps its settings
    task, cfg, folder, taken = read_training(task, preset, overrides, folder, resume)
    size = choose_ranks(task, cfg, overrides, quiet, place)
    check_before_start(task, cfg, size)
    check_folder(folder)
    if cfg.reward and is_first:
        try_reward(task, cfg, size)
    mode = ["--resume", str(folder)] if resume else ["--folder", str(folder)]
    mode += ["--preset", preset] if preset is not None and not resume else []
    child = ["-m", "fledge.cli", "train", task.reference, *overrides, *mode]
    interrupts: list[bool] = []
    try:
        with contextlib.ExitStack() as signals, contextlib.ExitStack() as until_end:
            lock = until_end.enter_context(RunLock(folder, force)) if is_first else None
            if not resume:  # another process may have trained in this folder since the first check
                refuse_old_run(folder)
            joining = joined_ranks(size, cfg.device, child, cfg.threads, lambda: how_to_go_on(folder))
            ranks = until_end.enter_context(joining)
            ranks.together(lambda: check_same_start(resume, ranks.share(resume), folder))
            if ranks.is_first:
                announce(task, cfg, folder, ranks, taken, resume, quiet)
            if ranks.is_first and on_start is not None:
                on_start(folder)
            options: Any = {
                "quiet": quiet,
                "on_interrupt": lambda: interrupts.append(True),
                "lock": lock,
                "signals": signals,
            }
            with memory_sentence(task, cfg):
                metrics = train(cfg, folder, ranks, resume, task, **options)
    except KeyboardInterrupt:
        stopped = "Stopped at once." if has_saved(folder) else "Stopped before anything was saved."
        raise KeyboardInterrupt(f"{stopped} {how_to_go_on(folder)}".rstrip()) from None
    return TrainingResult(folder, task, metrics if ranks.is_first else {}, bool(interrupts))


def announce(
    task: Task, cfg: TrainConfig, folder: Path, ranks: Ranks, taken: list[str], resume: bool, quiet: bool
) -> None:
    """Print the folder, the number of ranks and envs, and the settings `taken` from the policy of `init_from`."""
    if quiet:
        return
    many = f"{ranks.size} rank{'s' if ranks.size > 1 else ''} on {cfg.device}"
    print(f"run: {folder}  ({many}, {cfg.env.num_envs} {task.metrics.unit})", file=sys.stderr)
    if taken:
        print(f"network of {cfg.init_from}: {' '.join(taken)}", file=sys.stderr)
    if cfg.init_from and not resume and (text := other_env(task, cfg)):
        print(text, file=sys.stderr)


def check_same_start(resume: bool, rank0_resumes: bool, folder: Path) -> None:
    """Raise ConfigError if this rank resumes a run but rank 0 starts a new one, or the other way round."""
    if resume != rank0_resumes:
        found, other = ("a", "none") if rank0_resumes else ("no", "one")
        raise ConfigError(
            f"Rank 0 found {found} run in {folder}, but another rank found {other}: use a folder that all hosts share."
        )


def read_training(
    task: Task | None, preset: str | None, overrides: Sequence[str], folder: Path | None, resume: bool
) -> tuple[Task, TrainConfig, Path, list[str]]:
    """Return the task, config and folder of a new or resumed run, and the `policy.*` settings that init_from changed."""
    if preset is not None and resume:
        raise ConfigError(
            f"preset={preset} cannot be used with resume: a resumed run keeps its settings. Change single settings instead, "
            "for example ppo.lr=1e-4."
        )
    taken: list[str] = []
    if resume:
        assert folder is not None
        moved = moved_algorithm(folder, overrides)
        task, before = read_run_config(folder, moved, task, named=overrides)
        _, cfg = read_run_config(folder, overrides, task)
        cfg = with_named_code(cfg, overrides)
        check_settings(before)
        policy = task.policy.build(task.policy.describe(task, before.learner.policy_form, before.env, before.policy))
        if has_saved(folder):
            refuse_misfits(flat_settings(before), cfg, policy.observes)
    else:
        task = task or find_task("navigation")
        cfg = make_config(task, preset, overrides)
        folder = folder or new_folder()
        refuse_old_run(folder)
        check_settings(cfg)
        taken = take_network(task, cfg, overrides) if cfg.init_from else []
    return task, cfg, folder, taken


def refuse_old_run(folder: Path) -> None:
    """Raise ConfigError if a folder already holds a run, which a new run would replace."""
    if not (folder / "config.yaml").exists():
        return
    how = resume_call(folder)
    if has_saved(folder):
        raise ConfigError(f"{folder} already holds a run: continue it with {how}, or choose another folder.")
    raise ConfigError(
        f"{folder} already holds a run, which has no checkpoint yet. To start it again, with corrected settings if you like, "
        f"use {how}; or remove the folder."
    )


def choose_ranks(task: Task, cfg: TrainConfig, overrides: Sequence[str], quiet: bool, given: Ranks | None) -> int:
    """Return the number of ranks: that of `given` (from torchrun), else of the config, else the default.

    The default is 1 if the task or a class is defined in the calling program, where other ranks cannot import it.

    Raises:
        ConfigError: More than one rank was requested for such a task or class.
    """
    usual = 1 if cfg.actors.listen else default_ranks(cfg.device, cfg.env.num_envs)
    size = given.size if given else cfg.ranks or usual
    local = local_code(task, overrides)
    if size == 1 or not local:
        return size
    if size == cfg.ranks or given:
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
    """Return the task that the user named (NAME or task=NAME; None if neither), and the overrides without task=NAME."""
    named = [word.partition("=")[2].strip() for word in overrides if word.startswith("task=")]
    if bare := [word for word in tasks if "." in word and not is_code(word) and word not in task_names()]:
        raise ConfigError(f"{bare[0]!r} is not a task; a setting needs a value: {bare[0]}=VALUE.")
    names = list(dict.fromkeys([*tasks, *named]))
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(map(repr, names))} were given, but a run has only one task: name one.")
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
    return f"{resume_call(folder)} continues from its newest checkpoint." if has_saved(folder) else ""


def resume_call(folder: Path) -> str:
    """Return the command that continues a run, and its form in Python."""
    return f"`fledge train --resume {shlex.quote(str(folder))}` (in Python, folder={str(folder)!r}, resume=True)"


def moved_algorithm(run: Path, overrides: Sequence[str]) -> list[str]:
    """Return a list with the user's override `algo=...`, which says where the class of the run's algorithm is now.

    Return [] if the run was trained with one of Fledge's algorithms, or if there is no such override.

    Raises:
        ConfigError: The override names a class with which the run was not trained.
    """
    path = run / "config.yaml"
    saved = str(read_yaml(path).get("algo", "ppo")) if path.is_file() else "ppo"
    named = value_given(overrides, "algo", {})
    if named is None or not is_reference(saved):
        return []
    if named.rpartition(":")[2] != saved.rpartition(":")[2]:
        raise ConfigError(
            f"algo={named} is not the algorithm that {run} was trained with, algo={saved}: a resumed run keeps its "
            "algorithm, so pass the class of that name."
        )
    return [f"algo={named}"]


def check_before_start(task: Task, cfg: TrainConfig, ranks: int) -> None:
    """Raise ConfigError for problems that would otherwise appear only after every rank has started."""
    check_settings(cfg)
    check_actors(task, cfg, ranks)
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
    here = read_variable("LOCAL_WORLD_SIZE", 1) if "LOCAL_WORLD_SIZE" in os.environ else ranks
    pick_device(cfg.device, torch.cuda.device_count(), here - 1)
    task.policy.build(task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy))
    if cfg.reward and env_with_reward(task, cfg.env, cfg.reward) is None:
        find_reward(cfg.reward)
    check_memory(task, cfg, ranks)


def try_reward(task: Task, cfg: TrainConfig, ranks: int) -> None:
    """Step envs like those of the run a few times with a user's reward, so that its errors appear before the run starts."""
    device = pick_device(cfg.device, torch.cuda.device_count())
    with torch.random.fork_rng(devices=[]):
        envs = make_rank_envs(task, cfg, Ranks(0, ranks), device)
        try:
            envs[0].reset()
            for action in draw_actions(envs[0], TRIAL_STEPS):
                envs[0].step(action)
        finally:
            for env in envs:
                env.close()


def check_folder(folder: Path) -> None:
    """Raise ConfigError if a run cannot be written to a folder; create nothing."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error
