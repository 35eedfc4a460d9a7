"""PipelinedDataCollector: the next batches are flown in the background while the learner works on this one.

    caller       rollout() → batch 0   learn on 0    rollout() → batch 1   learn on 1    rollout() → batch 2  ...
    background   ........... batch 1 with weights W0 ........... batch 2 with weights W1 ...........

Contract
    Lag. Handing out batch k takes a snapshot of the policy and starts batch k + P with it (P: `prefetch_count`, 1 in the
    picture), so that batch is always flown with the weights that existed when batch k was handed out: P iterations old,
    whatever the timing. Log-probabilities and values in the batch are those of the snapshot. The first P + 1 batches are
    flown with the weights of the first call.

    Random numbers. The learner may draw from torch's global generator meanwhile, so the background never touches it:
    actions come from a generator of its own, seeded by one draw from the global one when the collector is made
    (`draws.py` says what that covers). Results are a function of seeds, never of who was faster.

    Ownership. The env belongs to the background while a batch is flown; `rollout(prepare=...)` calls `prepare` on the
    caller's thread while it rests, or, with several batches ahead, on the background's just before the batch is begun. Over
    our own collectors, batches are flown in place into P + 1 rollouts in turn: a batch stays valid until the next one is
    handed out. Other bases must hand out new data each time; one with `return_same_td=True` is refused, and what does not
    say is copied.

    Errors in the background are raised at the next call, with the original as `__cause__`. `shutdown()` waits for the
    batch in the air, ends the thread and releases the base; no thread outlives it.

    State. `state_dict()` describes the moment before the oldest batch in the air was begun, with the weights it and those
    after it are flown with; a collector that loads it flies them again and hands out the same.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase

from fledge.collect.base import Collector, Prepare
from fledge.collect.sources import Base, ForeignBase, OwnBase, Weights
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, FledgeError, InputError
from fledge.envs.base import Log


class _Flown(NamedTuple):
    data: TensorDictBase
    frames: int
    fps: float
    simulate_s: float
    env_log: Log


class _Flight:
    """A batch that is asked for: waiting, in the air, or landed."""

    def __init__(self, prepare: Prepare | None = None, weights: Weights | None = None) -> None:
        self.prepare, self.weights = prepare, weights  # to be applied when it is begun; None: they were before
        self.begun = threading.Event()
        self.before: dict[str, Any] | None = None  # state of the base when it was begun
        self.future: Future[_Flown | None]  # None in it: the base has ended


class PipelinedDataCollector(Collector):
    """Collects ahead of the learner.

    Args:
        base_collector: Ours (synchronous or in halves), a TorchRL collector, or any iterable of TensorDicts; afterwards
            it belongs to this one.
        device: Where batches are handed out; by default where the base puts them.
        prefetch_count: Rollouts that may be ready ahead of the one the learner has, and by how many iterations their
            weights are old. One is enough to overlap; more even out batches that differ in the time they take.
    """

    def __init__(
        self,
        base_collector: SyncDataCollector | Iterable[TensorDictBase],
        device: str | torch.device | None = None,
        prefetch_count: int = 1,
    ) -> None:
        if prefetch_count < 1:
            raise ConfigError(
                f"prefetch_count is {prefetch_count}, but must be at least 1, the batches that may be ready ahead. Without "
                "overlap use the base collector alone."
            )
        if hasattr(base_collector, "base_collector"):
            raise ConfigError(
                f"base_collector is a {type(base_collector).__name__}, a wrapper itself: wrap it around the pipelined one."
            )
        self.base_collector = base_collector
        self.device = None if device is None else torch.device(device)
        seed = int(torch.randint(2**62, ()))
        self._base: Base
        if isinstance(base_collector, SyncDataCollector):
            self._base = OwnBase(base_collector, seed, prefetch_count + 1)
        else:
            self._base = ForeignBase(base_collector, seed)
        self.prefetch_count = prefetch_count
        self.frames_per_batch = self._base.frames_per_batch
        self._frames = 0
        self._fps = 0.0  # decisions per second in the air, of the batch handed out last
        self.simulate_s = 0.0  # of that batch, spent in the env, in the background
        self._latest: TensorDictBase | None = None
        self._ahead: deque[_Flight] = deque()  # oldest first
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-collect")

    def rollout(self, prepare: Prepare | None = None) -> TensorDictBase:
        """Return the next batch; those after it are in the air when this returns.

        Args:
            prepare: Called before the next batch is begun, while the env rests: the place to change it (a curriculum).
        """
        data = self._take(prepare)
        if data is None:
            raise InputError("rollout() came after the base collector's last batch: iterate instead to stop there.")
        return data

    def _take(self, prepare: Prepare | None = None, until: int = -1) -> TensorDictBase | None:
        """Wait for the oldest batch, begin as many as may be ahead of it, and return it.

        Args:
            until: Begin no batch beyond this many decisions; -1: no end.
        """
        if self._closed:
            raise InputError("A batch was asked for after shutdown(): make a new collector.")
        if not self._ahead:
            self._begin(prepare)
        flown = self._landed()
        if self._closed:  # meanwhile, by another thread
            raise InputError("The collector was shut down while a batch was waited for: make a new one.")
        if flown is None:
            return None
        while len(self._ahead) <= self.prefetch_count:
            if 0 <= until <= self._frames + len(self._ahead) * self.frames_per_batch:
                break
            self._begin(prepare)  # if it fails, the batch that has landed is handed out next time
        self._ahead.popleft()
        self._latest, self._fps, self.simulate_s = flown.data, flown.fps, flown.simulate_s
        self.env_log = flown.env_log
        self._frames += flown.frames
        return flown.data

    def _begin(self, prepare: Prepare | None) -> None:
        if self.prefetch_count > 1:  # others may be in the air: the thread does it when they have landed
            self._launch(_Flight(prepare, self._base.snapshot()))
            return
        if prepare is not None:
            prepare()
        self._base.take_weights()
        self._launch(_Flight())

    def _launch(self, flight: _Flight) -> None:
        if flight.weights is None:
            self._note(flight)
        # in the context of the caller: `set_exploration_type` holds for what is begun inside it
        flight.future = self._pool.submit(contextvars.copy_context().run, self._fly, flight)
        self._ahead.append(flight)

    def _note(self, flight: _Flight) -> None:
        flight.before = self._base.state_dict() if self._base.resumable else None
        flight.begun.set()

    def _fly(self, flight: _Flight) -> _Flown | None:
        try:
            if flight.weights is not None:
                if flight.prepare is not None:
                    flight.prepare()
                self._base.take_weights(flight.weights)
                self._note(flight)
        finally:
            flight.begun.set()
        data = self._base.fly()
        if data is None:
            return None
        data = data if self.device is None else data.to(self.device)
        return _Flown(data, data.numel(), self._base.fps, self._base.simulate_s, self._base.env_log)

    def _landed(self) -> _Flown | None:
        try:
            error = self._ahead[0].future.exception()
        except CancelledError:
            raise InputError("The collector was shut down while a batch was waited for: make a new one.") from None
        if error is not None:
            raise FledgeError(
                f"Collecting in the background failed after {self._frames:,} decisions: {type(error).__name__}: {error}"
            ) from error
        return self._ahead[0].future.result()

    def wait(self) -> None:
        """Wait until the batches in the air have landed; if one failed, the `rollout` that would return it says so."""
        for flight in self._ahead:
            flight.future.exception()

    @property
    def latest(self) -> TensorDictBase:
        """The batch handed out last."""
        if self._latest is None:
            raise InputError("No batch has been handed out yet: call rollout() first.")
        return self._latest

    @property
    def total_frames(self) -> int:
        """Iteration stops after this many decisions; -1: never, or when the base ends."""
        return self._base.total_frames

    def __iter__(self) -> Iterator[TensorDictBase]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            data = self._take(until=self.total_frames)
            if data is None:
                return
            yield self._base.finish(data)

    def state_dict(self) -> dict[str, Any]:
        """What the next batches depend on besides the learner's policy; does not wait for the batch in the air."""
        if not self._base.resumable:
            raise ConfigError(
                f"A {type(self.base_collector).__name__} does not tell all its state, so a pipelined collector over it "
                "cannot be resumed: use fledge's SyncDataCollector as base."
            )
        if any(flight.prepare is not None for flight in list(self._ahead)[1:]):
            raise ConfigError(
                f"prefetch_count is {self.prefetch_count}, and what `prepare` will change cannot be saved: use 1 to resume."
            )
        state: dict[str, Any] = {"frames": self._frames, "flying": bool(self._ahead)}
        if not self._ahead:
            return state | {"base": self._base.state_dict(), "policy": self._base.weights()}
        oldest, *others = self._ahead
        oldest.begun.wait()
        state |= {"base": oldest.before, "policy": oldest.weights or self._base.weights()}
        return state | ({"others": [flight.weights for flight in others]} if others else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from a `state_dict`: what was in the air is begun again."""
        if not self._base.resumable:
            raise ConfigError("Only a pipelined collector over fledge's own can be resumed.")
        self.wait()
        self._ahead.clear()
        self._base.load_state_dict(state["base"], state["policy"])
        self._frames = int(state["frames"])
        if state["flying"]:
            self._launch(_Flight())
        for weights in state.get("others", []):
            self._launch(_Flight(weights=weights))

    def shutdown(self) -> None:
        """Wait for the batch in the air, end the thread, release the base. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._base.shutdown()

    def __enter__(self) -> PipelinedDataCollector:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
