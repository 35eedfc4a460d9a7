"""The summary of a sweep, and its report page."""

from __future__ import annotations

from pathlib import Path

import pytest

import fledge
from fledge.core.errors import FledgeError
from fledge.tuning.report import write_report
from fledge.tuning.summary import FILE, descent, pareto_front, read_summary
from tests.tuning.tiny import RANGES, SMALL, use_program

SETTINGS = dict(word.split("=") for word in [*RANGES, *SMALL])


def tuned(folder: Path, **options: object) -> fledge.tuning.api.TuneResult:  # type: ignore[name-defined]
    return fledge.tune("navigation", folder, workers=2, progress=False, heartbeat_s=0.2, **options, **SETTINGS)


def test_a_sweep_ends_with_a_confirmed_winner_a_report_and_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch)
    result = tuned(tmp_path, trials=8, pruner="none", confirm=2, seeds=2)
    summary = read_summary(tmp_path)
    assert (summary["state"], summary["jobs"], len(summary["trials"])) == ("finished", 8, 8)
    table = summary["confirmation"]
    assert [len(row["values"]) for row in table] == [2, 2, 2]
    assert sorted(row["name"] == "preset" for row in table) == [False, False, True]
    assert [row["value"][0] for row in table] == sorted((row["value"][0] for row in table), reverse=True)
    assert set(summary["importance"]) <= set(RANGES[0].split("=")[:1] + RANGES[1].split("=")[:1])
    page = result.report.read_text()
    for heading in (
        "Confirmed",
        "History",
        "Slices",
        "Parallel coordinates",
        "Importance",
        "Metric against minutes",
        "Trials",
    ):
        assert f">{heading}" in page
    fledge.tune(folder=tmp_path, progress=False)  # a complete sweep only writes its page again
    assert len(list((tmp_path / "confirm").glob("*.json"))) == 6
    assert result.best.read_text().startswith("# ")


def test_the_report_of_a_population_shows_the_line_of_descent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch)
    result = tuned(tmp_path, mode="pbt", population=4, generations=3)
    line = descent(result.summary["trials"], result.summary["best"])
    assert [row["generation"] for row in line] == [0, 1, 2]
    assert line[0]["parent"] is None
    assert "Line of descent of the winner" in result.report.read_text()


def test_names_in_a_summary_cannot_become_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch)
    summary = tuned(tmp_path, trials=2, seeds=0, pruner="none").summary
    summary["trials"][0] |= {"state": "fail", "error": "<script>alert(1)</script>"}
    summary["name"] = "<b>sweep</b>"
    page = write_report(tmp_path, summary).read_text()
    assert "<script>" not in page
    assert "<b>sweep" not in page


def test_no_trial_of_the_pareto_front_is_beaten_in_metric_and_minutes() -> None:
    values = [(3, 0.5), (1, 0.2), (2, 0.5), (4, 0.9), (1.5, 0.1), (5, 0.9)]
    rows = [{"number": k, "state": "complete", "minutes": m, "value": v} for k, (m, v) in enumerate(values)]
    assert pareto_front(rows) == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"trials": 3}', "\x00" * 10])
def test_a_damaged_summary_is_read_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert read_summary(tmp_path) == {}


def test_an_error_of_a_worker_ends_the_command_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch, 'json.dump({"error": "no."}, open(order["result"], "w")); sys.exit()')
    with pytest.raises(FledgeError, match=r"first [34] trials failed"):
        tuned(tmp_path, trials=4)
    assert read_summary(tmp_path)["state"] == "stopped"
