"""Curves of a run as it is written: complete, bounded, and not upset by what files can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge.app.runs.metrics import MAX_COLUMNS, MAX_POINTS, Curves


def row(step: int, **values: Any) -> str:
    return json.dumps({"step": step, "frames": 10 * step, "seconds": 0.5 * step, **values}) + "\n"


def read_all(curves: Curves) -> Curves:
    while curves.refresh():
        pass
    return curves


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_every_row_is_a_point_while_there_are_few(path: Path) -> None:
    path.write_text("".join(row(k, win=k / 10) for k in range(1, 5)))
    told = read_all(Curves(path)).since()
    assert told["x"] == {"step": [1, 2, 3, 4], "frames": [10, 20, 30, 40], "seconds": [0.5, 1, 1.5, 2]}
    assert told["values"] == {"win": {"mean": [0.1, 0.2, 0.3, 0.4]}}


def test_a_long_run_keeps_its_mean_least_and_greatest_in_a_thousand_points(path: Path) -> None:
    rows = 10 * MAX_POINTS
    values = np.random.default_rng(0).normal(size=rows)
    path.write_text("".join(row(k + 1, loss=value) for k, value in enumerate(values.tolist())))
    curves = read_all(Curves(path))
    assert curves.points <= MAX_POINTS
    assert curves.size == 16
    told = curves.since()["values"]["loss"]
    parts = [values[k : k + 16] for k in range(0, rows, 16)]
    np.testing.assert_allclose(told["mean"], [part.mean() for part in parts], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(told["min"], [part.min() for part in parts], rtol=1e-5)
    np.testing.assert_allclose(told["max"], [part.max() for part in parts], rtol=1e-5)
    assert curves.since()["x"]["step"][-1] == rows


def test_only_what_is_new_is_sent_and_all_of_it_after_points_were_joined(path: Path) -> None:
    path.write_text("".join(row(k, win=k) for k in range(1, 6)))
    curves = read_all(Curves(path))
    first = curves.since()
    with path.open("a") as stream:
        stream.write(row(6, win=6))
    read_all(curves)
    more = curves.since(first["generation"], 4)
    assert (more["start"], more["values"]["win"]["mean"]) == (4, [5, 6])
    with path.open("a") as stream:
        stream.writelines(row(k, win=k) for k in range(7, MAX_POINTS + 2))
    read_all(curves)
    assert curves.since(first["generation"], 5)["start"] == 0


def test_a_line_that_is_being_written_waits_for_its_end(path: Path) -> None:
    line = row(2, win=0.5)
    path.write_text(row(1) + line[:17])
    curves = read_all(Curves(path))
    assert curves.rows == 1
    with path.open("a") as stream:
        stream.write(line[17:])
    assert read_all(curves).last["win"] == 0.5


def test_a_file_that_was_begun_anew_is_read_anew(path: Path) -> None:
    path.write_text("".join(row(k) for k in range(1, 10)))
    curves = read_all(Curves(path))
    before = curves.generation
    new = path.with_suffix(".new")
    new.write_text("".join(row(k) for k in range(1, 12)))  # as a resume does; longer than before
    new.replace(path)
    assert read_all(curves).rows == 11
    assert curves.generation > before
    path.write_text(row(1))  # shorter
    assert read_all(curves).rows == 1


def test_what_is_no_row_and_no_number_is_left_out(path: Path) -> None:
    lines = [
        "no json\n",
        "[1, 2]\n",
        '{"win": 1}\n',
        "[" * 100_000 + "\n",
        '{"step": 1, "win": NaN, "loss": Infinity, "name": "<b>", "list": [1], "big": 1' + "0" * 400 + ', "ok": 2}\n',
        "\x00\xff\n",
        row(2, ok=3),
    ]
    path.write_text("".join(lines))
    curves = read_all(Curves(path))
    assert curves.rows == 2
    assert curves.since()["values"] == {"ok": {"mean": [2, 3]}}
    json.dumps(curves.since(), allow_nan=False)


def test_memory_is_bounded_in_lines_and_columns(path: Path) -> None:
    many = {f"m{k}": k for k in range(5 * MAX_COLUMNS)}
    path.write_text(row(1, **many) + "x" * 3_000_000)
    curves = read_all(Curves(path))
    assert len(curves.columns) == MAX_COLUMNS
    assert len(curves._torn) < 10
    with path.open("a") as stream:
        stream.write("\n" + row(2))
    assert read_all(curves).rows == 2


def test_a_name_that_cannot_be_shown_is_left_out(path: Path) -> None:
    path.write_text(row(1, **{"\ud800": 1.0, "x" * 100_000: 1.0, "höhe": 2.0}))
    assert list(read_all(Curves(path)).since()["values"]) == ["höhe"]


def test_a_metric_that_comes_late_has_gaps_before(path: Path) -> None:
    path.write_text(row(1) + row(2, **{"eval/win": 0.3}))
    assert read_all(Curves(path)).since()["values"]["eval/win"]["mean"] == [None, 0.3]


def test_a_file_that_is_not_there_yet_is_empty(path: Path) -> None:
    curves = Curves(path)
    assert not curves.refresh()
    path.write_text(row(1))
    assert read_all(curves).rows == 1
