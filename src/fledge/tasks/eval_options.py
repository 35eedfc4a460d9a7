"""Options that a task adds to `fledge eval` and `fledge benchmark`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvalOption:
    """An extra option of `fledge eval` that a task offers as a short form of general ones."""

    flag: str
    """The option as typed, for example --movers."""
    help: str
    vary: str = ""
    """Setting whose values the option lists."""
    interop: bool = False
    """The option names another project's policy file; `fledge benchmark` has it too."""
