"""Outputs of rank 0: metrics, progress, evaluations, checkpoints, archives."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from fledge.agents.policy_file import ENTRIES, past_self_file
from fledge.collect.compressed import CompressedBatch
from fledge.core.errors import FledgeError, StorageError
from fledge.core.overrides import to_plain
from fledge.core.settings import code_settings, flat_settings
from fledge.evaluation.episodes import VALIDATION_SEED, evaluate
from fledge.evaluation.run_info import train_command, update_run_info, write_run_info
from fledge.monitor import PerformanceMonitor, print_model_info
from fledge.monitor.loggers import (
    DISK_FULL,
    ConsoleLogger,
    FileLogger,
    Logger,
    TensorBoardLogger,
    WandbMode,
    open_wandb,
)
from fledge.storage import AsyncCheckpointSaver, CheckpointHandle, CheckpointHistory, RolloutStorage
from fledge.storage.history.history import Complete
from fledge.storage.remote.run_store import RunStore
from fledge.storage.remote.uploader import Uploader
from fledge.tasks.registry import is_code
from fledge.training.init_from import read_initial_policy
from fledge.training.learner_checks import place_of
from fledge.training.log_row import checkpoint_metrics, mean_episodes, memory_metrics
from fledge.training.memory import MemoryWatch
from fledge.training.run import TrainingState
from fledge.training.run_lock import RunLock

SUMMARY_EVERY = 100  # iterations between two summaries
OFF_POLICY_SUMMARY_S = 60.0  # at least between two summaries: an iteration from replay may be a few decisions only
MAX_LEVEL = 9  # of the native codecs
RECENT = 20  # iterations that the recent primary metric averages over


class RunOutputs:
    """Writes the logs, evaluations, checkpoints and rollout archives of a run; only rank 0 has this object."""

    def __init__(self, run: TrainingState, folder: Path, quiet: bool = False, lock: RunLock | None = None) -> None:
        cfg = run.cfg
        self.run, self.folder, self.lock = run, folder, lock
        self.is_new = lock.made_folder if lock else not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        level = min(cfg.save_compression_level, MAX_LEVEL) if cfg.compress_checkpoint else 0
        # signals: the training loop finishes its iteration, saves and drains the queue itself
        self.saver = AsyncCheckpointSaver(cfg.async_checkpoint_queue_size, level, handle_signals=False)
        for optimizer in run.learner.optimizers.values():
            self.saver.attach(optimizer)
        self.history = CheckpointHistory(
            folder / "checkpoints",
            saver=self.saver,
            keep_whole=cfg.keep_checkpoints,
            keep_best=cfg.keep_best,
            delta=cfg.save_delta,  # type: ignore[arg-type]
        )
        self.uploader: Uploader | None = None
        if cfg.checkpoint_url:
            self.uploader = Uploader(RunStore(cfg.checkpoint_url), folder, cfg.keep_checkpoints)
        self.rollouts: RolloutStorage | None = None
        self.archived: CheckpointHandle | None = None  # the newest rollout
        if cfg.rollout_save_interval:
            self.rollouts = RolloutStorage(folder / "rollouts", cfg.rollout_compression_level)
        self.primary_metric = run.task.primary_metric
        self.console = ConsoleLogger(run.total_iterations, self.primary_metric, quiet)
        self.loggers: list[Logger] = []
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self.last: dict[str, float] = {}
        self.unlogged: list[dict[str, float]] = []  # episodes of the iterations since the last row of the log
        self.summed_up = float("-inf")  # when the summary was printed last
        self.newest: CheckpointHandle | None = None
        self.memory_watch = MemoryWatch()
        if not quiet:
            with contextlib.redirect_stdout(sys.stderr):
                print_model_info(run.policy)

    def write_config(self) -> None:
        """Write config.yaml, which makes the folder a run, and run.json; allow live recording from here on."""
        path = self.folder / "config.yaml"
        with writing(self.folder):
            OmegaConf.save(OmegaConf.structured(self.run.configured), path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
            self.write_info()
        self.run.recorder.capture.folder = self.folder

    def write_info(self) -> None:
        """Write run.json, or update it on resume: command, preset, machine, and settings that differ from the defaults."""
        cfg, task = self.run.configured, self.run.task
        defaults = {**flat_settings(type(cfg)()), "device": cfg.device}  # auto is resolved by now
        changed = {key: value for key, value in flat_settings(cfg).items() if defaults.get(key) != value}
        usual = {key: defaults.get(key) for key in changed}
        if cfg.made_by is None:  # resumed
            return update_run_info(self.folder, changed, usual)
        preset, overrides = cfg.made_by
        command = train_command(task.reference, preset, overrides, self.folder)
        chosen = task.presets.default(cfg.learner.policy_form) if preset is None else preset
        write_run_info(self.folder, command, chosen, changed, usual, str(self.run.device))

    def load(self, resume: bool) -> dict[str, Any] | None:
        """Open the loggers; return the saved state to start from (newest checkpoint, or policy of init_from), or None."""
        cfg = self.run.cfg
        state = None
        if resume and self.history.is_empty:
            self.console.say("Nothing had been saved yet: the run begins from its start.")
        elif resume:
            state, entry = self.history.load_latest()
            if self.uploader:  # may not have got through before
                self.uploader.submit(entry.step, entry.path)
            noted = state.get("log", {"recent": [], "unlogged": []})
            self.recent.extend((total, flown) for total, flown in noted["recent"])
            self.unlogged.extend(noted["unlogged"])
        elif cfg.init_from:
            state = read_initial_policy(cfg.init_from, self.run.task)
        step = int(state["iteration"]) if resume and state else None
        with writing(self.folder):
            self.loggers = [FileLogger(self.folder, step), self.console]
            if cfg.tensorboard:
                self.loggers.append(TensorBoardLogger(self.folder, step))
        if cfg.wandb.mode is not WandbMode.disabled:
            wandb, note = open_wandb(self.folder, cfg.wandb.mode.value, cfg.wandb.project, to_plain(cfg))
            self.loggers += [wandb] if wandb else []
            if note:
                self.console.say(note)
        return state

    def begin(self, text: str) -> None:
        """Start the progress display at the present iteration, and print `text`, which says how the run begins."""
        self.console.resume(self.run.iteration, self.run.total_iterations)
        if text:
            self.console.say(text)

    def evaluate(self, metrics: dict[str, float], monitor: PerformanceMonitor) -> FledgeError | None:
        """Every `eval_interval` iterations, evaluate on held-out maps and seeds and add the results to `metrics`.

        Other ranks wait meanwhile. If the evaluation fails, return its error, which the caller raises after saving the run.
        """
        cfg, task, iteration = self.run.cfg, self.run.task, self.run.iteration
        if not cfg.eval_interval or iteration % cfg.eval_interval:
            return None
        try:
            world = task.evaluation(cfg.env)
            with monitor.timer("evaluation"), torch.random.fork_rng(devices=[]):
                result = evaluate(
                    self.run.policy,
                    task,
                    world,
                    cfg.eval_episodes,
                    VALIDATION_SEED,
                    device=self.run.device,
                    num_threads=1,
                )
            metrics |= {f"eval/{name}": result.rate(name) for name in result.counts}
            metrics["eval/return"] = float(result.returns.mean())
        except Exception as error:
            why = str(error) if isinstance(error, FledgeError) else f"{type(error).__name__}: {error}."
            failure = FledgeError(
                f"The evaluation after iteration {iteration} failed{place_of(error)}: {why} The run was saved after this "
                "iteration: resume it with corrected code, or with eval_interval=0 to train without evaluations."
            )
            failure.__cause__ = error
            return failure
        return None

    def log(self, metrics: dict[str, float], monitor: PerformanceMonitor) -> None:
        run = self.run
        if self.lock:
            self.lock.check()
        if metrics["episodes"]:
            self.recent.append((metrics["episodes"] * metrics[self.primary_metric], metrics["episodes"]))
        if self.recent:  # before the first episode has ended there is nothing to say
            total, flown = (sum(column) for column in zip(*self.recent, strict=True))
            metrics[f"{self.primary_metric}_recent"] = total / flown
        metrics["frames"], metrics["seconds"] = run.frames, run.seconds
        metrics |= {f"auto/{name.partition('.')[2]}": float(size) for name, size in run.sizes.items()}
        last = monitor.get_stats(window=1)
        metrics["collect_s"], metrics["learn_s"] = (last[k]["mean"] for k in ("data_collection", "policy_training"))
        metrics["simulate_s"] = run.collector.simulate_s
        metrics["frames_per_second"] = run.frames_per_iteration / (metrics["collect_s"] + metrics["learn_s"])
        metrics |= {f"perf/{name}": stats["mean"] for name, stats in monitor.get_stats(window=RECENT).items()}
        metrics |= checkpoint_metrics(self.saver.get_stats())
        if self.uploader:
            metrics |= {f"checkpoint/{name}": value for name, value in self.uploader.get_stats().items()}
        metrics |= memory_metrics(run.device)
        self.last = metrics
        self.unlogged.append({name: metrics[name] for name in (*run.outcomes.values(), "return", "length", "episodes")})
        if run.iteration % run.cfg.log_interval == 0 or run.finished:
            means = mean_episodes(self.unlogged)
            row = {name: value for name, value in {**metrics, **means}.items() if value is not None}
            self.unlogged.clear()
            with writing(self.folder):
                for logger in self.loggers:
                    logger.log(run.iteration, row)
        if "memory_mb" in metrics and not run.cfg.off_policy:  # a replay grows until it is full
            warning = self.memory_watch.add(run.iteration, metrics["memory_mb"])
            if warning:
                self.console.say(warning)
        pause = OFF_POLICY_SUMMARY_S if run.cfg.off_policy else 0.0
        if run.iteration % SUMMARY_EVERY == 0 and time.monotonic() - self.summed_up >= pause:
            self.summed_up = time.monotonic()
            self.console.say(monitor.get_summary(window=SUMMARY_EVERY))
            self.console.say(self.saver.get_summary())

    def archive(self, rollout: Any, monitor: PerformanceMonitor) -> None:
        every = self.run.cfg.rollout_save_interval
        if self.rollouts is not None and self.run.iteration % every == 0:
            with monitor.timer("rollout_save"):
                whole = rollout.decode() if isinstance(rollout, CompressedBatch) else rollout
                self.archived = self.rollouts.save(whole, self.run.iteration)

    def save(self, state: dict[str, Any]) -> None:
        """Save rank 0's `state`, with the states that the other ranks send, as a checkpoint in the background."""
        for number, weights in self.run.curriculum.take_new_selves().items():
            policy = {**{name: state[name] for name in ENTRIES}, "model": weights}
            self.saver.save_async(policy, past_self_file(self.folder, number))
        state["log"] = {"recent": [list(pair) for pair in self.recent], "unlogged": list(self.unlogged)}
        metric = self.last.get(f"{self.primary_metric}_recent")
        complete = after_rollout(self.archived, self.run.parts.receiver(self.run.iteration))
        self.newest = self.history.save(state, self.run.iteration, metric=metric, complete=complete)
        if self.uploader:
            self.uploader.submit(self.run.iteration, self.newest)

    def finish(self, metrics: dict[str, float]) -> dict[str, float]:
        """Wait until all files are on disk, print how to continue, and return `metrics`; raise if the last save failed.

        Raise too if the last checkpoint was not uploaded to `checkpoint_url`.

        The returned dict lacks the metrics of episodes if no episode ended in the last iteration.
        """
        self._finish_saves()
        if self.newest is not None:
            self.newest.wait()
        self.console.close()
        self.console.say(self.ending())
        if self.uploader:
            self.uploader.finish()
        unknown = () if metrics.get("episodes") else (*self.run.outcomes.values(), "return", "length")
        return {name: value for name, value in metrics.items() if name not in unknown}

    def _finish_saves(self) -> None:
        """Wait until rollouts and checkpoints are on disk, and stop the threads that write them."""
        if self.rollouts is not None:
            self.rollouts.close()
        self.saver.shutdown()

    def ending(self) -> str:
        """Return a text that says where the run was saved, and the commands to continue and to evaluate it."""
        run = self.run
        code = is_code(run.task.reference)  # is run only if the command names it
        folder = shlex.quote(str(self.folder))
        resume = f"fledge train {run.task.reference + ' ' if code else ''}--resume {folder}"
        for key, value in code_settings(run.cfg).items():
            text = value if isinstance(value, str) else f"[{','.join(value)}]"
            resume += f" {shlex.quote(f'{key}={text}')}"
        evaluate = f"fledge eval {folder}{' --task ' + run.task.reference if code else ''}"
        at = f"iteration {run.iteration}/{run.total_iterations}, {run.frames:,} decisions; saved in {self.folder}"
        if run.finished:
            more = f"total_frames={2 * max(run.cfg.total_frames, run.frames)}"
            return f"Finished: {at}.\n  evaluate:  {evaluate}\n  continue:  {resume} {more}"
        return f"Stopped: {at}.\n  continue:  {resume}\n  evaluate:  {evaluate}"

    def close(self, discard: bool = False) -> None:
        """Close the saver and the loggers; `discard`, for a failed start, also removes a folder that this run created."""
        self.console.close()
        with contextlib.suppress(FledgeError):
            self._finish_saves()
        with contextlib.suppress(FledgeError):
            if self.uploader:
                self.uploader.finish()
        for logger in self.loggers:
            with contextlib.suppress(OSError):  # on a full disk the flush in close fails as well
                logger.close()
        if discard and self.is_new:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block, such as a full disk, into a StorageError that names the run's folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FledgeError):
            raise
        fix = "free some space" if error.errno in DISK_FULL else "check the folder"
        raise StorageError(
            f"{folder} cannot be written ({error.strerror or error}), so the training stops: {fix}, then resume the run from "
            "its newest checkpoint."
        ) from error


def after_rollout(archived: CheckpointHandle | None, complete: Complete | None) -> Complete | None:
    """Return a function for `CheckpointHistory.save` that waits until the archived rollout is on disk, then calls `complete`.

    Else, if the process were killed after the checkpoint but before the rollout, a resumed run would lack that rollout.
    """
    if archived is None or archived.done:
        return complete

    def wait_first(node: Any, leaves: Any) -> Any:
        with contextlib.suppress(FledgeError):  # RolloutStorage reports that it failed
            archived.wait()
        return complete(node, leaves) if complete is not None else (node, leaves)

    return wait_first
