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
    from fledge.replay.index.sum_tree import SumTree
    from fledge.replay.ingest.forms import read_text
    from fledge.replay.schema import KeySpec

__all__ = [
    "DictReplayBuffer",
    "KeySpec",
    "PrefixSum",
    "SumTree",
    "compress_image",
    "compress_image_seq",
    "decompress_image",
    "decompress_image_seq",
    "read_text",
]

_HOME = {
    "DictReplayBuffer": "buffer",
    "KeySpec": "schema",
    "PrefixSum": "index.prefix_sum",
    "SumTree": "index.sum_tree",
    "compress_image": "images",
    "compress_image_seq": "images",
    "decompress_image": "images",
    "decompress_image_seq": "images",
    "read_text": "ingest.forms",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
