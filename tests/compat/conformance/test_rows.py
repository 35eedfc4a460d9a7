"""The table of the reference documents' lines is complete: every row has a test or a reason, and most hold as typed."""

from __future__ import annotations

import ast

import pytest

from tests.compat.conformance.rows import ROOT, Row, covered_rows, docs_page, read_rows, updated_page

ROWS, TESTS = read_rows(), covered_rows()


def has_test(path_and_name: str) -> bool:
    path, _, name = path_and_name.partition("::")
    file = ROOT / path
    nodes = ast.walk(ast.parse(file.read_text())) if file.is_file() else []
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in nodes)


def test_all_248_lines_are_in_the_table() -> None:
    assert list(ROWS) == list(range(1, 249))
    assert {row.status for row in ROWS.values()} <= {"as typed", "listed"}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: f"{row.number:03d}")
def test_each_row_has_a_test_or_a_reason(row: Row) -> None:
    if row.status == "listed":
        assert row.note, f"row {row.number} says nothing about why it does not hold"
        assert not row.note.startswith("to do"), f"row {row.number} is undecided"
    elif row.note:
        assert has_test(row.note), f"row {row.number}: there is no {row.note}"
    else:
        assert TESTS.get(row.number), f"no test has the decorator @covers({row.number})"


def test_at_least_225_lines_work_as_typed() -> None:
    assert sum(row.status == "as typed" for row in ROWS.values()) >= 225


def test_the_docs_list_every_row_that_does_not_hold() -> None:
    text = docs_page().read_text()
    assert updated_page(text, ROWS) == text, "run python -m tests.compat.conformance.rows --write"
