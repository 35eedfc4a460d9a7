"""Terminal output: text printed verbatim, and progress bars on interactive terminals and in notebooks.

rich reads `[name]` as a style and `:name:` as an emoji, which would alter `pip install 'fledge[wandb]'`, tensors and paths.
Our consoles disable both; use a `Text` with a style for bold text.
"""

from __future__ import annotations

import html
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeVar

from fledge.core.errors import harmless as harmless

if TYPE_CHECKING:  # rich takes longer to load than all of `fledge --help`
    from rich.console import Console

F = TypeVar("F")
EVERY_S = 30.0  # between lines of progress that are not on a terminal


def make_console(stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return a console that prints every character verbatim, also in tables and titles.

    Args:
        file: Print to this file, without colours.
        width: Number of columns; by default the terminal's, or 80.
    """
    from rich.console import Console

    return Console(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False)


def strict_json(value: Any) -> str:
    """Return a value as one line of strict JSON: NaN and infinities become null, and unknown objects become text."""
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
    """Print one line without wrapping, so that paths and commands can be copied; control characters are escaped."""
    console.print(harmless(text), soft_wrap=True)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def use_figures(figure: F) -> F:
    """Return `figure`, a matplotlib Figure; in a notebook, first make the kernel show Figures as pictures."""
    if in_notebook():
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(sys.modules["IPython"].get_ipython(), {"png"})
    return figure


class NotebookBar:
    """A progress bar below a notebook's cell, redrawn in place a few times a second."""

    EVERY_S = 0.3

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done, self.text = title, total, 0, ""
        self._next, self._handle = 0.0, None
        self._show(force=True)

    def update(self, done: int, text: str = "", total: int | None = None) -> None:
        """Show that `done` of the total steps are done, with a text beside the bar."""
        self.done, self.text, self.total = done, text, self.total if total is None else total
        self._show(force=done >= self.total)

    def close(self) -> None:
        """Draw the bar a last time, in its final state."""
        self._show(force=True)

    def _show(self, force: bool = False) -> None:
        if not force and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.EVERY_S
        words = html.escape(f"{self.title}  {self.done:,}/{self.total:,}  {self.text}".rstrip())
        bar = f"<progress value='{self.done}' max='{max(self.total, 1)}' style='width:16em'></progress>"
        shown = sys.modules["IPython"].display.HTML(f"<div>{bar} <code>{words}</code></div>")
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


@contextmanager
def counting(console: Console, text: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal or in a notebook, elsewhere a line every EVERY_S seconds.

    Yield a function to call with the number of finished items.
    """
    if in_notebook() and not quiet:
        shown = NotebookBar(text, total)
        yield shown.update
        shown.close()
        return
    if not console.is_interactive:  # a bar would leave an empty line in a file
        due = time.monotonic() + EVERY_S

        def log(done: int) -> None:
            nonlocal due
            if not quiet and time.monotonic() >= due:
                say(console, f"{text}: {done:,} of {total:,}")
                due = time.monotonic() + EVERY_S

        yield log
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet, transient=True) as progress:
        bar = progress.add_task(text, total=total)
        yield lambda done: progress.update(bar, completed=done)


@contextmanager
def doing(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a status message: on a terminal as one changing line, elsewhere as a new line."""
    if not console.is_interactive:
        yield lambda text: say(console, f"{title}: {text}")
        return
    from rich.text import Text

    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))
