"""PackedTensor: a losslessly compressed tensor of a batch, from which single envs can be decoded.

Envs are compressed in blocks of `group`, time-innermost, [envs, ..., T], so that filters see neighbours in time side by side
(measured on LiDAR of navigation: 12.7 times smaller, 7.8 in the original layout). Filters and codecs are those of
`storage.format.codecs`; blocks that would shrink by less than 5 % are stored raw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.transfer import Fetch
from fledge.storage.format import codecs
from fledge.storage.format.leaves import DTYPE_NAMES, bytes_of, restore, word_size

Envs = slice | Sequence[int] | Tensor
GROUP = 16  # 144 floats over 64 steps are 0.6 MB; larger blocks save little, smaller ones are slower (measured)


@dataclass(frozen=True)
class PackedTensor:
    """A compressed tensor: [T, N, ...] if `time_dim` is 0, [N, T, ...] if it is 1."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    time_dim: int
    group: int  # envs per block
    blocks: list[tuple[str, bytes]]  # codec and bytes of each group

    @classmethod
    def pack(
        cls,
        tensor: Tensor,
        time_dim: int = 0,
        level: int = 4,
        group: int = GROUP,
        device: torch.device | None = None,
    ) -> PackedTensor:
        """Compress a tensor at a level of 0 (store) to 9 (smallest); the codec is chosen by trying a sample.

        Args:
            device: Device to which it is decoded; by default that of the tensor.
        """
        rows = Fetch([tensor.detach()]).get()[0].movedim(time_dim, -1)  # [N, ..., T]
        word, floats = word_size("tensor", DTYPE_NAMES[tensor.dtype]), tensor.is_floating_point()
        codec = codecs.choose(bytes_of(rows[:GROUP]), word, floats, codecs.candidates(level, tensor.nbytes))
        blocks: list[tuple[str, bytes]] = []
        for first in range(0, len(rows), group):
            used, encoded = codecs.encode(codec, bytes_of(rows[first : first + group]), word, floats)
            blocks.append((used, b"".join(encoded)))
        return cls(tuple(tensor.shape), tensor.dtype, device or tensor.device, time_dim, group, blocks)

    @property
    def num_envs(self) -> int:
        return self.shape[1 - self.time_dim]

    @property
    def nbytes(self) -> int:
        """Compressed size, bytes."""
        return sum(len(block) for _, block in self.blocks)

    @property
    def raw_nbytes(self) -> int:
        """Uncompressed size, bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def unpack(self, envs: Envs | None = None) -> Tensor:
        """Return the tensor, or only the given envs in the given order. Decodes only the blocks of these envs, each once."""
        chosen = torch.arange(self.num_envs)
        if envs is not None:
            chosen = chosen[envs.cpu() if isinstance(envs, Tensor) else envs]
        if chosen.ndim != 1:
            raise InputError(
                "envs must be a slice, a list of env numbers or a mask: for one env pass a list, such as [3]."
            )
        shape = list(self.shape)
        shape[1 - self.time_dim] = len(chosen)
        out = torch.empty(shape, dtype=self.dtype, pin_memory=self.device.type == "cuda")
        rows = out.movedim(self.time_dim, -1)
        if envs is None:
            for number in range(len(self.blocks)):
                rows[number * self.group : (number + 1) * self.group] = self._decode(number)
        else:
            block_of, inside = chosen // self.group, chosen % self.group
            for number in block_of.unique().tolist():
                places = (block_of == number).nonzero().flatten()
                rows[places] = self._decode(number)[inside[places]]
        return out.to(self.device, non_blocking=True)

    def rows(self, index: Tensor) -> Tensor:
        """Return rows of `flatten(0, 1)` of the tensor, [len(index), ...]. Decodes each block once, one at a time."""
        index = index.cpu()
        first, second = index // self.shape[1], index % self.shape[1]
        step, env = (second, first) if self.time_dim else (first, second)
        out = torch.empty(len(index), *self.shape[2:], dtype=self.dtype, pin_memory=self.device.type == "cuda")
        block_of, inside = env // self.group, env % self.group
        for number in block_of.unique().tolist():
            places = (block_of == number).nonzero().flatten()
            out[places] = self._decode(number).movedim(-1, 1)[inside[places], step[places]]
        return out.to(self.device, non_blocking=True)

    def _decode(self, number: int) -> Tensor:
        """Return block `number` decoded, [envs, ..., T]."""
        name, block = self.blocks[number]
        count = min(self.group, self.num_envs - number * self.group)
        shape = (count, *self.shape[2:], self.shape[self.time_dim])
        data = np.empty(math.prod(shape) * self.dtype.itemsize, np.uint8)
        dtype = DTYPE_NAMES[self.dtype]
        codecs.decode(name, memoryview(block), data, word_size("tensor", dtype))
        return restore("tensor", dtype, shape, data, torch.device("cpu"))
