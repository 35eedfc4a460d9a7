"""PipelinedDataCollector: collect the next batches in the background while the learner trains on the current one.

    caller       rollout() → batch 0   train on 0    rollout() → batch 1   train on 1    rollout() → batch 2  ...
    background   ........... batch 1 with weights W0 ........... batch 2 with weights W1 ...........

Contract
    Lag. Returning batch k takes a snapshot of the policy and starts batch k + P with it (P: `prefetch_count`, 1 in the
    picture). So a batch is always collected with weights that are P iterations old, independent of timing. Its
    log-probabilities and values are those of the snapshot. The first P + 1 batches use the weights of the first call.

    Random numbers. The background thread never uses torch's global generator: it samples actions from its own generator,
    seeded by one draw from the global one when the collector is made (see `RngScope`). Results do not depend on timing.

    Ownership. The env belongs to the background while a batch is collected; `rollout(prepare=...)` calls `prepare` on the
    caller's thread while the env is idle, or, with P > 1, on the background thread just before the batch begins. Over
    fledge's own collectors, batches cycle through P + 1 rollout buffers: a batch stays valid until the next one is
    returned. Other iterables must yield new data each time: `return_same_td=True` is refused, and batches of an iterable
    without that attribute are copied.

    Errors in the background are raised at the next call, with the original as `__cause__`. `shutdown()` waits for the
    running batch, stops the thread and shuts the base collector down.

    State. `state_dict()` describes the moment before the oldest pending batch began, with the weights of all pending
    batches; a collector that loads it collects them again and returns the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import torch
from tensordict import TensorDictBase

from fledge.collect.base import Collector, Prepare
from fledge.collect.exploration import caller_context
from fledge.collect.sources import Collected, CollectorSource, IterableSource, SyncSource, Weights
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, FledgeError, InputError

STOPPED = "The collector was shut down while rollout() waited for a batch: make a new one."


class _PendingBatch:
    """A requested batch, which is waiting, being collected, or ready."""

    def __init__(self, prepare: Prepare | None = None, weights: Weights | None = None) -> None:
        self.prepare, self.weights = prepare, weights  # to apply when the batch begins; None: already applied
        self.begun = threading.Event()
        self.before: dict[str, Any] | None = None  # state of the source when the batch began
        self.future: Future[Collected | None]  # result None: the source has no more batches


class PipelinedDataCollector(Collector):
    """Collect batches ahead of the learner.

    Args:
        base_collector: A SyncDataCollector or HalvesDataCollector, a TorchRL collector, or any iterable of TensorDicts. The
            pipelined collector owns it from now on.
        device: Device of the returned batches; by default they stay where the base collector puts them.
        prefetch_count: Batches to collect ahead; the weights of a batch are this many iterations old. One is enough to
            overlap collecting and learning; more help if batches take different times.
    """

    def __init__(
        self,
        base_collector: SyncDataCollector | Iterable[TensorDictBase],
        device: str | torch.device | None = None,
        prefetch_count: int = 1,
    ) -> None:
        if prefetch_count < 1:
            raise ConfigError(
                f"prefetch_count is {prefetch_count}, but must be at least 1: without prefetching, use the base collector."
            )
        if hasattr(base_collector, "base_collector"):
            kind = type(base_collector).__name__
            raise ConfigError(
                f"base_collector is a {kind}, which wraps another collector: wrap the pipelined collector in it instead."
            )
        self.base_collector = base_collector
        self.device = None if device is None else torch.device(device)
        seed = int(torch.randint(2**62, ()))
        self._source: CollectorSource
        if isinstance(base_collector, SyncDataCollector):
            self._source = SyncSource(base_collector, seed, prefetch_count + 1)
        else:
            self._source = IterableSource(base_collector, seed)
        self.prefetch_count = prefetch_count
        self.frames_per_batch = self._source.frames_per_batch
        self.total_frames = self._source.total_frames  # iteration stops after these; -1: when the base collector ends
        self._pending: deque[_PendingBatch] = deque()  # oldest first
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-collect")

    def rollout(self, prepare: Prepare | None = None) -> TensorDictBase:
        """Return the next batch and start the following ones; `prepare` is called before each batch that this call starts."""
        data = self._take(prepare)
        if data is None:
            raise InputError("The base collector has no more batches: use `for batch in collector`, which stops there.")
        return data

    def _take(self, prepare: Prepare | None = None, until: int = -1) -> TensorDictBase | None:
        """Wait for the oldest batch and return it, after starting more batches, up to `until` decisions (-1: no limit)."""
        if self._closed:
            raise InputError("rollout() was called after shutdown(): make a new collector.")
        if not self._pending:
            self._begin(prepare)
        collected = self._wait_oldest()
        if self._closed:  # by another thread in the meantime
            raise InputError(STOPPED)
        if collected is None:
            return None
        while len(self._pending) <= self.prefetch_count:
            if 0 <= until <= self._frames + len(self._pending) * self.frames_per_batch:
                break
            self._begin(prepare)  # if it fails, the finished batch is returned by the next call
        self._pending.popleft()
        self._latest, self._fps, self.simulate_s, self.env_log = collected
        self._frames += collected.data.numel()
        return collected.data

    def _begin(self, prepare: Prepare | None) -> None:
        if self.prefetch_count > 1:  # others may be running: the thread applies both after them
            self._submit(_PendingBatch(prepare, self._source.snapshot()))
            return
        if prepare is not None:
            prepare()
        self._source.take_weights()
        self._submit(_PendingBatch())

    def _submit(self, batch: _PendingBatch) -> None:
        if batch.weights is None:
            self._save_state(batch)
        # in the caller's context: `set_exploration_type` applies to batches begun inside its block
        batch.future = self._pool.submit(caller_context().run, self._collect, batch)
        self._pending.append(batch)

    def _save_state(self, batch: _PendingBatch) -> None:
        batch.before = self._source.collector.state_dict() if isinstance(self._source, SyncSource) else None
        batch.begun.set()

    def _collect(self, batch: _PendingBatch) -> Collected | None:
        try:
            if batch.weights is not None:
                if batch.prepare is not None:
                    batch.prepare()
                self._source.take_weights(batch.weights)
                self._save_state(batch)
        finally:
            batch.begun.set()
        found = self._source.collect()
        if found is None or self.device is None:
            return found
        return found._replace(data=found.data.to(self.device))

    def _wait_oldest(self) -> Collected | None:
        try:
            error = self._pending[0].future.exception()
        except CancelledError:
            raise InputError(STOPPED) from None
        if error is not None:
            what = f"{type(error).__name__}: {error}"
            raise FledgeError(
                f"Collecting in the background failed after {self._frames:,} decisions: {what}"
            ) from error
        return self._pending[0].future.result()

    def wait(self) -> None:
        """Wait until no batch is being collected; if one failed, the `rollout` that would return it raises the error."""
        for batch in self._pending:
            batch.future.exception()

    def __iter__(self) -> Iterator[TensorDictBase]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            data = self._take(until=self.total_frames)
            if data is None:
                return
            yield self.base_collector.finish(data) if isinstance(self.base_collector, SyncDataCollector) else data

    def state_dict(self) -> dict[str, Any]:
        """Return the state for an exact resume, without waiting for the running batch."""
        source = self._resumable_source()
        if any(batch.prepare is not None for batch in list(self._pending)[1:]):
            count = f"prefetch_count={self.prefetch_count}"
            raise ConfigError(f"The state cannot be saved with {count} and `prepare`: use prefetch_count=1.")
        state: dict[str, Any] = {"frames": self._frames, "flying": bool(self._pending)}
        if not self._pending:
            return state | {"base": source.collector.state_dict(), "policy": source.weights()}
        oldest, *others = self._pending
        oldest.begun.wait()
        state |= {"base": oldest.before, "policy": oldest.weights or source.weights()}
        return state | ({"others": [batch.weights for batch in others]} if others else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from a `state_dict`; batches that were pending are started again."""
        source = self._resumable_source()
        self.wait()
        self._pending.clear()
        source.load_state_dict(state["base"], state["policy"])
        self._frames = int(state["frames"])
        if state["flying"]:
            self._submit(_PendingBatch())
        for weights in state.get("others", []):
            self._submit(_PendingBatch(weights=weights))

    def _resumable_source(self) -> SyncSource:
        if not isinstance(self._source, SyncSource):
            kind = type(self.base_collector).__name__
            raise ConfigError(f"A pipelined collector over a {kind} cannot be resumed: use fledge's SyncDataCollector.")
        return self._source

    def shutdown(self) -> None:
        """Wait for the running batch, stop the thread and shut the base collector down. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._source.shutdown()

    def __enter__(self) -> PipelinedDataCollector:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
