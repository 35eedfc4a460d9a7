"""Claims: which worker does which job. Every job is begun by one worker, and taken over by one when that has stopped.

Optuna has no operation that gives a running trial to exactly one other worker, but every storage numbers new trials in one
order that all workers see. So claims are entries of a second study, an append-only list:

    job "trial/0007", epoch 0, worker A          the first entry of a job and epoch holds; later ones are void
    job "trial/0007", epoch 1, worker B          B has seen no sign of life of A, and takes the job over

The entry of epoch 0 holds the job's parameters, which therefore never change. The owner writes a counter into its entry as a
sign of life. Another worker measures with its own clock how long the counter has not changed, so clocks need not agree. The
old owner, if it wakes up, finds the entry of the next epoch and drops the job.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import TrialState, create_trial

from fledge.training.run_lock import has_ended, process_start
from fledge.tuning.storage import open_study

STALE = 6  # heartbeats that may be missing before a job is taken over


@dataclass(frozen=True)
class Claim:
    """A valid entry of the list: the newest owner of a job."""

    id: int
    job: str
    epoch: int
    worker: dict[str, Any]
    facts: dict[str, Any]
    """The job's parameters, from its first claim."""
    beat: int
    released: bool


class Claims:
    """The list of claims of a sweep, as one process uses it.

    Args:
        storage: Storage of the sweep.
        study: Name of the sweep's study.
        heartbeat_s: Seconds between two signs of life.
    """

    def __init__(self, storage: BaseStorage, study: str, heartbeat_s: float) -> None:
        open_study(storage, f"{study}/claims")
        self.storage, self.study_id = storage, storage.get_study_id_from_name(f"{study}/claims")
        self.grace_s = STALE * heartbeat_s
        self.worker = {"host": socket.gethostname(), "pid": os.getpid(), "start": process_start(os.getpid())}
        self._seen: dict[int, tuple[int, float]] = {}  # claim -> its newest beat, and when this process first saw it
        self._lock = threading.Lock()

    def all(self) -> dict[str, Claim]:
        """Return the newest valid claim of every job."""
        valid: dict[tuple[str, int], Any] = {}
        trials = self.storage.get_all_trials(self.study_id, deepcopy=False)
        for trial in sorted(trials, key=lambda each: each.number):
            valid.setdefault((trial.user_attrs["job"], trial.user_attrs["epoch"]), trial)
        found: dict[str, Claim] = {}
        for (job, epoch), trial in sorted(valid.items()):
            own = trial.user_attrs
            facts = valid[job, 0].user_attrs["facts"]
            found[job] = Claim(trial._trial_id, job, epoch, own["worker"], facts, own.get("beat", 0), "released" in own)
        return found

    def take(self, job: str, epoch: int, facts: dict[str, Any]) -> Claim | None:
        """Claim a job; return None if another worker was first. `facts` count only for epoch 0."""
        entry = {"job": job, "epoch": epoch, "worker": self.worker, "facts": facts}
        own = self.storage.create_new_trial(self.study_id, create_trial(state=TrialState.RUNNING, user_attrs=entry))
        now = self.all().get(job)
        return now if now is not None and now.id == own else None

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim is still the newest of its job."""
        now = self.all().get(claim.job)
        return now is not None and now.id == claim.id

    def beat(self, claim: Claim, count: int) -> None:
        """Write a sign of life."""
        self.storage.set_trial_user_attr(claim.id, "beat", count)

    def release(self, claim: Claim) -> None:
        """Let other workers take the job over at once."""
        self.storage.set_trial_user_attr(claim.id, "released", True)

    def is_stale(self, claim: Claim) -> bool:
        """Return whether a job may be taken over: it was released, or its worker has ended or shows no sign of life."""
        if claim.released or has_ended(claim.worker):
            return True
        now = time.monotonic()
        with self._lock:
            beat, since = self._seen.get(claim.id, (-1, now))
            if beat != claim.beat:
                since = now
            self._seen[claim.id] = claim.beat, since
        return now - since > self.grace_s
