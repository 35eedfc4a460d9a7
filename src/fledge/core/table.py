"""Table: named columns of equal length, as NumPy arrays; prints its first and last rows."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fledge.core.errors import InputError, MissingExtraError

SHOWN_ROWS = 10  # printed rows of a longer table: the first half of them, and the last


class Table:
    """Columns by name, for example the metrics of a run.

    Example:
        >>> table = Table({"step": [1, 2, 3], "success": [0.1, 0.4, 0.7]})
        >>> table["success"].max()
        np.float64(0.7)
        >>> len(table), table.columns
        (3, ['step', 'success'])

    Args:
        columns: Values by column name, all of one length.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {str(name): _column(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"All columns of a table must have the same length, but their lengths are {lengths}.")

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Return a table of these rows; a value that a row lacks is NaN, or None if the column does not hold numbers."""
        names = dict.fromkeys(name for row in rows for name in row)
        return cls({name: [row.get(name) for row in rows] for name in names})

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"The table has no column {name!r}; its columns are {', '.join(self._columns) or 'none'}.")
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self._columns.values()), ()))

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain Python values for each row."""
        plain = self.to_dict()
        return [{name: values[k] for name, values in plain.items()} for k in range(len(self))]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name, as lists of plain Python values."""
        return {name: values.tolist() for name, values in self._columns.items()}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; raise MissingExtraError if pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "to_pandas() needs pandas, which is not installed: pip install pandas, or use to_dict()."
            ) from error
        return pandas.DataFrame(self._columns)

    # ---- as text -------------------------------------------------------------------------------------------------------

    def _shown(self) -> list[int | None]:
        """Return the indices of the rows to print; None stands for the rows that are left out."""
        if len(self) <= SHOWN_ROWS:
            return list(range(len(self)))
        half = SHOWN_ROWS // 2
        return [*range(half), None, *range(len(self) - half, len(self))]

    def _cells(self, row: int | None) -> list[str]:
        return ["…" if row is None else _text(values[row]) for values in self._columns.values()]

    @property
    def _size(self) -> str:
        rows, columns = len(self), len(self._columns)
        return f"{rows:,} row{'s' if rows != 1 else ''} x {columns} column{'s' if columns != 1 else ''}"

    def __repr__(self) -> str:
        lines = [self.columns, *(self._cells(row) for row in self._shown())]
        widths = [max(len(line[k]) for line in lines) for k in range(len(self._columns))]
        text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*text, f"[{self._size}]"])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        body = ["".join(f"<td>{html.escape(cell)}</td>" for cell in self._cells(row)) for row in self._shown()]
        rows = "".join(f"<tr>{cells}</tr>" for cells in body)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<div style='overflow-x:auto'>{table}</div><small>{self._size}</small>"


def _column(values: Any) -> np.ndarray:
    """Return one column as an array: of numbers, with NaN for None, or else of Python objects."""
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if any(value is None for value in values) and all(value is None or _is_number(value) for value in values):
        values = [np.nan if value is None else value for value in values]
    if all(isinstance(value, bool) for value in values) or all(_is_number(value) for value in values):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if 1e4 <= abs(float(value)) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int | np.integer) and abs(int(value)) >= 10_000 else str(value)
