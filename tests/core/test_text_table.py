"""Tables show every cell and every heading in full at any width."""

from __future__ import annotations

import pytest

from fledge.core.text_table import TextTable

HEADINGS = ["success", "95 %", "column", "mover", "out", "time"]
FIGURES = [".953", ".871-1.000", ".016", ".017", ".018", ".019"]
TABLE = TextTable(
    ["policy", "env", *HEADINGS],
    [["fledge-nav", "crossing 350/80", *FIGURES], ["straight", "edges 100/0", *FIGURES]],
    title="64 held-out episodes each",
    note="success: share of flights that reached the goal.",
    keys=2,
)


@pytest.mark.parametrize("width", [120, 80, 60, 40, 24])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    text = TABLE.to_text(width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for part in (*HEADINGS, *FIGURES, "fledge-nav", "straight"):
        assert part in text, part


def test_80_columns_hold_the_table_of_an_evaluation_in_one_piece_and_60_in_two() -> None:
    assert TABLE.to_text(80).count("fledge-nav") == 1
    assert TABLE.to_text(60).count("fledge-nav") == 2
    assert TABLE.to_text(60).index("success") < TABLE.to_text(60).index("time")  # key metrics first


def test_where_parts_would_be_many_a_row_becomes_a_list() -> None:
    assert "  success: .953" in TABLE.to_text(24).splitlines()


def test_headings_break_at_spaces_before_a_table_is_split() -> None:
    table = TextTable(["agent", *["shots outside R_max, %"] * 6], [["crank", *["1.0"] * 6]])
    assert table.to_text(80).count("crank") == 1
    assert table.to_text(200).splitlines()[0].count("shots outside R_max, %") == 6


def test_html_escapes_cells_and_keeps_lines() -> None:
    page = TextTable(["<a>"], [["x<y\nz"]], title="t&t").to_html()
    assert "<th>&lt;a&gt;</th>" in page
    assert "x&lt;y<br>z" in page
    assert "<caption>t&amp;t</caption>" in page
