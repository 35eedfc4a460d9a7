"""CompressTransform: a TorchRL transform that compresses entries of rollouts or steps, so that envs can still be selected.

    collector = Collector(env, policy, ..., postproc=CompressTransform(keys=["pixels"]))
    for batch in collector:                          "pixels" [N, T, 3, 32, 32] is now "pixels_packed" [N, T, W] uint8
        few = transform.inv(batch[[3, 17, 40]])      these envs, "pixels" restored bit for bit

`forward` compresses, `inv` restores, also inside a Compose. Single steps, [N] or [], work too ("pixels_packed" is then
[N, W]), but a rollout compresses better, because neighbours in time are alike. W differs between calls, so the transform
cannot be used inside an env, because steps of an env must stack. A replay buffer writes through `inv`, so it would decompress
on writing: use the storage of `fledge.replay` there.

The bytes of an entry are one run per env, spread over the time axis to fit the batch size and padded with zeros:

    uint32 length of the block, uint8 codec, uint8 dtype, uint8 number of sizes, uint32 sizes (T first), block

So any selection of envs can be restored, also by another transform object or process; a selection of steps cannot.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.collect.compressed import Key, check_present, large_keys, time_axis
from fledge.collect.packed import PackedTensor
from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.core.extras import extra
from fledge.storage.format import codecs
from fledge.storage.format.leaves import TORCH_DTYPES

with extra("torchrl"):
    from torchrl.envs.transforms import Transform

SUFFIX = "_packed"
_DTYPES = list(TORCH_DTYPES.values())
_HEAD = struct.Struct("<IBBB")


class CompressTransform(Transform):
    """Compress entries of rollouts, [N, T] (with an axis named time) or [T, N], and of single steps, [N] or [], losslessly.

    Args:
        compression_level: 0 (store), 1-2 LZ4 (fastest), 3-5 LZ4 or Zstd, 6-9 LZ4, Zstd or pcodec; the codec is
            chosen by trying a sample.
        keys: Entries to compress, nested entries as tuples; by default those that `default_keys` returns.
    """

    invertible = True

    def __init__(self, compression_level: int = 4, keys: Sequence[Key] | None = None) -> None:
        super().__init__(in_keys=[], out_keys=[])
        codecs.candidates(compression_level, 0)
        self.compression_level, self.chosen = compression_level, keys

    def default_keys(self, data: TensorDictBase) -> list[Key]:
        """Return the entries to compress if the constructor got no `keys`: those of `compressed.large_keys`."""
        return large_keys(data)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a copy of the rollout in which the chosen entries are replaced by their compressed bytes."""
        time_dim, missing = _axes(tensordict)
        keys = self.default_keys(tensordict) if self.chosen is None else list(self.chosen)
        check_present(keys, tensordict)
        if 0 in tensordict.batch_size:
            raise InputError(f"The rollout is empty (batch size {[*tensordict.batch_size]}): pass at least one step.")
        out = tensordict.exclude(*keys)
        for key in keys:
            tensor = _with(tensordict.get(key), missing)
            packed = PackedTensor.pack(tensor, time_dim, self.compression_level, group=1)
            *nest, name = (key,) if isinstance(key, str) else key
            out.set((*nest, name + SUFFIX), _to_bytes(packed).squeeze(missing))
        return out

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        time_dim, missing = _axes(tensordict)
        leaves = tensordict.keys(include_nested=True, leaves_only=True)
        named = [key for key in ((k,) if isinstance(k, str) else k for k in leaves) if key[-1].endswith(SUFFIX)]
        keys = [key for key in named if tensordict.get(key).dtype == torch.uint8]
        out = tensordict.exclude(*keys)
        for key in keys:
            data = _from_bytes(_with(tensordict.get(key), missing), time_dim)
            out.set((*key[:-1], key[-1].removesuffix(SUFFIX)), data.squeeze(missing))
        return out

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        raise ConfigError(
            f"{type(self).__name__} does not work inside an env: steps of an env have a fixed size, compressed data do "
            "not. Pass it to the "
            "collector as postproc, or call it on steps and batches."
        )


def _axes(data: TensorDictBase) -> tuple[int, tuple[int, ...]]:
    """Return the time axis, and the axes that must be inserted to make the batch a rollout: () if it is one."""
    if len(data.batch_size) > 1:
        return time_axis(data), ()
    names = [*data.names] if data._has_names() else []
    return 0, (1,) if "time" in names else (0,) if data.batch_size else (0, 1)


def _with(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    for axis in axes:
        tensor = tensor.unsqueeze(axis)
    return tensor


def _to_bytes(packed: PackedTensor) -> Tensor:
    steps = packed.shape[packed.time_dim]
    sizes = [steps, *packed.shape[2:]]
    runs = []
    for name, block in packed.blocks:
        head = _HEAD.pack(len(block), codecs.CODEC_NAMES.index(name), _DTYPES.index(packed.dtype), len(sizes))
        runs.append(head + struct.pack(f"<{len(sizes)}I", *sizes) + block)
    width = -(-max(map(len, runs), default=0) // steps)
    table = np.zeros((len(runs), steps * width), np.uint8)
    for row, run in zip(table, runs, strict=True):
        row[: len(run)] = np.frombuffer(run, np.uint8)
    data = torch.from_numpy(table).view(len(runs), steps, width)
    return (data if packed.time_dim else data.movedim(1, 0).contiguous()).to(packed.device)


def _from_bytes(data: Tensor, time_dim: int) -> Tensor:
    rows = (data if time_dim else data.movedim(1, 0)).cpu()
    num_envs, steps = rows.shape[:2]
    if not num_envs:
        raise InputError("The batch has no envs, so the shape of its entries is unknown: select at least one env.")
    runs = [_read_run(row.tobytes()) for row in rows.reshape(num_envs, -1).numpy()]
    _, dtype, sizes, _ = runs[0]
    if any(run[1:3] != (dtype, sizes) for run in runs):
        raise FormatError("The envs of a compressed entry differ in dtype or shape: the bytes are damaged.")
    if sizes[0] != steps:
        raise InputError(f"The bytes hold {sizes[0]} steps, but the batch has {steps}: select whole envs, not steps.")
    blocks = [(codec, block) for codec, _, _, block in runs]
    shape = (num_envs, steps, *sizes[1:]) if time_dim else (steps, num_envs, *sizes[1:])
    return PackedTensor(shape, dtype, data.device, time_dim, 1, blocks).unpack()


def _read_run(run: bytes) -> tuple[str, torch.dtype, tuple[int, ...], bytes]:
    """Return codec, dtype, sizes (T first) and compressed block from the bytes of one env."""
    try:
        length, codec, dtype, count = _HEAD.unpack_from(run)
        sizes = struct.unpack_from(f"<{count}I", run, _HEAD.size)
        first = _HEAD.size + 4 * count
        if not sizes or first + length > len(run):
            raise FormatError("The bytes of a compressed entry are cut off: select whole envs, not steps.")
        if math.prod(sizes) * _DTYPES[dtype].itemsize > codecs.MAX_EXPANSION * length:
            raise FormatError(f"The bytes of a compressed entry are damaged: they are too few for the sizes {sizes}.")
        return codecs.CODEC_NAMES[codec], _DTYPES[dtype], sizes, run[first : first + length]
    except (struct.error, IndexError) as error:
        raise FormatError(
            "The bytes of a compressed entry are damaged: pass them as CompressTransform made them."
        ) from error
