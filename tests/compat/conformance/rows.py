"""The table of the reference documents' lines (rows.txt), and the decorator that ties tests to its rows.

python -m tests.compat.conformance.rows            prints how many rows work as typed
python -m tests.compat.conformance.rows --write    also brings the number and the table in docs/reference/compat.md up to date
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
DOCUMENTS = {"000": "checkpoints", "001": "replay, collectors", "002": "rollouts", "004": "midrangeRL"}
Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Row:
    """One line of a document: `status` is "as typed" or "listed"; `note` is a test elsewhere, or the reason."""

    number: int
    source: str
    item: str
    status: str
    note: str


def read_rows() -> dict[int, Row]:
    """Return the rows of rows.txt by number."""
    rows = {}
    for line in (FOLDER / "rows.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        number, source, item, state = (part.strip() for part in line.split(" | "))
        status, _, note = (part.strip() for part in state.partition(":"))
        rows[int(number)] = Row(int(number), source, item, status, note)
    return rows


def covers(*numbers: int) -> Callable[[Function], Function]:
    """Mark a test as one of these rows; the numbers must be literals, because `covered_rows` reads the source."""
    assert all(1 <= number <= 248 for number in numbers), numbers
    return lambda function: function


def covered_rows(folder: Path = FOLDER) -> dict[int, list[str]]:
    """Return the tests of each row, as file::name, found by their `covers` decorator."""
    found: dict[int, list[str]] = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "covers":
                        for number in mark.args:
                            found.setdefault(ast.literal_eval(number), []).append(f"{path.name}::{node.name}")
    return found


def markdown(rows: dict[int, Row]) -> str:
    """Return the rows that do not hold, as the table of docs/reference/compat.md."""
    lines = ["| document | what it shows | why it differs here |", "|---|---|---|"]
    listed = [row for row in rows.values() if row.status == "listed"]
    return "\n".join(lines + [f"| {DOCUMENTS[row.source[:3]]} | {row.item} | {row.note} |" for row in listed])


def docs_page() -> Path:
    """Return docs/reference/compat.md, wherever it is below docs."""
    (page,) = (ROOT / "docs").rglob("compat.md")
    return page


def updated_page(text: str, rows: dict[int, Row]) -> str:
    """Return the text of docs/reference/compat.md with the number and the table of these rows; the table is its end."""
    count = sum(row.status == "as typed" for row in rows.values())
    head, mark, _ = text.partition("These do not hold:\n")
    return re.sub(r"\d+ of them work as typed", f"{count} of them work as typed", head) + f"{mark}\n{markdown(rows)}\n"


if __name__ == "__main__":
    table, tested = read_rows(), covered_rows()
    typed = [row for row in table.values() if row.status == "as typed"]
    print(
        f"{len(typed)} of {len(table)} as typed, {sum(row.number in tested for row in typed)} of those with a test here"
    )
    if "--write" in sys.argv:
        docs_page().write_text(updated_page(docs_page().read_text(), table))
