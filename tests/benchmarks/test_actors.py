"""The benchmark of actors: what it computes from the rows of trainings."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import actors as bench


def rows(slope: float, lag: float = 0.0) -> bench.Rows:
    found = []
    for step in range(1, 11):
        row = {"frames": 100.0 * step, "seconds": 2.0 * step, "return_recent": slope * step, "actors/lag": lag}
        found.append({**row, "actors/discarded": 10.0, "actors/bytes_per_second": 1e6})
    return found


def test_figures_and_picture_come_from_the_rows(tmp_path: Path) -> None:
    curves = {"local": [rows(1.0), rows(3.0)], "actors": [rows(2.0, 1.0), rows(2.0, 2.0)]}
    found = bench.summary(curves, "return_recent")
    assert found["final"] == {"local": [10.0, 30.0], "actors": [20.0, 20.0]}
    assert found["lag"] == pytest.approx(1.5)
    assert found["discarded_share"] == pytest.approx(0.1)
    assert bench.rate(rows(1.0)) == pytest.approx(50.0)
    bench.draw(curves, "return_recent", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
    machine = {"cpu": "cpu", "cores": 2, "load_average": 1.0}
    result = {**found, "machine": machine, "picture": "a.png", "speeds": {"0": bench.spread([1.0, 2.0, 3.0])}}
    text = io.StringIO()
    Console(file=text, width=120).print(*bench.render(result), sep="\n")
    assert "20.000" in text.getvalue()
    assert "lag 1.50 updates, 10.0% discarded, 1.00 MB/s" in text.getvalue()
