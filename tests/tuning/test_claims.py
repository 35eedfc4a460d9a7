"""Claims: a job is begun by exactly one worker, and taken over by exactly one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage, InMemoryStorage

from fledge.tuning import claims as claims_module
from fledge.tuning.claims import STALE, Claim, Claims
from fledge.tuning.storage import open_storage

THREADS = 8


@pytest.fixture(params=["memory", "journal"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], BaseStorage]:
    """Opens the storage as another worker would."""
    shared = InMemoryStorage()
    return (lambda: shared) if request.param == "memory" else (lambda: open_storage("", tmp_path))


def race(connect: Callable[[], BaseStorage], epoch: int) -> list[Claim]:
    """Let THREADS workers claim the same job at once; return the claims that succeeded."""
    ready, won = threading.Barrier(THREADS), list[Claim]()

    def run(number: int) -> None:
        claims = Claims(connect(), "s", 1.0)
        ready.wait()
        if mine := claims.take("trial/0000", epoch, {"worker": number}):
            won.append(mine)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return won


def test_of_workers_that_claim_a_job_at_once_exactly_one_gets_it(connect: Callable[[], BaseStorage]) -> None:
    won = race(connect, 0)
    assert len(won) == 1
    assert Claims(connect(), "s", 1.0).all()["trial/0000"].facts == won[0].facts


def test_a_stale_job_is_taken_over_exactly_once_with_the_same_parameters(connect: Callable[[], BaseStorage]) -> None:
    old = Claims(connect(), "s", 1.0)
    first = old.take("trial/0000", 0, {"ppo.lr": 0.1})
    assert first is not None
    assert old.holds(first)
    won = race(connect, 1)
    assert len(won) == 1
    assert won[0].facts == {"ppo.lr": 0.1}
    assert not old.holds(first)  # when it wakes up


class Clock:
    """The time of one observer."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_job_is_stale_when_its_sign_of_life_has_not_changed_for_the_observer(
    connect: Callable[[], BaseStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(claims_module, "time", clock)
    owner, other = Claims(connect(), "s", 10.0), Claims(connect(), "s", 10.0)
    owner.worker = {"host": "another-host", "pid": 1, "start": "1"}  # of which this host knows nothing
    claim = owner.take("trial/0000", 0, {})
    assert claim is not None

    def seen() -> bool:
        return other.is_stale(other.all()["trial/0000"])

    assert not seen()  # however old it is: the observer has just come
    clock.now += STALE * 10 - 1
    assert not seen()
    owner.beat(claim, 1)
    clock.now += STALE * 10 - 1
    assert not seen()
    clock.now += STALE * 10 + 1
    assert seen()


def test_a_job_of_a_process_that_has_ended_or_released_it_is_free_at_once(connect: Callable[[], BaseStorage]) -> None:
    owner, other = Claims(connect(), "s", 1000.0), Claims(connect(), "s", 1000.0)
    owner.worker = {**owner.worker, "start": "0"}  # the process id now belongs to another process
    ended: Any = owner.take("trial/0000", 0, {})
    owner.worker = Claims(connect(), "s", 1.0).worker
    released: Any = owner.take("trial/0001", 0, {})
    assert other.is_stale(other.all()[ended.job])
    assert not other.is_stale(other.all()[released.job])
    owner.release(released)
    assert other.is_stale(other.all()[released.job])
