"""Terminal output: text printed verbatim, and progress bars only on interactive terminals.

rich reads `[name]` as a style and `:name:` as an emoji, which would alter `pip install 'fledge[wandb]'`, tensors and paths.
Our consoles disable both; use a `Text` with a style for bold text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text


def make_console(stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return a console that prints every character verbatim, also in tables and titles.

    Args:
        file: Print there, without colours.
        width: Number of columns; by default the terminal's, or 80.
    """
    return Console(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False)


def harmless(text: str) -> str:
    """Return untrusted text on one line, with control characters and changes of writing direction as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def strict_json(value: Any) -> str:
    """Return one line of strict JSON: NaN and infinities become null, other objects text."""
    return json.dumps(_finite(value), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """Return a time span in its two largest units, rounded: "45 s", "2 min 0 s", "1 h 2 min", "3 d 4 h"."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def say(console: Console, text: str) -> None:
    """Print one line without wrapping, so that paths and commands can be copied."""
    console.print(text, soft_wrap=True)


@contextmanager
def counting(console: Console, text: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere. Yields a function to call with the number done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = quiet or not console.is_interactive  # a bar would leave an empty line in a file
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        bar = progress.add_task(text, total=total)
        yield lambda done: progress.update(bar, completed=done)


@contextmanager
def doing(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show status messages: one changing line on a terminal, a line each elsewhere. Yields the function to call."""
    if not console.is_interactive:
        yield lambda text: say(console, f"{title}: {text}")
        return
    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))
