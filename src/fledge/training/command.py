"""Start or resume a training: read its config, check it, start its ranks, and train."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from fledge.core.errors import ConfigError
from fledge.core.machine import pick_device
from fledge.core.settings import check_settings, flat_settings
from fledge.envs.checker import draw_actions
from fledge.envs.reward_wrapper import find_reward
from fledge.tasks.base import Task
from fledge.tasks.registry import LOCAL, find_task, is_code, task_names
from fledge.training.collectors import check_actors
from fledge.training.config import CollectMode, TrainConfig, make_config, read_run_config, with_named_code
from fledge.training.factories import env_with_reward, make_rank_envs
from fledge.training.init_from import other_env, take_network
from fledge.training.loop import train
from fledge.training.meeting import Meeting, meeting
from fledge.training.memory import check_memory, memory_sentence
from fledge.training.ranks import Ranks, default_ranks
from fledge.training.run import refuse_misfits
from fledge.training.run_folder import (
    check_folder,
    fetch_run,
    has_saved,
    how_to_go_on,
    moved_algorithm,
    new_folder,
    newest_saved,
    refuse_old_run,
    refuse_other_host,
    refuse_used_url,
)
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
    resume: bool | str = False,
    on_start: Callable[[Path], None] | None = None,
    quiet: bool = False,
    force: bool = False,
) -> TrainingResult:
    """Train on as many ranks as the config says.

    Args:
        task: By default the task of the resumed run, or navigation for a new run.
        overrides: `key=value` settings.
        folder: Folder of the run; by default runs/<time> for a new run.
        resume: True continues the run in `folder`; "auto" continues it if there is one, and starts a new run otherwise; a
            URL continues the run that its `checkpoint_url` had saved there.
        on_start: Called on rank 0 with the path of the run's folder, before the run is written to it.
        quiet: Print nothing.
        force: Train even if a process that has ended left the folder locked.

    Raises:
        KeyboardInterrupt: Ctrl-C before training began, or a second Ctrl-C; the message says how to continue.
    """
    interrupts: list[bool] = []
    try:
        with (
            contextlib.ExitStack() as signals,
            meeting(newest_saved(folder)) as met,
            contextlib.ExitStack() as until_end,
        ):
            if met.ranks.is_first:
                start = prepare(met, task, preset, overrides, folder, resume, quiet)
                lock = until_end.enter_context(RunLock(start.folder, force))
                if not start.resume:  # another process may have trained in this folder since the first check
                    refuse_old_run(start.folder)
                child = ["-m", "fledge.cli", "train", start.task.reference, *overrides]
                met.tell(start.ranks, child, start.message())
            else:
                start, lock = heard(met.hear(), task, overrides), None
            task, cfg, folder = start.task, start.cfg, start.folder
            met.advice = functools.partial(how_to_go_on, folder)
            ranks = met.join(cfg.device, cfg.threads, functools.partial(check_host, start, met))
            if ranks.is_first:
                announce(task, cfg, folder, ranks, start.taken, start.resume, quiet)
            if ranks.is_first and on_start is not None:
                on_start(folder)
            options: Any = {
                "quiet": quiet,
                "on_interrupt": lambda: interrupts.append(True),
                "lock": lock,
                "signals": signals,
            }
            with memory_sentence(task, cfg):
                metrics = train(cfg, folder, ranks, start.resume, task, **options)
    except KeyboardInterrupt:
        if folder is None or not has_saved(folder):
            raise KeyboardInterrupt("Stopped before anything was saved.") from None
        raise KeyboardInterrupt(f"Stopped at once. {how_to_go_on(folder)}") from None
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


@dataclass
class Start:
    """How a run starts: read and checked by rank 0, which tells the other ranks."""

    task: Task
    cfg: TrainConfig
    folder: Path
    resume: bool
    ranks: int
    taken: list[str]
    """Settings `policy.*` that init_from changed; known to rank 0 only."""

    def message(self) -> dict[str, Any]:
        """Return what the other ranks need, as JSON can write it; the settings as the text of a config.yaml."""
        text = OmegaConf.to_yaml(OmegaConf.structured(self.cfg))
        return {"config": text, "folder": str(self.folder), "resume": self.resume, "ranks": self.ranks}


def prepare(
    met: Meeting,
    task: Task | None,
    preset: str | None,
    overrides: Sequence[str],
    folder: Path | None,
    resume: bool | str,
    quiet: bool,
) -> Start:
    """Read and check everything that a run needs before its ranks start; called on rank 0."""
    if folder is not None:
        refuse_busy(folder)
    if resume:
        folder, overrides = fetch_run(resume, folder, overrides)
        refuse_other_host(folder, met.notes)
    if resume == "auto":
        resume = newest_saved(folder) >= 0
        preset = None if resume else preset  # a resumed run keeps its settings
    task, cfg, folder, taken = read_training(task, preset, overrides, folder, bool(resume))
    if cfg.checkpoint_url and not resume:
        refuse_used_url(cfg.checkpoint_url)
    size = choose_ranks(task, cfg, overrides, quiet, met)
    start = Start(task, cfg, folder, bool(resume), size, taken)
    check_before_start(task, cfg, size, met.ranks.here if met.launched else size)
    check_folder(folder)
    if cfg.reward:
        try_reward(task, cfg, size)
    return start


def heard(message: dict[str, Any], task: Task | None, overrides: Sequence[str]) -> Start:
    """Return the start that rank 0 told; of the user's own code, only what `task` and `overrides` name runs here too."""
    with tempfile.TemporaryDirectory(prefix="fledge_config_") as folder:
        Path(folder, "config.yaml").write_text(message["config"], encoding="utf-8")
        task, cfg = read_run_config(Path(folder), (), task, named=overrides)
    cfg = with_named_code(cfg, overrides)
    return Start(task, cfg, Path(message["folder"]), message["resume"], message["ranks"], [])


def check_host(start: Start, met: Meeting) -> None:
    """Raise a FledgeError if this host cannot train the run; rank 0 has checked its own before."""
    if not met.ranks.is_first:
        check_memory(start.task, start.cfg, met.ranks.size, met.ranks.here)


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


def choose_ranks(task: Task, cfg: TrainConfig, overrides: Sequence[str], quiet: bool, met: Meeting) -> int:
    """Return the number of ranks: as many as a launcher started, else that of the config, else the default.

    The default is 1 if the task or a class is defined in the calling program, where other ranks cannot import it.

    Raises:
        ConfigError: More than one rank was requested for such a task or class.
    """
    usual = 1 if cfg.actors.listen else default_ranks(cfg.device, cfg.env.num_envs)
    size = met.ranks.size if met.launched else cfg.ranks or usual
    local = local_code(task, overrides)
    if size == 1 or not local:
        return size
    if size == cfg.ranks or met.launched:
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


def local_code(task: Task, overrides: Sequence[str]) -> str:
    """Return the name of the task or class that only the calling program defines; "" if there is none."""
    references = [task.reference, *(word.partition("=")[2].strip() for word in overrides)]
    return next((each.removeprefix(LOCAL) for each in references if each.startswith(LOCAL)), "")


def check_before_start(task: Task, cfg: TrainConfig, ranks: int, here: int | None = None) -> None:
    """Raise ConfigError for problems that would otherwise appear only after every rank has started.

    Args:
        here: Number of ranks on this host; by default all are.
    """
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
    pick_device(cfg.device, torch.cuda.device_count(), (here or ranks) - 1)
    task.policy.build(task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy))
    if cfg.reward and env_with_reward(task, cfg.env, cfg.reward) is None:
        find_reward(cfg.reward)
    check_memory(task, cfg, ranks, here)


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
