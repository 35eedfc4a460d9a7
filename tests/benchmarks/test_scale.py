"""The scale benchmark: bends, sizes that do not fit or fail, the page, and small runs of the real thing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tensordict import TensorDict

from benchmarks import scale
from benchmarks.scale import worker
from benchmarks.scale.browser import copy_run
from benchmarks.scale.checkpoints import make_optimizer, same, state_of
from benchmarks.scale.page import update_page
from benchmarks.scale.replay import LENGTH, Pendulums
from benchmarks.scale.section import Figure, Need, Section, costs_of, find_bend
from benchmarks.scale.sims import Drones
from fledge.core.errors import ConfigError, FledgeError


class Fake(Section):
    """Costs 1 per item up to 100, and 2 from then on; 10 fails, and 10,000 does not fit on any disk."""

    name, title, items, per, verified = "fake", "Fake", "things", "thing", "nothing"
    sizes, quick_sizes = (1, 10, 100, 1000, 10_000), (1,)
    figures = (Figure("cost", "cost", "ms", cpu=True), Figure("total", "total", "", None))

    def need(self, size: int) -> Need:
        return Need(disk=1e30 if size == 10_000 else 0.0)

    def measure(self, size: int, seconds: float, folder: Path) -> dict[str, float]:
        if size == 10:
            raise ValueError("ten is wrong")
        cost = 1.0 if size <= 100 else 2.0
        return {"cost": cost, "cost_cpu": cost / 2, "total": size * cost}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)  # the scratch folder is made there
    lines: list[dict[str, Any]] = []
    worker.measure_sizes(Fake(), False, 0.0, lines.append)
    assert not list(tmp_path.iterdir())
    return lines


@pytest.fixture
def result(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run of the section above."""
    rows = [line["row"] for line in told if "row" in line]
    found: dict[str, Any] = {**Fake().describe(), "rows": rows, "minutes": 0.1, "load_average": [1.0, 2.0]}
    found["skipped"] = [{"size": line["skipped"], "why": line["why"]} for line in told if "skipped" in line]
    found["failed"] = [{"size": line["failed"], "why": line["why"]} for line in told if "failed" in line]
    found["bends"] = {key: find_bend(rows, key) for key in costs_of(found["figures"])}
    return {"machine": {"cpu": "x", "cores": 2, "load_average": 1.0}, "sections": {"fake": found}}


def test_the_bend_is_the_largest_size_within_a_quarter_of_the_best() -> None:
    rows = [{"size": size, "cost": cost} for size, cost in ((1, 9.0), (10, 1.2), (100, 1.0), (1000, 1.25), (9999, 1.3))]
    bend = find_bend(rows, "cost")
    assert bend == {"best": 1.0, "start": 10, "to": 1000, "largest": 9999, "at_largest": 1.3}
    assert find_bend(rows[:1], "cost") is None
    assert find_bend(rows, "absent") is None


def test_a_size_that_fails_or_does_not_fit_is_told_and_leaves_the_others(told: list[dict[str, Any]]) -> None:
    assert [line["row"]["size"] for line in told if "row" in line] == [1, 100, 1000]
    assert [(line["failed"], line["why"]) for line in told if "failed" in line] == [(10, "ValueError: ten is wrong")]
    (skipped,) = [line for line in told if "skipped" in line]
    assert skipped["skipped"] == 10_000
    assert "GB of disk, but" in skipped["why"]
    assert Need(memory=2e9).lacking(1e9, 9e9) == "needs 2.0 GB of memory, but 1.0 GB are free"
    assert Need(memory=2e9, disk=1.0).lacking(2e9, 1.0) == ""


def test_a_section_whose_process_ends_leaves_the_other_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SECTIONS", ("unheard of", "unknown"))  # KeyError in the worker
    found = scale.run(lambda text: None, quick=True)
    assert list(found["sections"]) == ["unheard of", "unknown"]
    assert not found["passed"]
    assert "unheard of" in found["sections"]["unheard of"]["failed"][0]["why"]
    assert any("unknown: failed" in str(line) for line in scale.render(found))


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose from drones, duels, replay, checkpoints, browser"):
        scale.run(lambda text: None, only=["drone"])


def test_the_page_gets_new_tables_and_pictures_and_keeps_its_text(tmp_path: Path, result: dict[str, Any]) -> None:
    (tmp_path / "images").mkdir()
    page = tmp_path / "results" / "scale.md"
    page.parent.mkdir()
    page.write_text(
        "before\n<!-- scale: fake -->\nold\n<!-- end -->\nafter\n<!-- scale: other -->\nkept\n<!-- end -->\n"
    )
    for _ in range(2):  # the second time replaces the first
        update_page(page, result["machine"], result["sections"])
        text = page.read_text()
        assert text.startswith("before\n<!-- scale: fake -->\n")
        assert text.endswith("<!-- end -->\nafter\n<!-- scale: other -->\nkept\n<!-- end -->\n")
    assert "old" not in text
    assert text.count("| 1,000 | 2.00 (1.00) | 2,000 |") == 1
    assert "| fake: cost, CPU time | 0.50 ms | 1 | 100 | 2.00 x |" in text
    assert "10 things: failed: ValueError: ten is wrong." in text
    assert (tmp_path / "images" / "scale_fake.png").read_bytes().startswith(b"\x89PNG")
    page.write_text("no place")
    with pytest.raises(ConfigError, match="<!-- scale: fake -->"):
        update_page(page, result["machine"], result["sections"])


def test_a_transition_of_another_number_is_noticed() -> None:
    data = Pendulums()
    episode = data.episode(3)
    batch = {**episode, "obs": episode["obs"][:-1], "next_obs": episode["obs"][1:]}
    assert data.check(batch)
    assert not data.check({**batch, "number": batch["number"] + LENGTH})
    assert not data.check({**batch, "next_obs": np.roll(batch["next_obs"], 1, axis=0)})


def test_a_checkpoint_that_differs_in_one_bit_is_noticed() -> None:
    one, other = state_of(make_optimizer(100)), state_of(make_optimizer(100))
    assert same(one, other)
    assert sum(t.nbytes for t in one["model"].values()) == 400
    other["optimizer"]["state"][0]["exp_avg"][7].mul_(1 + 2**-23)
    assert not same(one, other)


def test_drones_that_fly_differently_in_a_larger_batch_are_noticed() -> None:
    section = Drones()
    section.smallest[8] = TensorDict({"obs": {"state": torch.zeros(8, 3)}, "reward": torch.zeros(8)}, [8])
    other = section.smallest[8].clone()
    section.check(other, 8, 64)
    other["obs", "state"][7, 2] = 1e-30
    with pytest.raises(FledgeError, match="first 8 drones of a batch of 64 fly differently than alone"):
        section.check(other, 8, 64)


def test_copies_of_a_run_differ_in_their_seeds_and_share_their_checkpoints(tmp_path: Path) -> None:
    one = tmp_path / "one"
    (one / "checkpoints").mkdir(parents=True)
    (one / "config.yaml").write_text("task: navigation\nseed: 5\nenv:\n  seed: 5\n")
    (one / "checkpoints" / "a.fledge").write_text("weights")
    for number in (1, 2):
        copy_run(one, tmp_path / "runs" / str(number), number)
        text = (tmp_path / "runs" / str(number) / "config.yaml").read_text()
        assert text == f"task: navigation\nseed: {number}\nenv:\n  seed: 5\n"
    assert (one / "checkpoints" / "a.fledge").stat().st_nlink == 3


@pytest.mark.slow
def test_every_section_runs_and_can_be_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nicegui")
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    result = scale.run(said.append, quick=True)
    assert result["passed"], [found["failed"] for found in result["sections"].values()]
    assert json.loads(json.dumps(result)) == result
    assert "drones: 32 drones" in said
    for found in result["sections"].values():
        assert len(found["rows"]) == 2
        assert all(np.isfinite(value) for row in found["rows"] for value in row.values())
    console = Console(file=io.StringIO(), width=80)
    console.print(*scale.render(result))
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]  # it fits
