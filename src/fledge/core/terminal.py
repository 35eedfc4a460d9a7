"""What people read: text as it is, and progress that leaves no trace in a file.

rich takes `[name]` for a style and `:name:` for a picture, so a message with `pip install 'fledge[wandb]'`, a tensor or a
folder with brackets lost them. Our consoles do neither; what is to be bold is a `Text` with a style.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text


def make_console(stderr: bool = False) -> Console:
    """A console that prints every character it is given, in tables and their titles too."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def harmless(text: str) -> str:
    """Text of other people's files on one line, with what would steer a terminal or turn the writing around as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def strict_json(value: Any) -> str:
    """One line of JSON that every program reads: numbers that JSON has not are null, what is no plain value is text."""
    return json.dumps(_finite(value), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(console: Console, text: str) -> None:
    """Print one line, however long: a path or a command can be copied."""
    console.print(text, soft_wrap=True)


@contextmanager
def counting(console: Console, text: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, gone afterwards; nothing elsewhere. Gives what to call with the number done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = quiet or not console.is_interactive  # a bar would leave an empty line in a file
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        bar = progress.add_task(text, total=total)
        yield lambda done: progress.update(bar, completed=done)


@contextmanager
def doing(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """What is being done, on a terminal as one line that changes, elsewhere line by line. Gives what to tell it with."""
    if not console.is_interactive:
        yield lambda text: say(console, f"{title}: {text}")
        return
    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))
