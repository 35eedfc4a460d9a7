"""The report is one page that stands alone."""

import re
from pathlib import Path

from fledge.evaluate.command import save_picture
from fledge.evaluate.episodes import evaluate
from fledge.evaluate.report import Report, smooth, write_report
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.pilots import GapPilot
from fledge.tasks.navigation.task import NavigationTask

TASK = NavigationTask()
CFG = NavigationConfig(num_envs=16, num_maps=2, decimation=5, moving_obstacles=8)
ROW = {"static_obstacles": 350, "moving_obstacles": 8, "seed": 1, "floating_boxes": True}


def test_the_page_has_figures_table_curves_and_flights_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    result = evaluate(GapPilot(), TASK, CFG, 16, record=16)
    curve = {"frames": 1e6, "success_recent": 0.5, "collision_static": 0.1, "collision_moving": 0.2, "timeout": 0.1}
    curve |= {"return": 3.0, "frames_per_second": 4e4}
    report = Report(
        title="A <title>",
        lead="lead",
        command="fledge train",
        task=TASK,
        figures=[("4.2 min", "of learning")],
        rows=[{"policy": "gap & co", "ours": True, "world": TASK.world_label(CFG), **result.as_dict(), **ROW}],
        curves=[{**curve, "frames": k * 1e6} for k in range(1, 30)],
        tracks=[("Flights", result.tracks)],
        marks=[("NavRL", 0.6)],
    )
    write_report(tmp_path / "report.html", report)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 2
    assert not re.findall(r"(?:src|href)='(?!data:)", page)
    assert "A &lt;title&gt;" in page
    assert "gap &amp; co" in page
    assert f"{result.rate('success'):.3f}" in page


def test_a_picture_of_flights_is_written(tmp_path: Path) -> None:
    result = evaluate(GapPilot(), TASK, CFG, 16, record=4)
    assert len(result.tracks) == 4
    save_picture(tmp_path / "deep" / "flights.png", TASK, result, "title")
    assert (tmp_path / "deep" / "flights.png").stat().st_size > 10_000


def test_smoothing_keeps_a_constant_and_the_length() -> None:
    assert smooth([2.0] * 30).tolist() == [2.0] * 30
    assert len(smooth([1.0, 2.0])) == 2


def test_navrls_recorded_results_are_those_of_its_worlds() -> None:
    rows = TASK.recorded()
    assert [row["moving_obstacles"] for row in rows] == [0, 80]
    assert all(row["episodes"] >= 1024 and row["floating_boxes"] for row in rows)
