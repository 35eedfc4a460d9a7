"""Savers of a training state that `python -m benchmarks checkpoint` compares."""

from __future__ import annotations

import copy
import io
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import lz4.frame
import torch

from fledge.storage import AsyncCheckpointSaver, load_checkpoint
from fledge.storage.format.flattening import flatten


class Saver:
    """A saver. `save` returns when the caller may continue, `fence` when weights may change, `wait` when the file is
    written; if `durable`, to the disk."""

    name = ""
    durable = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        pass

    def save(self, state: dict[str, Any], path: Path) -> None:
        raise NotImplementedError

    def fence(self) -> None:
        """Wait until weights may change, as an `optimizer.step()` right after the save does."""

    def wait(self) -> None:
        """Wait until the file is written."""

    def load(self, path: Path) -> dict[str, Any]:
        return torch.load(path, weights_only=True)

    def cpu_s(self) -> float:
        """Return the CPU time of background threads so far, if the saver reports it."""
        return 0.0

    def close(self) -> None:
        """Stop threads."""


class Fledge(Saver):
    name = "Fledge, attached"
    attach = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.saver = AsyncCheckpointSaver(handle_signals=False)
        if self.attach:
            self.saver.attach(optimizer)

    def save(self, state: dict[str, Any], path: Path) -> None:
        self.saver.save_async(state, path)

    def fence(self) -> None:
        self.saver.fence()

    def wait(self) -> None:
        self.saver.drain()

    def load(self, path: Path) -> dict[str, Any]:
        return load_checkpoint(path)

    def cpu_s(self) -> float:
        return self.saver.get_stats()["background_cpu_s"]

    def close(self) -> None:
        self.saver.shutdown()


class FledgeAlone(Fledge):
    name = "Fledge, not attached"
    attach = False


class TorchSave(Saver):
    name = "torch.save + fsync"

    def save(self, state: dict[str, Any], path: Path) -> None:
        with path.open("wb") as stream:
            torch.save(state, stream)
            if self.durable:
                stream.flush()
                os.fsync(stream.fileno())


class TorchSaveAlone(TorchSave):
    name = "torch.save, not durable"
    durable = False


class Safetensors(Saver):
    name = "safetensors + fsync"

    def save(self, state: dict[str, Any], path: Path) -> None:
        from safetensors.torch import save_file

        tensors = {"/".join(map(str, leaf.path)): leaf.source for leaf in flatten(state)[1]}
        save_file(tensors, path)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())

    def load(self, path: Path) -> dict[str, Any]:
        from safetensors.torch import load_file

        return load_file(path)


class DcpAsync(Saver):
    name = "torch DCP async_save"

    def save(self, state: dict[str, Any], path: Path) -> None:
        from torch.distributed import checkpoint as dcp

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.future: Any = dcp.async_save(state, checkpoint_id=path, no_dist=True)

    def wait(self) -> None:
        self.future.result()

    def load(self, path: Path) -> dict[str, Any]:
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp_to_torch_save(path, path.with_suffix(".back"))
        return torch.load(path.with_suffix(".back"), weights_only=True)


class LZ4Thread(Saver):
    """A deep copy in the caller, then a thread that compresses a torch.save buffer with LZ4 level 9."""

    name = "deep copy, LZ4-9 thread"
    durable = False
    thread: threading.Thread | None = None

    def save(self, state: dict[str, Any], path: Path) -> None:
        self.wait()
        copied = copy.deepcopy(state)
        self.thread = threading.Thread(target=self._write, args=(copied, path))
        self.thread.start()

    def _write(self, state: dict[str, Any], path: Path) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        path.write_bytes(lz4.frame.compress(buffer.getvalue(), compression_level=9))

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def load(self, path: Path) -> dict[str, Any]:
        return torch.load(io.BytesIO(lz4.frame.decompress(path.read_bytes())), weights_only=True)

    def close(self) -> None:
        self.wait()


SAVERS = (Fledge, FledgeAlone, TorchSave, TorchSaveAlone, DcpAsync, Safetensors, LZ4Thread)
