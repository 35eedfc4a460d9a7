"""A worker: takes a job of the sweep, trains it in a process of its own, records the result, and goes on with the next."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fledge.core.errors import FledgeError, StorageError
from fledge.core.json_file import read_json
from fledge.core.terminal import strict_json
from fledge.monitor.metrics_file import is_number, read_metrics
from fledge.storage.disk.durable import make_folder, write_text
from fledge.training.config import make_config
from fledge.training.run_lock import LOCK_NAME, has_ended, read_owner
from fledge.tuning.claims import Claim, Claims
from fledge.tuning.search import Job, read_result
from fledge.tuning.sweep import Sweep
from fledge.tuning.trial_process import Order

T = TypeVar("T")
PROGRAM = (sys.executable, "-m", "fledge.tuning.trial_process")
POLL_S = 0.25
CRASHES = 3  # of a training, by a signal, before the trial counts as failed
STOP_S = 60.0  # for a training to save and end
NOT_COPIED = ("run.lock", "tensorboard", "rollouts", "live", "*.frec")


class Phase(Protocol):
    """A kind of jobs: the search, population-based training, or the confirmation."""

    def open_jobs(self) -> Iterator[str]: ...
    def draw(self, key: str) -> dict[str, Any]: ...
    def job(self, claim: Claim) -> Job: ...
    def should_stop(self, job: Job, values: Mapping[int, float]) -> int: ...
    def record(self, job: Job, result: Mapping[str, Any]) -> None: ...


class Worker:
    """Does jobs of a phase.

    Args:
        tell: Called with a job and its result after each job.
        stop: Event that stops the worker: the running training is saved, and its job released.
        cores: CPU cores of the trainings; None for all.
        begin: Called with a job when its training begins.
    """

    def __init__(
        self,
        sweep: Sweep,
        claims: Claims,
        tell: Callable[[Job, Mapping[str, Any]], None],
        stop: threading.Event,
        cores: list[int] | None = None,
        begin: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.sweep, self.claims, self.tell, self.stop, self.cores = sweep, claims, tell, stop, cores
        self.begin = begin

    def work(self, phase: Phase) -> None:
        """Do jobs until the phase has none left, or until `stop` is set."""
        while not self.stop.is_set():
            claim, left = self.patiently(lambda: self.next_claim(phase))
            if claim is not None:
                self.do(phase, claim)
            elif not left:
                return
            else:
                self.stop.wait(4 * POLL_S)

    def patiently(self, call: Callable[[], T]) -> T:
        """Return the result of a call to the storage; repeat it while the storage does not answer, for one grace period."""
        give_up = time.monotonic() + self.claims.grace_s
        while True:
            try:
                return call()
            except FledgeError:
                raise
            except Exception as error:
                if time.monotonic() > give_up or self.stop.is_set() or isinstance(error, KeyError | TypeError):
                    why = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
                    raise StorageError(
                        f"The storage of {self.sweep.folder} cannot be used ({type(error).__name__}: {why}): check it, then "
                        "run the command again."
                    ) from error
                time.sleep(1.0)

    def next_claim(self, phase: Phase) -> tuple[Claim | None, bool]:
        """Claim a job that is new, or whose worker has stopped; return the claim, and whether any job is left."""
        claims, left = self.claims.all(), False
        for key in phase.open_jobs():
            left, now = True, claims.get(key)
            if now is not None and not self.claims.is_stale(now):
                continue
            epoch, facts = (0, phase.draw(key)) if now is None else (now.epoch + 1, {})
            if mine := self.claims.take(key, epoch, facts):
                return mine, True
        return None, left

    def do(self, phase: Phase, claim: Claim) -> None:
        """Train and record a claimed job, unless it is lost to another worker or stopped."""
        job = self.patiently(lambda: phase.job(claim))
        result = read_result(job.result)
        if result is not None and result.get("facts") != job.facts:
            raise FledgeError(other_parameters(job, job.result))
        if result is None:
            result = self.train(phase, claim, job)
        if result is None:
            if self.stop.is_set():
                with contextlib.suppress(Exception):  # else the others wait for the grace period
                    self.claims.release(claim)
            return
        self.patiently(lambda: phase.record(job, result))
        self.tell(job, result)

    def train(self, phase: Phase, claim: Claim, job: Job) -> dict[str, Any] | None:
        """Run the process of a job to its end and return the result; None if the job is lost or the worker stops."""
        keep_facts(job)
        copy_run(job.parent, job.folder)
        for _ in range(CRASHES):
            if claim.epoch:
                free_folder(job.folder)
            if not self.patiently(lambda: self.claims.holds(claim)):
                return None
            self.begin(job)
            process = self.start(job, force=claim.epoch > 0)
            try:
                result = self.watch(process, phase, claim, job)
            finally:
                end(process)
            if result is not None or self.stop.is_set() or not self.patiently(lambda: self.claims.holds(claim)):
                return result
        code = process.returncode
        how = f"by signal {-code} (9 is often a lack of memory)" if code < 0 else f"with exit code {code}"
        return keep(job, {"error": f"The training ended {how}, {CRASHES} times: see {job.log}."})

    def start(self, job: Job, force: bool) -> subprocess.Popen[bytes]:
        """Start the process of a job."""
        sweep = self.sweep
        overrides = [*self.eval_interval(job), *job.overrides]
        order = Order(
            sweep.task.reference, sweep.preset, overrides, sweep.overrides(), str(job.folder), str(job.result),
            sweep.episodes, job.eval_seeds, job.facts, force, self.cores,
        )  # fmt: skip
        make_folder(job.folder.parent)
        command = [*PROGRAM, str(os.getpid())]
        env = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK")}
        env["WORLD_SIZE"] = "1"  # else a trial below srun or mpirun would wait for the other workers as its ranks
        with job.log.open("ab") as log:
            return subprocess.Popen(
                [*command, json.dumps(dataclasses.asdict(order))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True,
            )  # fmt: skip

    def eval_interval(self, job: Job) -> list[str]:
        """Return the settings that evaluate a trial of the search `Sweep.evaluations` times, whatever its iterations."""
        given = any(word.startswith("eval_interval=") for word in self.sweep.fixed)
        if given or not job.key.startswith("trial/") or not self.sweep.evaluations or self.sweep.pruner == "none":
            return []
        cfg = make_config(self.sweep.task, self.sweep.preset, job.overrides)
        iterations = -(-cfg.total_frames // (cfg.env.num_envs * cfg.steps))
        return [f"eval_interval={max(1, iterations // (self.sweep.evaluations + 1))}", "eval_episodes=128"]

    def watch(self, process: subprocess.Popen[bytes], phase: Phase, claim: Claim, job: Job) -> dict[str, Any] | None:
        """Wait for a process, show signs of life, and prune the trial if its evaluations are poor."""
        beat, due = claim.beat, 0.0
        while process.poll() is None and not self.stop.is_set():
            if time.monotonic() >= due:
                beat, due = beat + 1, time.monotonic() + self.sweep.heartbeat_s
                self.patiently(functools.partial(self.claims.beat, claim, beat))
                if not self.patiently(lambda: self.claims.holds(claim)):
                    process.kill()
                    return None
            if (poor := self.poor(phase, job)) is not None:
                end(process)
                return keep(job, poor)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        written = read_result(job.result) if process.poll() is not None else None
        if written is None:
            return None
        poor = None if "error" in written else self.poor(phase, job)  # whether it was seen before the end or not
        return written if poor is None else keep(job, poor)

    def poor(self, phase: Phase, job: Job) -> dict[str, Any] | None:
        """Report the evaluations during a training so far; return the result if the trial is to be pruned."""
        rows = read_metrics(job.folder / "metrics.jsonl")
        name = f"eval/{self.sweep.task.primary_metric}"
        rows = [row for row in rows if is_number(row.get(name))][: self.sweep.evaluations]
        values = {step: row[name] for step, row in enumerate(rows, 1)}
        step = self.patiently(functools.partial(phase.should_stop, job, values)) if values else 0
        if not step:
            return None
        return {"pruned": values[step], "minutes": rows[step - 1]["seconds"] / 60, "frames": rows[step - 1]["frames"]}


def keep_facts(job: Job) -> None:
    """Write the parameters of a job beside its run, before the run begins; refuse a run of other parameters."""
    if job.folder.exists() and read_json(job.facts_file) != job.facts:
        raise FledgeError(other_parameters(job, job.folder))
    make_folder(job.folder.parent)
    write_text(job.facts_file, strict_json(job.facts) + "\n")


def other_parameters(job: Job, path: Path) -> str:
    """Return the error message for a file or folder of a job that holds other parameters than the storage gives the job."""
    return (
        f"{path} was made with other parameters than the sweep's storage gives {job.key}, as that was replaced or lost: "
        f"restore the storage, or move {job.folder} and the files {job.folder.name}.* beside it away to train it again."
    )


def keep(job: Job, result: dict[str, Any]) -> dict[str, Any]:
    """Write the result of a job as its process would have done, and return it."""
    write_text(job.result, strict_json({**result, "facts": job.facts}) + "\n")
    return result


def end(process: subprocess.Popen[bytes]) -> None:
    """Let a training save and stop; kill it if it does not within STOP_S."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_folder(run: Path) -> None:
    """Kill the training of a job that was taken over, if it still runs on this host: it may be stopped, and hold the lock.

    On another host, `force` takes the lock, and the old training ends when it next checks the lock.
    """
    try:
        descriptor = os.open(run / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return
    try:
        owner = read_owner(descriptor)
    finally:
        os.close(descriptor)
    give_up = time.monotonic() + STOP_S
    while owner and has_ended(owner) is False and time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            os.kill(owner["pid"], signal.SIGKILL)
        time.sleep(POLL_S)


def copy_run(parent: Path | None, run: Path) -> None:
    """Copy a run, complete or not at all, unless the copy exists."""
    if parent is None or run.exists():
        return
    own = run.with_name(f".{run.name}-{os.getpid()}-{threading.get_ident()}")
    shutil.copytree(parent, own, ignore=shutil.ignore_patterns(*NOT_COPIED))
    try:
        own.rename(run)
    except OSError:  # another worker was first
        shutil.rmtree(own)
