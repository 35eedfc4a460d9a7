"""CompressedDataCollector: batches whose LiDAR lives compressed; only what a minibatch needs is decoded.

    batch = collector.rollout()         a CompressedBatch
    batch["reward"]                     entries that are not compressed, as they are
    batch.decode(envs=[3, 17, 40])      a TensorDict of these envs, LiDAR decoded, bit for bit
    batch.decode(transitions=index)     ... of these transitions, numbered as in `reshape(-1)`
    batch["input"], batch.decode()      one compressed entry of all envs; everything

Contract
    Lossless. Compressed are the entries named "lidar", at any depth ("next" too), and "input", what the network read, most
    of which is LiDAR; `keys` names others. A batch owns its data and stays valid: what is not compressed is copied when the
    base updates one object in place, so such bases need not be refused.
    The base is ours, or any iterable of TensorDicts [T, N]; where a TensorDict names an axis "time", as TorchRL's
    collectors do ([N, T]), that one is time.

Compressing pays in memory, never in speed: it costs time once per batch, and decoding again per use. It is worth it for
batches that are kept, or wait in a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.collect.base import Collector, Prepare
from fledge.collect.packed import Envs, PackedTensor
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, InputError
from fledge.envs.base import Log
from fledge.storage.format import codecs

Key = str | tuple[str, ...]
LIDAR_NAMES = ("lidar", "input")


class CompressedBatch:
    """A batch with some entries compressed.

    Attributes:
        rest: TensorDict of the entries that are not compressed.
        packed: The others.
        batch_size: [T, N] or [N, T].
    """

    def __init__(self, data: TensorDictBase, keys: Sequence[Key], level: int, copy: bool) -> None:
        self.batch_size = data.batch_size
        self.time_dim = time_axis(data)
        self.packed: dict[Key, PackedTensor] = {}
        known: dict[Any, PackedTensor] = {}  # one entry under two names is compressed once
        for key in keys:
            tensor = data.get(key)
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if place not in known:
                known[place] = PackedTensor.pack(tensor, self.time_dim, level)
            self.packed[key] = known[place]
        rest = data.exclude(*keys)
        self.rest: TensorDictBase = rest.clone() if copy else rest

    def __getitem__(self, key: Key) -> Any:
        """One entry of all envs, decoded if it is compressed."""
        return self.packed[key].unpack() if key in self.packed else self.rest[key]

    def keys(self) -> list[Key]:
        """All entries, by nested key."""
        return [*self.rest.keys(include_nested=True, leaves_only=True), *self.packed]

    def decode(
        self,
        envs: Envs | None = None,
        keys: Sequence[Key] | None = None,
        *,
        transitions: Envs | None = None,
    ) -> TensorDictBase:
        """An ordinary TensorDict of some envs, or of some transitions, in the order asked for; all by default.

        Args:
            envs: Slice, list of env numbers, or mask.
            keys: Compressed entries to decode; all by default. Those left out are not in the result.
            transitions: Slice or list of numbers, as in `reshape(-1)` of the batch, or a mask over it: the result has one
                axis. Envs are what is compressed together, so few transitions of many envs cost as much as all of them.
        """
        if envs is not None and transitions is not None:
            raise InputError("decode() got envs and transitions: choose by envs or transitions, not by both.")
        chosen_keys = list(self.packed) if keys is None else list(keys)
        if missing := [key for key in chosen_keys if key not in self.packed]:
            raise InputError(f"{missing} are not compressed; compressed are {list(self.packed)}.")
        if transitions is not None:
            return self._decode_transitions(transitions, chosen_keys)
        # a TensorDict takes a list or a tuple for something else than one index
        chosen = envs
        if isinstance(envs, Sequence):
            mask = any(isinstance(env, bool) for env in envs)
            chosen = torch.tensor(envs, dtype=torch.bool if mask else torch.long)
        out = self.rest.copy() if chosen is None else self.rest[(slice(None),) * (1 - self.time_dim) + (chosen,)]
        for key in chosen_keys:
            out.set(key, self.packed[key].unpack(chosen))
        return out

    def _decode_transitions(self, transitions: Envs, keys: Sequence[Key]) -> TensorDictBase:
        count = self.batch_size.numel()
        if isinstance(transitions, slice):
            index = torch.arange(count)[transitions]
        else:
            index = torch.as_tensor(transitions).cpu()
            if index.dtype == torch.bool and index.numel() == count:
                index = index.flatten().nonzero().flatten()
            elif not index.numel():
                index = index.long().flatten()
        whole = not (index.dtype.is_floating_point or index.dtype == torch.bool) and index.ndim == 1
        if not whole or (index.numel() and not -count <= int(index.min()) <= int(index.max()) < count):
            raise InputError(f"transitions must be numbers below {count} in a list, a slice, or a mask over the batch.")
        index = index.long() % count
        out = self.rest.reshape(-1)[index.to(self.rest.device)] if self.rest.device else self.rest.reshape(-1)[index]
        for key in keys:
            out.set(key, self.packed[key].rows(index))
        return out

    @property
    def nbytes(self) -> int:
        """Bytes that the compressed entries take."""
        return sum(entry.nbytes for entry in self._entries())

    @property
    def raw_nbytes(self) -> int:
        """Bytes that they would take as tensors."""
        return sum(entry.raw_nbytes for entry in self._entries())

    def _entries(self) -> Iterable[PackedTensor]:
        return {id(entry): entry for entry in self.packed.values()}.values()

    @property
    def ratio(self) -> float:
        """How many times smaller than that they are."""
        return self.raw_nbytes / max(1, self.nbytes)


def check_present(keys: Sequence[Key], data: TensorDictBase) -> None:
    """ConfigError unless a batch has these entries."""
    if absent := [key for key in keys if key not in data.keys(include_nested=True)]:
        raise ConfigError(f"keys has {absent}, but a batch has {[*data.keys(include_nested=True, leaves_only=True)]}.")


class CompressedDataCollector(Collector):
    """Hands out CompressedBatches of what another collector collects.

    Args:
        base_collector: Ours (synchronous, in halves or pipelined), TorchRL's, or any iterable of TensorDicts; afterwards
            it belongs to this one.
        compression_level: 0 (store), 1-2 LZ4 (fastest), 3-5 Zstd, 6-9 pcodec too; every level is lossless.
        keys: Entries to compress, nested ones as tuples.
    """

    def __init__(
        self,
        base_collector: Collector | Iterable[TensorDictBase],
        compression_level: int = 4,
        keys: Sequence[Key] | None = None,
    ) -> None:
        codecs.candidates(compression_level, 0)
        if isinstance(base_collector, CompressedDataCollector):
            raise ConfigError("base_collector already is a CompressedDataCollector: give it the collector inside.")
        inner = getattr(base_collector, "base_collector", base_collector)  # the pipelined one's
        if isinstance(inner, SyncDataCollector) and inner.split_trajs:
            raise ConfigError("The base has split_trajs=True, which leaves no envs to decode by: make it without.")
        self.base_collector, self.compression_level, self.chosen = base_collector, compression_level, keys
        self._copies: bool = getattr(inner, "return_same_td", True)
        self._own = isinstance(base_collector, Collector)
        self.frames_per_batch = getattr(base_collector, "frames_per_batch", 0)
        self._counted = 0
        self._batches: Iterator[TensorDictBase] | None = None
        self._latest: CompressedBatch | None = None

    def rollout(self, prepare: Prepare | None = None) -> CompressedBatch:
        """Collect one batch and compress it; `prepare` is passed on to our own collectors."""
        base: Any = self.base_collector
        if self._own:
            return self._compress(base.rollout(prepare), copies=True)  # flown in place
        if prepare is not None:
            raise ConfigError(f"prepare is for fledge's own collectors; the base is a {type(base).__name__}.")
        data = next(self._iterator(), None)
        if data is None:
            raise InputError("rollout() came after the base collector's last batch: iterate instead to stop there.")
        return self._compress(data, self._copies)

    def __iter__(self) -> Iterator[CompressedBatch]:
        for data in self._iterator():
            yield self._compress(data, self._copies)

    def _iterator(self) -> Iterator[TensorDictBase]:
        if self._batches is None or self._own:  # our collectors can be iterated again, others perhaps not
            base: Any = self.base_collector
            self._batches = iter(base)
        return self._batches

    def _compress(self, data: TensorDictBase, copies: bool) -> CompressedBatch:
        keys = lidar_keys(data) if self.chosen is None else list(self.chosen)
        check_present(keys, data)
        self._latest = CompressedBatch(data, keys, self.compression_level, copies)
        self._counted += data.numel()
        return self._latest

    @property
    def latest(self) -> CompressedBatch:
        """The batch handed out last."""
        if self._latest is None:
            raise InputError("No batch has been handed out yet: call rollout() first.")
        return self._latest

    @property
    def _frames(self) -> int:  # type: ignore[override]
        return getattr(self.base_collector, "_frames", self._counted)

    @property
    def _fps(self) -> float:  # type: ignore[override]
        return getattr(self.base_collector, "_fps", 0.0)

    @property
    def simulate_s(self) -> float:  # type: ignore[override]
        """Of the last batch, spent in the env."""
        return getattr(self.base_collector, "simulate_s", 0.0)

    @property
    def env_log(self) -> Log:  # type: ignore[override]
        return getattr(self.base_collector, "env_log", {})

    def state_dict(self) -> dict[str, Any]:
        """The base's; compressing adds nothing that the next batch depends on."""
        base: Any = self.base_collector
        return base.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as the base does."""
        base: Any = self.base_collector
        base.load_state_dict(state)

    def shutdown(self) -> None:
        """Shut the base down, if it can be. Batches stay valid."""
        if hasattr(self.base_collector, "shutdown"):
            self.base_collector.shutdown()


def lidar_keys(data: TensorDictBase) -> list[Key]:
    """Entries that hold LiDAR: those named "lidar" or "input"."""
    found: list[Key] = []
    for key in data.keys(include_nested=True, leaves_only=True):
        name = key if isinstance(key, str) else key[-1]
        if name in LIDAR_NAMES and isinstance(data.get(key), Tensor):
            found.append(key)
    return found


def tensor_keys(data: TensorDictBase) -> list[Key]:
    """Every entry that is a tensor."""
    keys = data.keys(include_nested=True, leaves_only=True)
    return [key for key in keys if isinstance(data.get(key), Tensor)]


def time_axis(data: TensorDictBase) -> int:
    """The axis named "time" where names are given, else 0."""
    if len(data.batch_size) != 2:
        raise InputError(
            f"A batch has size {[*data.batch_size]}, but must be [T, N], or [N, T] with an axis named time."
        )
    names = [*data.names] if data._has_names() else []
    return names.index("time") if "time" in names else 0
