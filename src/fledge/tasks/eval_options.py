"""Options that tasks add to `fledge eval` and `fledge benchmark`: EVAL_OPTIONS in a task's eval_options.py, without torch."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EvalOption:
    """An option that is a short form of a general one."""

    flag: str
    """The option as typed, for example --movers."""
    help: str
    vary: str = ""
    """Setting whose values the option lists."""
    interop: bool = False
    """The option names another project's policy file; `fledge benchmark` has it too."""


@functools.cache
def eval_options() -> tuple[EvalOption, ...]:
    """Return the options of all tasks of this package."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/eval_options.py"))
    modules = [importlib.import_module(f"{__package__}.{folder}.eval_options") for folder in folders]
    return tuple(option for module in modules for option in module.EVAL_OPTIONS)
