"""Options that tasks add to `fledge eval` and `fledge benchmark`.

A task lists them as EVAL_OPTIONS in its eval_options.py, which must not import torch.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EvalOption:
    """A task's own command-line option: a short form of an option that all tasks have."""

    flag: str
    """The option as typed, for example --movers."""
    help: str
    vary: str = ""
    """Setting that takes each value of the option's list in turn."""
    interop: bool = False
    """True if the option takes another project's policy file; `fledge benchmark` then has the option too."""


@functools.cache
def eval_options() -> tuple[EvalOption, ...]:
    """Return the options of all tasks of this package."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/eval_options.py"))
    modules = [importlib.import_module(f"{__package__}.{folder}.eval_options") for folder in folders]
    return tuple(option for module in modules for option in module.EVAL_OPTIONS)
