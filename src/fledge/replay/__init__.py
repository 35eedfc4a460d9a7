"""Compressed replay: the dictionary buffer, its index, image helpers, and a TorchRL storage.

Names resolve on first use: importing this package loads neither Warp nor TorchRL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.core.lazy import lazy_names

if TYPE_CHECKING:
    from fledge.replay.buffer import DictReplayBuffer
    from fledge.replay.images import compress_image, compress_image_seq, decompress_image, decompress_image_seq
    from fledge.replay.index.prefix_sum import PrefixSum
    from fledge.replay.index.priorities import SumTree
    from fledge.replay.ingest.forms import read_text
    from fledge.replay.schema import KeySpec

__all__ = ["DictReplayBuffer", "KeySpec", "PrefixSum", "SumTree", "read_text"]
__all__ += ["compress_image", "compress_image_seq", "decompress_image", "decompress_image_seq"]

_NAMES = {
    "buffer": ("DictReplayBuffer",),
    "images": ("compress_image", "compress_image_seq", "decompress_image", "decompress_image_seq"),
    "index.prefix_sum": ("PrefixSum",),
    "index.priorities": ("SumTree",),
    "ingest.forms": ("read_text",),
    "schema": ("KeySpec",),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _NAMES.items() for name in names})
