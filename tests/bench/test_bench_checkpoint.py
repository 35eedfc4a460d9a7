"""The checkpoint benchmark runs, checks before it times, and says what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fledge.bench import checkpoint as bench
from fledge.core.errors import FledgeError


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    torch.save({"w": torch.randn(50, 50)}, folder / "weights.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = bench.run(size_mb=1, navrl_checkpoint=str(folder / "weights.pt"), quick=True)
    assert [path.name for path in folder.iterdir()] == ["weights.pt"]  # nothing is left behind
    return made


def test_every_contender_is_measured(result: dict[str, Any]) -> None:
    assert set(result["waits"]) == {kind.name for kind in bench.CONTENDERS}
    for row in result["waits"].values():
        assert 0 < row["wait_p50_ms"] <= row["wait_p99_ms"]
        assert row["bytes"] > 500_000


def test_the_result_is_json_and_can_be_rendered(result: dict[str, Any]) -> None:
    json.dumps(result)
    console = Console(width=160, record=True)
    for part in bench.render(result):
        console.print(part)
    text = console.export_text()
    assert "prior design" in text
    assert "quick: not a measurement" in text


def test_each_bar_has_a_verdict(result: dict[str, Any]) -> None:
    assert set(result["bars"]) == set(bench.BARS)
    for row in result["bars"].values():
        assert row["met"] == (row["measured"] <= row["bar"])
    assert result["navrl"]["lossless"]


def test_a_contender_that_loses_data_is_not_timed(tmp_path: Path) -> None:
    class Forgetful(bench.TorchSave):
        name = "forgetful"

        def load(self, path: Path) -> dict[str, Any]:
            state = super().load(path)
            state["model"]["0.bias"] += 1
            return state

    training = bench.Training(64, 1, 4, 1, 1, 0)
    with pytest.raises(FledgeError, match="forgetful does not give back what it saved"):
        bench.check(Forgetful(training.optimizer), training, tmp_path)
