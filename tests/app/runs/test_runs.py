"""The training page of runs: state, settings side by side, checkpoints, and charts for any metric."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.app.runs import runs
from fledge.app.runs.chart_list import lay_out
from fledge.app.runs.file_index import Entry, FileIndex, make_id
from fledge.app.runs.runs import (
    MODULE,
    RunCache,
    as_page,
    collect,
    compare_settings,
    describe_fully,
    examine,
    list_checkpoints,
    read_settings,
)
from fledge.app.server.assets import as_data, join_modules
from fledge.storage import CheckpointHistory


def make_run(folder: Path, config: str = "task: navigation\ntotal_frames: 100\n", rows: int = 3, **more: Any) -> Entry:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    lines = [{"step": k, "success": 0.5, "timeout": 0.5, "episodes": 4, "return": 1.0, "success_recent": 0.25 * k,
              "frames": 10 * k, "seconds": 2.0 * k, **more} for k in range(1, rows + 1)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = FileIndex([folder]).find(make_id(folder))
    assert found is not None
    return found


def test_a_run_is_described_by_its_headline_and_how_far_it_is(tmp_path: Path) -> None:
    entry = make_run(tmp_path / "first")
    told = describe_fully(entry, RunCache().curves(entry))
    assert told["headline"] == {"name": "success", "value": 0.75, "share": True}
    assert (told["task"], told["frames"], told["total_frames"], told["state"]) == ("navigation", 30, 100, "running")
    assert told["sections"][0]["charts"][0]["lines"][0]["name"] == "success_recent"
    (summary,) = RunCache().summaries([entry])
    assert {key: told[key] for key in summary} == summary


def test_a_run_that_is_quiet_has_stopped_and_one_at_its_end_has_finished(tmp_path: Path) -> None:
    quiet = make_run(tmp_path / "quiet")
    os.utime(quiet.path / "metrics.jsonl", (0, 0))
    assert RunCache().summaries([quiet])[0]["state"] == "stopped"
    assert RunCache().summaries([make_run(tmp_path / "whole", "total_frames: 30")])[0]["state"] == "finished"
    assert RunCache().summaries([make_run(tmp_path / "fresh", rows=0)])[0]["state"] == "new"


def test_the_list_reads_a_run_again_only_if_its_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def count(entry: Entry) -> tuple[dict[str, Any], str]:
        reads.append(entry.name)
        return read_settings(entry)

    monkeypatch.setattr(runs, "read_settings", count)
    names = [f"run-{k:03d}" for k in range(300)]  # more than the number of parsed settings that are kept
    entries = [make_run(tmp_path / name, f"task: navigation\nseed: {k}\n") for k, name in enumerate(names)]
    cache = RunCache()
    for _ in range(3):
        assert [row["name"] for row in cache.summaries(entries)] == names
    assert reads == names
    (entries[7].path / "config.yaml").write_text("task: aircombat\nseed: 7\n")
    with (entries[8].path / "metrics.jsonl").open("a") as log:
        log.write('{"step": 4, "frames": 77}\n')
    told = cache.summaries(entries)
    assert reads == [*names, "run-007", "run-008"]
    assert (told[7]["task"], told[8]["frames"]) == ("aircombat", 77.0)
    shutil.rmtree(entries[9].path)
    assert cache.summaries(entries)[9]["trouble"] == "This run does not exist any more."
    cache.summaries(entries[:5])
    assert len(cache._briefs) == 5


def test_settings_of_runs_are_compared(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", "task: navigation\nppo:\n  lr: 0.1\n  gamma: 0.99\nflag: true\n")
    two = make_run(tmp_path / "two", "task: navigation\nppo:\n  lr: 0.2\n  gamma: 0.99\nlist: [1, 2]\n")
    told = compare_settings([one, two])
    assert {row["key"]: row["values"] for row in told["rows"] if row["differs"]} == {
        "ppo.lr": ["0.1", "0.2"],
        "flag": ["true", None],
        "list": [None, "[1, 2]"],
    }


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("a: &a [1]\nb: *a\n", "anchors"),
        ("- 1\n", "must map"),
        ("a: [1\n", "cannot be read"),
        ("a: !!python/object/apply:os.system ['true']\n", "cannot be read"),
        ("a: " + "x" * 300_000, "larger than"),
        ("- " * 90_000 + "a\n", "deeper than"),  # libyaml's loader would run out of stack, and take the server with it
        ("? " * 90_000 + "a\n", "deeper than"),
        ("a: !!bool maybe\n", "cannot be read"),
        ("a: !!timestamp never\n", "cannot be read"),
        ("a: !!int ''\n", "cannot be read"),
    ],
)
def test_settings_of_strangers_are_data_or_a_sentence(tmp_path: Path, config: str, why: str) -> None:
    settings, trouble = read_settings(make_run(tmp_path / "odd", config))
    assert settings == {}
    assert why in trouble


def test_a_run_that_was_removed_while_watched_says_so(tmp_path: Path) -> None:
    entry, cache = make_run(tmp_path / "first"), RunCache()
    assert describe_fully(entry, cache.curves(entry))["trouble"] == ""
    shutil.rmtree(tmp_path / "first")
    assert describe_fully(entry, cache.curves(entry))["trouble"] == "This run does not exist any more."
    assert list_checkpoints(entry) == []


def test_checkpoints_are_listed_and_the_doctor_tells_of_a_damaged_one(tmp_path: Path) -> None:
    entry = make_run(tmp_path / "first")
    assert list_checkpoints(entry) == []
    assert examine(entry) == {"trouble": "This run has saved no checkpoint yet."}
    history = CheckpointHistory(entry.path / "checkpoints")
    for step in (1, 2):
        history.save({"model": {"weight": torch.arange(1000.0) + step}}, step).wait()
    assert [row["bytes"] > 0 for row in list_checkpoints(entry)] == [True, True]
    report = examine(entry)
    assert report["healthy"]
    assert str(tmp_path) not in json.dumps(report)
    newest = sorted((entry.path / "checkpoints").glob("*.fledge"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 255
    newest.write_bytes(content)
    report = examine(entry)
    assert not report["healthy"]
    assert any("damaged" in line for line in report["lines"])


def test_a_checkpoint_that_leads_elsewhere_is_neither_listed_nor_read(tmp_path: Path) -> None:
    (tmp_path / "secret.fledge").write_text("of somebody else")
    entry = make_run(tmp_path / "first")
    CheckpointHistory(entry.path / "checkpoints").save({"model": {}}, 1).wait()
    before = [row["file"] for row in list_checkpoints(entry)]
    (entry.path / "checkpoints" / "a.fledge").symlink_to(tmp_path / "gone.fledge")
    assert [row["file"] for row in list_checkpoints(entry)] == before
    assert "trouble" not in examine(entry)
    for make in (lambda path: path.symlink_to(tmp_path / "secret.fledge"), os.mkfifo):  # a pipe would be waited for
        place = entry.path / "checkpoints" / "b.fledge"
        make(place)
        assert [row["file"] for row in list_checkpoints(entry)] == before
        assert "b.fledge is a link out of the run's folder" in examine(entry)["trouble"]
        place.unlink()


def test_unknown_metrics_get_charts_too() -> None:
    sections = lay_out(["step", "frames", "return", "return_recent", "my/odd_name"], "return", [])
    charts = {chart["title"]: [line["name"] for line in chart["lines"]] for s in sections for chart in s["charts"]}
    assert charts == {"Return": ["return"], "My: odd name": ["my/odd_name"]} | {"Return": ["return"]}
    assert sections[0]["charts"][0]["lines"][0]["name"] == "return_recent"


def test_a_saved_page_holds_all_and_loads_nothing(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    entry = make_run(tmp_path / "run <b>", f"task: '{evil}'\n", **{evil: 1.0})
    page = as_page(collect([entry]))
    assert evil not in page
    assert "<b>" not in page.partition("<style>")[0]
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "import " not in page.partition('<script type="module">')[2].replace("import.meta", "")[:200]
    data = page.partition('id="fledge-data">')[2].partition("</script>")[0]
    assert json.loads(data)["runs"][0]["run"]["task"] == evil


def test_data_inside_a_page_cannot_end_its_element() -> None:
    told = {"name": "</script><!--", "x": "\u2028&"}
    assert "<" not in as_data(told)
    assert json.loads(as_data(told)) == told


def test_modules_are_joined_without_imports_and_exports() -> None:
    script = join_modules([MODULE])
    lines = script.splitlines()
    assert not [line for line in lines if line.startswith(("import ", "export "))]
    names = [line.split("(")[0].split()[1] for line in lines if line.startswith(("function ", "class "))]
    assert len(names) == len(set(names))
