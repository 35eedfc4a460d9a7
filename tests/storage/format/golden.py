"""The golden files: written once by each format version, and read ever since; the newest are written the same, too.

Run: python -m tests.storage.format.golden. Only when a new format version is added, and then for new files: these must stay.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict, defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.storage.checkpoint import stage_now
from fledge.storage.format.codecs import CODEC_NAMES, candidates
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.writer import Plans, write_native

FOLDER = Path(__file__).parent
RAW, PACKED, DELTA = (FOLDER / name for name in ("golden_v3_raw.fledge", "golden_v3.fledge", "golden_v3_delta.fledge"))


def encoders() -> dict[str, str]:
    """Versions on which the packed bytes depend; decoding does not."""
    return {"blosc2": version("blosc2"), "pcodec": version("pcodec"), "zlib": zlib.ZLIB_RUNTIME_VERSION}


def golden_state(shift: int = 0, version: int = 3) -> dict[str, Any]:
    """A small state made by integer arithmetic, the same everywhere."""
    module: Any = OrderedDict(weight=torch.ones(2))
    module._metadata = OrderedDict({"": {"version": 1}})
    containers = {
        "module": module,
        "ordered": OrderedDict(b=1, a=2),
        "counter": Counter({3: 1}),
        "default": defaultdict(list, {"a": [1]}),
        "size": torch.Size([2, 3]),
    }
    return _state_of_version_2(shift) | ({"containers": containers} if version >= 3 else {})


def _state_of_version_2(shift: int) -> dict[str, Any]:
    ramp = (torch.arange(600, dtype=torch.int64) * 7919 % 1009 + shift).to(torch.float32) / 8192
    return {
        "model": {name: ramp.clone().view(20, 30) for name in CODEC_NAMES},
        "optimizer": {
            "state": {0: {"step": torch.tensor(5.0), "exp_avg": ramp.double()}},
            "param_groups": [{"lr": 0.1}],
        },
        "kinds": {
            "bf16": ramp.bfloat16(),
            "bool": torch.tensor([True, False]),
            "complex": torch.tensor([1 + 2j], dtype=torch.complex64),
            "nan": torch.tensor([0x7FC00001, 1], dtype=torch.int32).view(torch.float32),
            "array": np.arange(12, dtype=">i2").reshape(3, 4),
            "scalar": np.float64(0.1),
            "bytes": b"\x00\x01",
            "empty": torch.zeros(0, 3),
        },
        "plain": [None, True, -1, 2**70, 0.1, float("inf"), "\u00e9", (1, "a"), {1: "int key", None: "none key"}],
    }


def write(path: Path, shift: int = 0, level: int = 9, base: Path | None = None) -> None:
    """Write one golden file, each codec used once."""
    node, leaves = stage_now(golden_state(shift))
    plans = Plans()
    for leaf in leaves:
        if leaf.path[0] == "model" and level:
            name = "/".join(leaf.path)
            for is_delta in (False, True):
                plans.chosen[(name, leaf.dtype, leaf.shape, is_delta, candidates(level, 0))] = (leaf.path[1], 0)
    metadata = {"golden": 1, "encoders": encoders() if level else None}
    with path.open("wb") as stream:
        if base is None:
            write_native(stream, node, leaves, level=level, metadata=metadata, plans=plans)
        else:
            with CheckpointFile(base) as opened:
                write_native(stream, node, leaves, level=level, metadata=metadata, plans=plans, base=opened)


def write_all(folder: Path) -> None:
    """Write the three golden files into a folder."""
    write(folder / RAW.name, level=0)
    write(folder / PACKED.name)
    write(folder / DELTA.name, shift=3, base=folder / PACKED.name)


if __name__ == "__main__":
    write_all(FOLDER)
