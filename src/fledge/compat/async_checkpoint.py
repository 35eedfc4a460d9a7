"""The module `async_checkpoint` of NavRL's add-on: `AsyncCheckpointSaver` and `load_checkpoint`.

Files are LZ4 frames around a `torch.save` file (`ckpt.pt` becomes `ckpt.pt.lz4`). `fledge.AsyncCheckpointSaver` is the same
saver with the native format, which is smaller and checks every tensor.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fledge import storage
from fledge.compat.devices import usable_device
from fledge.core.errors import InputError
from fledge.storage import CheckpointHandle

ALIASES = {"model_state_dict": "model", "env_frames": "frames"}
RUN_KEYS = {"model", "frames", "iteration", "task"}


def _has_lz4() -> bool:
    try:
        return importlib.util.find_spec("lz4") is not None
    except ValueError:  # `sys.modules["lz4"] = None` blocks it
        return False


LZ4_AVAILABLE = _has_lz4()
if not LZ4_AVAILABLE:
    print("[Warning] lz4 not installed. Run: pip install lz4", flush=True)


class AsyncCheckpointSaver(storage.AsyncCheckpointSaver):
    """Save checkpoints in the background as LZ4 files.

    Example:
        >>> saver = AsyncCheckpointSaver(max_queue_size=3)
        >>> saver.save_async(checkpoint={"model_state_dict": model.state_dict()}, path="checkpoint_1000.pt", compress=True)
        >>> saver.shutdown()

    Args:
        max_queue_size: Largest number of checkpoints that wait in memory to be written; a further `save_async` waits.
        verbose: Print a line for each durable checkpoint, and the statistics at the end.
        compression_level: LZ4 level, 0 to 16.
        options: More arguments of `fledge.AsyncCheckpointSaver`.
    """

    def __init__(
        self, max_queue_size: int = 3, verbose: bool = True, compression_level: int = 9, **options: Any
    ) -> None:
        codec = options.pop("codec", "lz4" if LZ4_AVAILABLE else "pt")
        level = None if codec == "pt" else compression_level
        super().__init__(max_queue_size, level, verbose, codec=codec, **options)

    def save_async(
        self,
        checkpoint: Any,
        path: str | os.PathLike[str],
        compress: bool = True,
        metadata: dict[str, Any] | None = None,
        **options: Any,
    ) -> CheckpointHandle:
        """Save a state in the background as `path` + ".lz4" (as `path` if compress=False), and return a handle at once.

        Args:
            metadata: Stored in the file as `checkpoint["metadata"]`.
            options: More arguments of `fledge.AsyncCheckpointSaver.save_async`.
        """
        if metadata:
            checkpoint = {**checkpoint, "metadata": metadata}
        return super().save_async(checkpoint, path, compress, **options)

    def _save_checkpoint(
        self, checkpoint: Any, path: str, compress: bool, metadata: dict[str, Any] | None = None
    ) -> None:
        """Save a state and wait until the file is durable."""
        self.save_async(checkpoint, path, compress, metadata).wait()

    def get_stats(self) -> dict[str, Any]:
        """Return the statistics of `fledge.AsyncCheckpointSaver`, also under the names that the add-on uses."""
        stats = super().get_stats()
        ratio = 1.0 if stats["compression_ratio"] is None else stats["compression_ratio"]
        stats |= {"total_saved": stats["saves"], "save_count": stats["saves"], "compression_ratio": ratio}
        return stats | {"total_saved_bytes": stats["bytes_in"], "total_compressed_bytes": stats["bytes_out"]}

    def get_summary(self) -> str:
        """Return the saver's statistics as text: a title and three lines."""
        return stats_text(self.get_stats())

    def _waiting(self) -> int:
        return self._pipeline.unfinished

    def _warn_full_queue(self, text: str) -> None:
        print("[Warning] Save queue is full, checkpoint may be delayed", flush=True)


def stats_text(stats: Mapping[str, Any]) -> str:
    """Return the result of `get_stats` as text, as the add-on's training script prints it."""
    lines = ["[Checkpoint Stats]", f"  Total saved: {stats['total_saved']}"]
    lines += [f"  Compression ratio: {stats['compression_ratio']:.2f}x", f"  Queue size: {stats['queue_size']}"]
    return "\n".join(lines)


def load_checkpoint(
    path: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    keys: Sequence[str] | None = None,
    mmap: bool = False,
) -> Any:
    """Load and verify a checkpoint; `path` is the path given to `save_async`. See `fledge.storage.load_checkpoint`.

    The checkpoint of a run also has `model_state_dict` and `env_frames`: the same objects as `model` and `frames`. `keys`
    may contain these names too. If there is no CUDA device, `device="cuda"` loads to the CPU.
    """
    device = usable_device(device)
    if keys is None:
        state = storage.load_checkpoint(path, device, mmap=mmap)
        is_run = isinstance(state, dict) and set(state) >= RUN_KEYS
        return state | {alias: state[key] for alias, key in ALIASES.items()} if is_run else state
    try:
        return storage.load_checkpoint(path, device, keys, mmap)
    except InputError:
        if not set(keys) & set(ALIASES):
            raise
    state = storage.load_checkpoint(path, device, [ALIASES.get(key, key) for key in keys], mmap)
    renamed = {alias: state[ALIASES[alias]] for alias in keys if alias in ALIASES}
    return {key: value for key, value in state.items() if key in keys or key not in ALIASES.values()} | renamed
