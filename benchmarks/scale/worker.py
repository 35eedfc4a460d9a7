"""`python -m benchmarks.scale.worker NAME SECONDS [quick]`: measure one section in a process of its own.

Each line of the output is a JSON object: first {"section": names and figures}, then {"progress": text}, {"row": figures},
{"skipped": size, "why": text} or {"failed": size, "why": text}. A size that fails or does not fit does not stop the others.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import scratch
from benchmarks.scale.section import Section
from fledge.core.errors import FledgeError
from fledge.core.machine import available_bytes

SHARE = 0.9  # of the free memory and disk that may be used


SECTIONS = {
    "drones": "sims:Drones",
    "duels": "sims:Duels",
    "replay": "replay:Replay",
    "checkpoints": "checkpoints:Checkpoints",
    "browser": "browser:Browser",
}


def load(name: str) -> Section:
    """Return a section; only its own module is imported, so that another one that cannot be imported does not matter."""
    module, _, kind = SECTIONS[name].partition(":")
    section: Section = getattr(importlib.import_module(f"benchmarks.scale.{module}"), kind)()
    return section


def measure_sizes(section: Section, quick: bool, seconds: float, tell: Callable[[dict[str, Any]], None]) -> None:
    """Measure all sizes of a section, and tell the figures of each, or why it has none."""
    tell({"section": section.describe()})
    with scratch() as folder:
        for size in section.quick_sizes if quick else section.sizes:
            memory, disk = available_bytes(torch.device("cpu")), shutil.disk_usage(folder).free
            if lacking := section.need(size).lacking(SHARE * memory, SHARE * disk):
                tell({"skipped": size, "why": lacking})
                continue
            tell({"progress": f"{size:,} {section.items}"})
            try:
                tell({"row": {"size": size, **section.measure(size, seconds, Path(folder).resolve())}})
            except FledgeError as error:
                tell({"failed": size, "why": str(error)})
            except Exception as error:
                traceback.print_exc()
                tell({"failed": size, "why": f"{type(error).__name__}: {error}"})


def main(name: str, seconds: str, quick: str = "") -> None:
    """Measure a section, and print its lines."""
    measure_sizes(load(name), bool(quick), float(seconds), lambda told: print(json.dumps(told), flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
