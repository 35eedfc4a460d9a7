"""The checkpoint benchmark runs, checks before it times, and says what it found."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import checkpoint as bench
from benchmarks.first_save import measure_first_saves
from benchmarks.tables import three_digits
from benchmarks.turns import ratio, spread
from fledge.core.errors import FledgeError

ROW = {
    "first_ms": spread([20.0]),
    "first_cpu_ms": spread([8.0]),
    "later_ms": spread([1.0]),
    "ratio": ratio([2.0], [1.0]),
}
FIRST_SAVES = {
    name: ROW | {"mb": 1.0} for name in ("Fledge, not attached", "torch.save + fsync", "torch DCP async_save")
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    torch.save({"w": torch.randn(50, 50)}, folder / "weights.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(bench, "measure_first_saves", lambda *_: FIRST_SAVES)  # starts processes, which takes ten seconds
        made = bench.run(size_mb=1, navrl_checkpoint=str(folder / "weights.pt"), quick=True)
    assert [path.name for path in folder.iterdir()] == ["weights.pt"]  # nothing is left behind
    return made


@pytest.mark.slow
def test_every_saver_is_measured(result: dict[str, Any]) -> None:
    assert set(result["waits"]) == {kind.name for kind in bench.SAVERS}
    for row in result["waits"].values():
        assert 0 < row["call_p50_ms"] <= row["call_p99_ms"]
        assert row["bytes"] > 500_000
        assert row["saves"] == bench.TURNS


@pytest.mark.slow
def test_the_first_save_is_timed_in_fresh_processes_beside_two_others(tmp_path: Path) -> None:
    rows = measure_first_saves(tmp_path, 1, 1)
    assert list(rows) == list(FIRST_SAVES)
    assert all(row.keys() == FIRST_SAVES[name].keys() for name, row in rows.items())
    assert all(0 < row["first_cpu_ms"]["median"] <= 1.1 * row["first_ms"]["median"] for row in rows.values())
    assert rows["Fledge, not attached"]["ratio"]["median"] == 1


def test_what_a_caller_waits_is_the_call_and_the_fence(result: dict[str, Any]) -> None:
    for row in result["waits"].values():
        assert row["total_p50_ms"] >= max(row["call_p50_ms"], row["fence_p50_ms"])
        assert row["written_p99_ms"] >= row["total_p99_ms"]


def test_the_fence_is_where_the_attached_saver_stages(tmp_path: Path) -> None:
    """A saver whose fence waits is shown with it, and not by its call alone."""

    class Late(bench.TorchSaveAlone):
        name = "late"

        def fence(self) -> None:
            time.sleep(0.02)

    waits = bench.measure_waits([Late], bench.Training(64, 1, 4, 1, 1, 0), tmp_path, 0.0, 1)["late"]
    assert waits["fence_p50_ms"] >= 20
    assert waits["total_p50_ms"] >= waits["fence_p50_ms"] + waits["call_p50_ms"] / 2
    assert waits["durable"] is False


def test_torch_save_is_shown_with_and_without_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for kind, count in ((bench.TorchSave, 1), (bench.TorchSaveAlone, 0)):
        synced.clear()
        kind(torch.optim.SGD([torch.zeros(1)])).save({"w": torch.zeros(3)}, tmp_path / "a.pt")
        assert len(synced) == count
        assert kind in bench.SAVERS


def test_the_result_is_json_and_can_be_rendered(result: dict[str, Any]) -> None:
    json.dumps(result)
    console = Console(width=80, record=True, file=io.StringIO())
    for part in bench.render(result):
        console.print(part)
    text = console.export_text()
    for word in (*result["waits"], "fence", "both", "quick: not a measurement"):
        assert word in text
    assert "…" not in text  # it fits
    row = result["waits"]["torch.save, not durable"]
    both = f"{three_digits(row['total_p50_ms'])}/{three_digits(row['total_p99_ms'])}"
    line = next(line for line in text.splitlines() if "torch.save, not durable" in line)
    assert both in line  # in one line


def test_each_bar_has_a_verdict(result: dict[str, Any]) -> None:
    assert set(result["bars"]) == set(bench.BARS) - {"train_save_p99_ms"}  # which takes minutes: not in the quick run
    for row in result["bars"].values():
        assert row["met"] == (row["measured"] <= row["bar"])
    assert result["navrl"]["lossless"]


def test_nothing_is_timed_when_a_saver_loses_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(bench.TorchSave):
        name = "forgetful"

        def load(self, path: Path) -> dict[str, Any]:
            state = super().load(path)
            state["model"]["0.bias"] += 1
            return state

    training = bench.Training(64, 1, 4, 1, 1, 0)
    monkeypatch.setattr(bench, "time_save", lambda *_: pytest.fail("timed"))
    with pytest.raises(FledgeError, match="forgetful does not restore the state that it saved"):
        bench.measure_waits([bench.TorchSave, Forgetful], training, tmp_path, 0.0, 1)
