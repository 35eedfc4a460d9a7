"""Table: columns by name, head and tail as text and HTML, missing values, and clear errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fledge.core.errors import InputError, MissingExtraError
from fledge.core.table import Table


def test_columns_are_arrays_by_name_and_len_counts_rows() -> None:
    table = Table.from_rows([{"step": 1, "success": 0.5}, {"step": 2, "success": 0.75, "eval/success": 0.6}])
    assert table.columns == ["step", "success", "eval/success"]
    assert len(table) == 2
    assert table["step"].dtype.kind == "i"
    np.testing.assert_array_equal(table["eval/success"], [np.nan, 0.6])
    assert list(table) == table.columns
    assert "step" in table
    assert table.to_dict()["success"] == [0.5, 0.75]
    assert table.rows()[1] == {"step": 2, "success": 0.75, "eval/success": 0.6}


def test_text_columns_keep_none() -> None:
    table = Table.from_rows([{"policy": "a"}, {"policy": "b", "note": "x"}])
    assert table["note"].tolist() == [None, "x"]


def test_a_wrong_column_names_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"no column 'sucess'; its columns are step, success"):
        Table({"step": [1], "success": [0.5]})["sucess"]
    with pytest.raises(InputError, match="the same length"):
        Table({"a": [1, 2], "b": [1]})


def test_a_long_table_shows_its_head_and_tail() -> None:
    table = Table({"<step>": np.arange(1_000_000)})
    for text in (repr(table), table._repr_html_()):
        assert text.count("…") == 1
        assert "999,999" in text
        assert "1,000,000 rows x 1 column" in text
    assert "&lt;step&gt;" in table._repr_html_()
    assert "0 rows" in repr(Table({}))


def test_to_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        Table({"a": [1]}).to_pandas()
