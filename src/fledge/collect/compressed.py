"""CompressedDataCollector: keep the large entries of batches compressed, and decode only what a minibatch needs.

    batch = collector.rollout()         a CompressedBatch
    batch["reward"]                     an entry that is not compressed
    batch["input"]                      a compressed entry of all envs, decoded
    batch.decode(envs=[3, 17, 40])      a TensorDict of these envs, everything decoded, bit for bit
    batch.decode(transitions=index)     ... of these transitions, numbered as in `reshape(-1)`
    batch.decode()                      ... of the whole batch

Contract
    Lossless. By default the entries of `large_keys` are compressed; `keys` chooses others. A batch owns its data and stays
    valid: entries that are not compressed are copied if the base collector updates one object in place.
    The base collector is one of fledge's, or any iterable of TensorDicts [T, N]. If a TensorDict names an axis "time", as
    TorchRL's collectors do ([N, T]), that axis is time.

Compression saves memory, not time: compressing costs time once per batch and decoding again per use. It pays off for batches
that are kept, or wait in a queue.
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
from fledge.core.transfer import Fetch
from fledge.storage.format import codecs

Key = str | tuple[str, ...]
LARGE = 64  # values per transition


class CompressedBatch:
    """A batch with some entries compressed.

    Attributes:
        rest: TensorDict of the entries that are not compressed.
        packed: The compressed entries by key.
        batch_size: [T, N] or [N, T].
    """

    def __init__(self, data: TensorDictBase, keys: Sequence[Key], level: int, copy: bool) -> None:
        self.batch_size = data.batch_size
        self.time_dim = time_axis(data)
        self.packed: dict[Key, PackedTensor] = {}
        known: dict[Any, PackedTensor] = {}  # an entry with two names is compressed once
        tensors = [data.get(key) for key in keys]
        for key, tensor, host in zip(keys, tensors, Fetch(tensors).get(), strict=True):
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if place not in known:
                known[place] = PackedTensor.pack(host, self.time_dim, level, device=tensor.device)
            self.packed[key] = known[place]
        rest = data.exclude(*keys)
        self.rest: TensorDictBase = rest.clone() if copy else rest

    def __getitem__(self, key: Key) -> Any:
        """Return one entry of all envs, decoded if it is compressed."""
        return self.packed[key].unpack() if key in self.packed else self.rest[key]

    def keys(self) -> list[Key]:
        """Return the nested keys of all entries."""
        return [*self.rest.keys(include_nested=True, leaves_only=True), *self.packed]

    def decode(
        self, envs: Envs | None = None, keys: Sequence[Key] | None = None, *, transitions: Envs | None = None
    ) -> TensorDictBase:
        """Return a plain TensorDict of the given envs or transitions, in the given order; of the whole batch by default.

        Args:
            envs: Slice, list of env numbers, or mask.
            keys: Compressed entries to decode; all by default. Other compressed entries are left out of the result.
            transitions: Slice or list of numbers that index `reshape(-1)` of the batch, or a mask over the batch; the result
                has one batch dimension. To return one transition, the block of its env is decoded whole.
        """
        if envs is not None and transitions is not None:
            raise InputError("decode() got both envs and transitions: pass one of them.")
        chosen_keys = list(self.packed) if keys is None else list(keys)
        if missing := [key for key in chosen_keys if key not in self.packed]:
            raise InputError(f"keys has {missing}, which are not compressed: choose from {list(self.packed)}.")
        if transitions is not None:
            return self._decode_transitions(transitions, chosen_keys)
        # a TensorDict does not read a list as one index
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
            raise InputError(f"transitions must be a list of indices below {count}, a slice, or a mask over the batch.")
        index = index.long() % count
        out = self.rest.reshape(-1)[index.to(self.rest.device or "cpu")]
        for key in keys:
            out.set(key, self.packed[key].rows(index))
        return out

    @property
    def nbytes(self) -> int:
        """Size of the compressed entries, bytes."""
        return sum(entry.nbytes for entry in self._entries())

    @property
    def raw_nbytes(self) -> int:
        """Size of the compressed entries before compression, bytes."""
        return sum(entry.raw_nbytes for entry in self._entries())

    def _entries(self) -> Iterable[PackedTensor]:
        return {id(entry): entry for entry in self.packed.values()}.values()

    @property
    def ratio(self) -> float:
        """Compression ratio: `raw_nbytes / nbytes`."""
        return self.raw_nbytes / max(1, self.nbytes)


def check_present(keys: Sequence[Key], data: TensorDictBase) -> None:
    """Raise ConfigError unless a batch has these entries."""
    if absent := [key for key in keys if key not in data.keys(include_nested=True)]:
        known = [*data.keys(include_nested=True, leaves_only=True)]
        raise ConfigError(f"keys has {absent}, which the batch does not have: choose from {known}.")


class CompressedDataCollector(Collector):
    """Compress the batches of another collector.

    Args:
        base_collector: A collector of fledge or TorchRL, or any iterable of TensorDicts. This collector owns it from now on.
        compression_level: 0 (store), 1-2 LZ4 (fastest), 3-5 LZ4 or Zstd, 6-9 LZ4, Zstd or pcodec; the codec is
            chosen by trying a sample. Every level is lossless.
        keys: Entries to compress, nested entries as tuples; by default those that `large_keys` returns.
    """

    batch_class: type[CompressedBatch] = CompressedBatch

    def __init__(
        self,
        base_collector: Collector | Iterable[TensorDictBase],
        compression_level: int = 4,
        keys: Sequence[Key] | None = None,
    ) -> None:
        codecs.candidates(compression_level, 0)
        if isinstance(base_collector, CompressedDataCollector):
            raise ConfigError("base_collector is already a CompressedDataCollector: pass the collector that it wraps.")
        inner = getattr(base_collector, "base_collector", base_collector)  # of a pipelined collector
        if isinstance(inner, SyncDataCollector) and inner.split_trajs:
            raise ConfigError("base_collector has split_trajs=True, which removes the env axis: use split_trajs=False.")
        self.base_collector: Any = base_collector
        self.compression_level, self.chosen = compression_level, keys
        self._copies: bool = getattr(inner, "return_same_td", True)
        self._own = isinstance(base_collector, Collector)
        self.frames_per_batch = getattr(base_collector, "frames_per_batch", 0)
        self._counted = 0
        self._batches: Iterator[TensorDictBase] | None = None

    def rollout(self, prepare: Prepare | None = None) -> CompressedBatch:
        """Collect one batch and compress it; `prepare` is allowed only if the base collector is one of fledge's."""
        base = self.base_collector
        if self._own:
            return self._compress(base.rollout(prepare), copies=True)  # the base updates it in place
        if prepare is not None:
            raise ConfigError(
                f"prepare needs a collector of fledge, but base_collector is a {type(base).__name__}: leave prepare out."
            )
        data = next(self._iterator(), None)
        if data is None:
            raise InputError("The base collector has no more batches: use `for batch in collector`, which stops there.")
        return self._compress(data, self._copies)

    def __iter__(self) -> Iterator[CompressedBatch]:
        for data in self._iterator():
            yield self._compress(data, self._copies)

    def _iterator(self) -> Iterator[TensorDictBase]:
        if self._batches is None or self._own:  # other iterables may allow one iteration only
            self._batches = iter(self.base_collector)
        return self._batches

    def _compress(self, data: TensorDictBase, copies: bool) -> CompressedBatch:
        keys = large_keys(data) if self.chosen is None else list(self.chosen)
        check_present(keys, data)
        self._latest = batch = self.batch_class(data, keys, self.compression_level, copies)
        self._counted += data.numel()
        for name in ("_fps", "simulate_s", "env_log"):
            setattr(self, name, getattr(self.base_collector, name, getattr(Collector, name)))
        return batch

    @property
    def _frames(self) -> int:  # type: ignore[override]
        return getattr(self.base_collector, "_frames", self._counted)

    def state_dict(self) -> dict[str, Any]:
        """Return the base collector's state; compression adds none."""
        return dict(self.base_collector.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base_collector.load_state_dict(state)

    def shutdown(self) -> None:
        """Shut the base collector down if it has `shutdown`. Batches stay valid."""
        if hasattr(self.base_collector, "shutdown"):
            self.base_collector.shutdown()


def large_keys(data: TensorDictBase) -> list[Key]:
    """Return the keys worth compressing: `input`, and floating-point entries with at least `LARGE` values per transition."""

    def is_large(tensor: Tensor) -> bool:
        return tensor.is_floating_point() and tensor.shape[data.batch_dims :].numel() >= LARGE

    return [key for key in tensor_keys(data) if key == "input" or is_large(data.get(key))]


def tensor_keys(data: TensorDictBase) -> list[Key]:
    """Return the keys of all entries that are tensors."""
    keys = data.keys(include_nested=True, leaves_only=True)
    return [key for key in keys if isinstance(data.get(key), Tensor)]


def time_axis(data: TensorDictBase) -> int:
    """Return the index of the axis named "time", or 0 if no axis has that name."""
    if len(data.batch_size) != 2:
        raise InputError(f"A batch has size {[*data.batch_size]}, but must have [T, N], or [N, T] with axis names.")
    names = [*data.names] if data._has_names() else []
    return names.index("time") if "time" in names else 0
