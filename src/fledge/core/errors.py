"""Errors that Fledge raises for a caller's mistake or a failed operation.

    FledgeError                     root; the command line prints it as one sentence
    ├── ConfigError                 an unknown key, a bad value, an impossible combination     (exit 2)
    ├── InputError                  a tensor or argument of the wrong shape, type or range     (exit 2)
    ├── MissingExtraError           an optional package that is not installed                  (exit 2)
    ├── FormatError                 a file of the wrong kind, truncated, or altered            (exit 1)
    ├── StorageError                a save or a load that failed                               (exit 1)
    ├── MemoryBudgetError           the request needs more memory than the machine has         (exit 2)
    ├── NumericsError               NaN or infinity where only finite numbers are allowed      (exit 1)
    └── InterruptedRunError         a run ended by Ctrl-C without saving                       (exit 130)

A message names the problem, the allowed values and the fix.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class FledgeError(Exception):
    """Root of all errors that Fledge raises on purpose."""

    exit_code = 1

    def __init_subclass__(cls, exit_code: int = 0) -> None:
        cls.exit_code = exit_code or cls.exit_code

    def __str__(self) -> str:
        """Return the message, with control characters escaped: a file name in it must not act on the terminal."""
        return harmless(super().__str__(), keep="\n\t")


class ConfigError(FledgeError, ValueError, exit_code=2):
    """A configuration that cannot be used: unknown key, bad value, impossible combination."""


class InputError(FledgeError, ValueError, exit_code=2):
    """An argument with a wrong shape, type, device or range."""


class MissingExtraError(FledgeError, ImportError, exit_code=2):
    """An optional package that is not installed."""


class FormatError(FledgeError):
    """A file that cannot be read: wrong kind, truncated, altered, or unsafe to read."""


class StorageError(FledgeError, OSError):
    """A save or load that failed: no space, no permission, missing file, dropped from a queue."""

    @property
    def errno(self) -> int | None:  # type: ignore[override]
        """The system's error number, such as errno.ENOSPC; None if no OSError caused this error."""
        return getattr(self.__cause__, "errno", None)


class MemoryBudgetError(FledgeError, MemoryError, exit_code=2):
    """A request that needs more memory than the machine has."""


class NumericsError(FledgeError, ArithmeticError):
    """NaN or infinity where only finite numbers are allowed.

    `dump` is the path of a file from which the error can be reproduced, or None; `cause` is the content for such a file.
    """

    def __init__(self, message: str, dump: str | None = None, cause: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.dump = dump
        self.cause = cause


class InterruptedRunError(FledgeError, exit_code=130):
    """A run that Ctrl-C ended before its newest state was saved."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean NAME?" with the known name that is most similar to `name`; "" if no name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def harmless(text: str, keep: str = "") -> str:
    """Return untrusted text with control characters, line breaks and changes of writing direction escaped.

    The characters in `keep` stay as they are.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
