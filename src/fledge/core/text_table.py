"""Tables as data, shown in full at any terminal width: no cell and no heading is ever cut.

A table that is too wide for the terminal first breaks its headings at spaces, then narrows the gaps, then splits its figures
into up to three tables below each other. Where that is not enough, every row becomes a list of `heading: value` lines.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from fledge.core.terminal import make_console

NARROWEST = 12  # characters that names get at least
MOST_PARTS = 3  # tables that one is split into; with more, a list is easier to read


@dataclass
class TextTable:
    """A table of text. Print it with a rich console, which passes its width, or use `to_text` or `to_html`.

    Args:
        columns: Headings; "" is allowed.
        rows: Cells of each row, as many as there are columns. A cell may have several lines.
        title: Sentence above the table.
        note: Explanation below the table.
        keys: Number of leading columns that name a row, and are repeated when the table is split. The others hold figures.
        dim: Indices of rows to print in a dimmed style.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    keys: int = 1
    dim: Sequence[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.title:
            yield Text(f"{self.title}\n", "bold")
        for part in self._fit(options.max_width):
            yield part
            yield ""
        if self.note:
            yield Text(f"{self.note}\n", "dim")

    def to_text(self, width: int = 80) -> str:
        """Return the table as plain text at most `width` characters wide."""
        file = io.StringIO()
        make_console(file=file, width=width).print(self)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()).strip("\n")

    def to_html(self) -> str:
        """Return the table as HTML, for notebooks and pages."""
        title = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{_lines(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _repr_html_(self) -> str:
        return self.to_html()

    # ---- fitting a width ---------------------------------------------------------------------------------------------

    def _fit(self, width: int) -> list[RenderableType]:
        """Return the parts to print below each other, each at most `width` characters wide."""
        every = range(len(self.columns))
        for broken, gap in ((False, 2), (True, 2), (True, 1)):
            widths = [self._width(column, broken) for column in every]
            if sum(widths) + gap * (len(widths) - 1) <= width:
                return [self._part(self.columns, self.rows, widths, self.keys, gap)]
        merged = self._merge_keys(max(NARROWEST, width // 2))
        widths = [merged._width(column, True) for column in range(len(merged.columns))]
        widths[0] = min(widths[0], max(NARROWEST, width // 2))
        groups = _pack(widths[1:], width - widths[0], 2)
        if len(groups) > MOST_PARTS or any(2 + figure > width - widths[0] for figure in widths[1:]):
            return [self._list(row) for row in self.rows]
        parts: list[RenderableType] = []
        for chosen in ([0, *(1 + column for column in group)] for group in groups):
            heads, rows = [merged.columns[k] for k in chosen], [[row[k] for k in chosen] for row in merged.rows]
            parts.append(self._part(heads, rows, [widths[k] for k in chosen], 1, 2))
        return parts

    def _width(self, column: int, broken: bool) -> int:
        """Return the width of a column in characters; if `broken`, its heading may be broken at spaces."""
        heads = self.columns[column].split() if broken else [self.columns[column]]
        lines = [line for row in self.rows for line in row[column].split("\n")]
        return max((cell_len(text) for text in (*heads, *lines)), default=0)

    def _merge_keys(self, most: int) -> TextTable:
        """Return the table with its key columns joined into one: with commas, or with line breaks if they are wider than
        `most` characters."""
        if self.keys == 1:
            return self
        beside = sum(self._width(k, True) for k in range(self.keys)) + 2 * (self.keys - 1) <= most
        sign = ", " if beside else "\n"
        rows = [[sign.join(row[: self.keys]), *row[self.keys :]] for row in self.rows]
        return TextTable([", ".join(self.columns[: self.keys]), *self.columns[self.keys :]], rows)

    def _part(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], keys: int, gap: int
    ) -> Table:
        view = Table(box=SIMPLE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
        for number, (heading, width) in enumerate(zip(columns, widths, strict=True)):
            side = "left" if number < keys else "right"
            view.add_column(heading, justify=side, width=width, overflow="fold", vertical="top")  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            view.add_row(*row, style="dim" if number in self.dim else None)
        return view

    def _list(self, row: Sequence[str]) -> Text:
        """Return a row as lines of `heading: value`."""
        names = [cell.replace("\n", " ") for cell in row[: self.keys]]
        pairs = zip(self.columns[self.keys :], row[self.keys :], strict=True)
        return Text(
            "\n".join([", ".join(names), *(f"  {head}: {' '.join(cell.split())}" for head, cell in pairs if cell)])
        )


def _pack(widths: Sequence[int], room: int, gap: int) -> list[list[int]]:
    """Split columns of these widths, in order, into groups of at most `room` characters, with a gap before each column."""
    groups: list[list[int]] = []
    left = 0
    for column, width in enumerate(widths):
        if not groups or width + gap > left:
            groups, left = [*groups, []], room
        groups[-1].append(column)
        left -= width + gap
    return groups


def _lines(cell: str) -> str:
    return html.escape(cell).replace("\n", "<br>")
