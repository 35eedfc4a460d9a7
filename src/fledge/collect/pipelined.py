"""PipelinedDataCollector: the next batch is flown in the background while the learner works on this one.

    caller       rollout() → batch 0   learn on 0    rollout() → batch 1   learn on 1    rollout() → batch 2  ...
    background   ........... batch 1 with weights W0 ........... batch 2 with weights W1 ...........

Contract
    Lag. Handing out batch k takes a snapshot of the policy and starts batch k + 1 with it, so batch k + 1 is always flown
    with the weights that existed when batch k was handed out: one iteration old, whatever the timing. Log-probabilities
    and values in the batch are those of the snapshot. Batch 0 is flown with the weights of the first call.

    Random numbers. The learner may draw from torch's global generator meanwhile, so the background never touches it:
    actions come from a generator of its own, seeded by one draw from the global one when the collector is made
    (`draws.py` says what that covers). Results are a function of seeds, never of who was faster.

    Ownership. The env belongs to the background while a batch is flown; `rollout(prepare=...)` calls `prepare` on the
    caller's thread while it rests. Over our own collectors, batches are flown in place into `prefetch_count` rollouts in
    turn: a batch stays valid until `prefetch_count - 1` more have been handed out. Other bases must hand out new data each
    time; one with `return_same_td=True` is refused, and what does not say is copied.

    Errors in the background are raised at the next call, with the original as `__cause__`. `shutdown()` waits for the
    batch in the air, ends the thread and releases the base; no thread outlives it.

    State. `state_dict()` describes the moment before the batch in the air was begun, with the weights it is flown with; a
    collector that loads it flies that batch again and hands out the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase

from fledge.collect.base import Collector, Prepare
from fledge.collect.bases import Base, ForeignBase, OwnBase
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, FledgeError, InputError


class _Flown(NamedTuple):
    data: TensorDictBase
    frames: int
    fps: float
    simulate_s: float


class PipelinedDataCollector(Collector):
    """Collects one batch ahead of the learner.

    Args:
        base_collector: Ours (synchronous or in halves), a TorchRL collector, or any iterable of TensorDicts; afterwards
            it belongs to this one.
        device: Where batches are handed out; by default where the base puts them.
        prefetch_count: Rollouts in rotation, at least 2: one at the learner, one in the air. More keep handed-out
            batches valid for longer; the lag stays one.
    """

    def __init__(
        self,
        base_collector: SyncDataCollector | Iterable[TensorDictBase],
        device: str | torch.device | None = None,
        prefetch_count: int = 2,
    ) -> None:
        if prefetch_count < 2:
            raise ConfigError(
                f"prefetch_count is {prefetch_count}, but must be at least 2: a batch to learn from and one in the air. "
                "Without overlap use the base collector alone."
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
            self._base = OwnBase(base_collector, seed, prefetch_count)
        else:
            self._base = ForeignBase(base_collector, seed)
        self.frames_per_batch = self._base.frames_per_batch
        self._frames = 0
        self._fps = 0.0  # decisions per second in the air, of the batch handed out last
        self.simulate_s = 0.0  # of that batch, spent in the env, in the background
        self._latest: TensorDictBase | None = None
        self._ahead: Future[_Flown | None] | None = None  # the batch in the air; None in it: the base has ended
        self._before: dict[str, Any] | None = None  # state of the base when that batch was begun
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-collect")

    def rollout(self, prepare: Prepare | None = None) -> TensorDictBase:
        """Return the next batch; the one after it is in the air when this returns.

        Args:
            prepare: Called before the next batch is begun, while the env rests: the place to change it (a curriculum).
        """
        data = self._take(prepare)
        if data is None:
            raise InputError("rollout() came after the base collector's last batch: iterate instead to stop there.")
        return data

    def _take(self, prepare: Prepare | None = None, more: bool = True) -> TensorDictBase | None:
        """Wait for the batch in the air, begin the next one, if there is to be one, and return the first."""
        if self._closed:
            raise InputError("A batch was asked for after shutdown(): make a new collector.")
        if self._ahead is None:
            self._begin(prepare)
        flown = self._landed()
        if self._closed:  # meanwhile, by another thread
            raise InputError("The collector was shut down while a batch was waited for: make a new one.")
        if flown is None:
            return None
        if more:
            self._begin(prepare)  # if it fails, the batch that has landed is handed out next time
        else:
            self._ahead = None
        self._latest, self._fps, self.simulate_s = flown.data, flown.fps, flown.simulate_s
        self._frames += flown.frames
        return flown.data

    def _begin(self, prepare: Prepare | None) -> None:
        if prepare is not None:
            prepare()
        self._base.take_weights()
        self._launch()

    def _launch(self) -> None:
        self._before = self._base.state_dict() if self._base.resumable else None
        self._ahead = self._pool.submit(self._fly)

    def _fly(self) -> _Flown | None:
        """On the background thread: one batch."""
        data = self._base.fly()
        if data is None:
            return None
        if self.device is not None:
            data = data.to(self.device)
        return _Flown(data, data.numel(), self._base.fps, self._base.simulate_s)

    def _landed(self) -> _Flown | None:
        assert self._ahead is not None
        error = self._ahead.exception()
        if error is not None:
            raise FledgeError(
                f"Collecting in the background failed after {self._frames:,} decisions: {type(error).__name__}: {error}"
            ) from error
        return self._ahead.result()

    def wait(self) -> None:
        """Wait until the batch in the air has landed; if it failed, the next `rollout` says so."""
        if self._ahead is not None:
            self._ahead.exception()

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
            last = 0 <= self.total_frames <= self._frames + self.frames_per_batch
            data = self._take(more=not last)
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
        flying = self._ahead is not None
        return {
            "base": self._before if flying else self._base.state_dict(),
            "policy": self._base.weights(),
            "frames": self._frames,
            "flying": flying,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from a `state_dict`: what was in the air is begun again."""
        if not self._base.resumable:
            raise ConfigError("Only a pipelined collector over fledge's own can be resumed.")
        self.wait()
        self._ahead = None
        self._base.load_state_dict(state["base"], state["policy"])
        self._frames = int(state["frames"])
        if state["flying"]:
            self._launch()

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
