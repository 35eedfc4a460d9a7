"""The training loop: start or resume, iterate, stop cleanly."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fledge.agents.policy_file import load_weights
from fledge.collect.remote import NoExperienceError, RemoteCollector
from fledge.core.errors import NumericsError
from fledge.core.machine import keep_freed_memory
from fledge.monitor import PerformanceMonitor
from fledge.tasks.base import Task
from fledge.training.auto import AutoSizes
from fledge.training.collectors import listen
from fledge.training.config import TrainConfig
from fledge.training.learner_checks import OTHER_ROUNDING, ROUNDING, check_weights
from fledge.training.nan_dump import dump_update
from fledge.training.outputs import RunOutputs
from fledge.training.rank_parts import FINISH_S
from fledge.training.ranks import Ranks
from fledge.training.run import EXACT, TrainingState
from fledge.training.run_lock import RunLock


def train(
    cfg: TrainConfig,
    folder: Path,
    ranks: Ranks,
    resume: bool = False,
    task: Task | None = None,
    *,
    quiet: bool = False,
    on_interrupt: Callable[[], None] | None = None,
    lock: RunLock | None = None,
    signals: contextlib.ExitStack | None = None,
) -> dict[str, float]:
    """Train for as long as the config says, or until a signal, and return the metrics of the last iteration.

    Rank 0 writes the run's folder; all ranks learn. A stopped or killed run continues with `resume`.

    Args:
        quiet: Print nothing.
        on_interrupt: Called on rank 0 if Ctrl-C or SIGTERM ended the training, after it was saved.
        lock: Lock of the folder, on rank 0; training stops if another process takes it over.
        signals: ExitStack that removes the signal handlers when it closes; until then the first Ctrl-C only asks for a
            clean stop. By default the handlers are removed when this function returns.
    """
    keep_freed_memory()
    run = ranks.together(lambda: TrainingState(cfg, ranks, task))
    outputs = start_run(run, folder, resume, quiet, lock)
    try:
        with contextlib.ExitStack() as until_return:
            stopped = (signals or until_return).enter_context(stop_on_signals(quiet or not ranks.is_first))
            monitor = PerformanceMonitor(cuda=run.device != "cpu")  # there the host is done before the device is
            metrics = dict[str, float]()
            failed: Exception | None = None  # an evaluation: the run stops as if told to, so that it is saved
            auto = AutoSizes(run, folder, outputs.begin if outputs else lambda text: None) if cfg.auto else None
            while not run.at_stop:
                begun = time.perf_counter()
                if auto:
                    auto.border()
                try:
                    with monitor.timer("data_collection"):
                        rollout = run.collect(stopped=stopped)
                except NoExperienceError as error:
                    failed = None if stopped() else error
                    if outputs:
                        outputs.save(run.state_dict())
                    break
                with monitor.timer("policy_training"):
                    if outputs:
                        outputs.saver.fence()  # weights change from here on
                    losses = run.learn(rollout)
                metrics = run.episode_metrics(rollout) | losses
                run.seconds += time.perf_counter() - begun
                if outputs:
                    failed = outputs.evaluate(metrics, monitor)
                    outputs.log(metrics, monitor)
                    outputs.archive(rollout, monitor)
                wants_stop = stopped() or run.out_of_time or run.at_stop or failed is not None
                stop = ranks.sum(torch.tensor([float(wants_stop)])).item() > 0
                if run.iteration % cfg.save_interval == 0 or run.finished or stop:
                    check_weights(run.policy, cfg.algo, run.iteration)  # on every rank: they have the same weights
                    with monitor.timer("checkpoint_save"):
                        if outputs:
                            outputs.save(run.state_dict())
                        else:
                            run.parts.send(run.rank_state(), run.iteration)
                if stop:
                    break
            if on_interrupt and stopped():
                on_interrupt()
            if not outputs:
                run.parts.close(FINISH_S)
            metrics = outputs.finish(metrics) if outputs else metrics
            if failed is not None:
                raise failed
            return metrics
    except NumericsError as error:
        raise dump_update(run, folder, error) from error
    finally:
        if outputs:
            outputs.close()
        run.close()


def start_run(
    run: TrainingState, folder: Path, resume: bool, quiet: bool = False, lock: RunLock | None = None
) -> RunOutputs | None:
    """Load the newest checkpoint (to resume) or the weights of `init_from` on every rank.

    Return the outputs on rank 0, None on other ranks. If an error occurs, remove the folder if this run created it.
    """
    outputs: RunOutputs | None = None
    try:
        outputs = run.ranks.together(lambda: RunOutputs(run, folder, quiet, lock) if run.ranks.is_first else None)
        state = run.ranks.share(run.ranks.together(lambda: outputs.load(resume) if outputs else None))
        say = run.ranks.together(lambda: take_state(run, state, resume))
        if outputs:
            outputs.write_config()
            outputs.begin(say)
            if isinstance(run.collector, RemoteCollector):
                listen(run.collector, run.task, run.cfg, folder, outputs.console.say)
        return outputs
    except BaseException:
        if outputs:
            outputs.close(discard=True)
        run.close()
        raise


def take_state(run: TrainingState, state: dict[str, Any] | None, resume: bool) -> str:
    """Load a saved state into a run; return a sentence for the user: what was loaded, and how the run continues."""
    if state is None:
        return ""
    if not resume:
        load_weights(run.policy, state["model"], run.cfg.init_from)
        run.learner.begin()
        return (
            f"Weights and running normalisation come from {run.cfg.init_from}; the optimiser, schedules and counters "
            "start fresh."
        )
    how = run.load_state_dict(state)
    if how != EXACT:
        run.learner.schedule(run.progress)
    note = ""
    if state.get("rounding", 1) < ROUNDING:
        how = "from its saved state" if how == EXACT else how
        note = f" {OTHER_ROUNDING}"
    end = " It has finished: raise total_frames to continue." if run.finished else ""
    return f"Resumed at iteration {run.iteration}/{run.total_iterations}; continues {how}.{note}{end}"


@contextlib.contextmanager
def stop_on_signals(quiet: bool = False) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM was received. A second Ctrl-C raises KeyboardInterrupt.

    Outside the main thread, where Python cannot handle signals, the function always returns False.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: Any) -> None:
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)
        if not quiet:
            print("\nStopping after this iteration and saving; Ctrl-C again to stop at once.", file=sys.stderr)

    old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
