"""The package fledge_runtime: part of Fledge's wheel; in a checkout it lies in runtime/src."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fledge.core.errors import ConfigError

CHECKOUT = Path(__file__).parents[3] / "runtime" / "src"
SKIPPED = ("__pycache__",)


def find_runtime() -> Path:
    """Return the folder of the package fledge_runtime, and make it importable."""
    if importlib.util.find_spec("fledge_runtime") is None and (CHECKOUT / "fledge_runtime").is_dir():
        sys.path.append(str(CHECKOUT))
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("fledge_runtime")
    if spec is None or spec.origin is None:
        raise ConfigError("The package fledge_runtime is missing: install Fledge again, or pip install fledge-runtime.")
    return Path(spec.origin).parent


def runtime_files(package: Path) -> list[Path]:
    """Return the source files of the package."""
    files = [path for path in sorted(package.rglob("*")) if path.is_file()]
    return [
        path
        for path in files
        if not {*path.parts} & {*SKIPPED} and path.suffix not in (".pyc", ".so", ".dylib", ".dll", ".sha256")
    ]
