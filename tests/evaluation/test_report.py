"""The report is one page that stands alone."""

import re
from pathlib import Path

import numpy as np
import pytest

from fledge.evaluation.comparison import EvalRequest, save_picture
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.report import (
    Report,
    command_line,
    curves_figure,
    details_table,
    env_notes,
    smooth,
    trained_in,
    write_report,
)
from fledge.evaluation.run_info import write_run_info
from fledge.evaluation.run_section import run_section
from fledge.evaluation.tables import detail_tables as details
from fledge.tasks.metrics import env_label
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.pilots import GapPilot
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task

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
        rows=[{"policy": "gap & co", "ours": True, "world": env_label(TASK, CFG), **result.as_dict(), **ROW}],
        curves=[{**curve, "frames": k * 1e6} for k in range(1, 30)],
        trajectories=[("Flights", result.trajectories)],
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
    assert len(result.trajectories) == 4
    save_picture(tmp_path / "deep" / "flights.png", TASK, result, "title", "edges 350/8")
    assert (tmp_path / "deep" / "flights.png").stat().st_size > 10_000


def test_endings_add_up_to_one_however_many_episodes_an_iteration_saw() -> None:
    episodes = [0, 5, 1, 0, 0, 9, 2, 0, 0, 0, 3, 40]
    won = [0, 4, 0, 0, 0, 3, 2, 0, 0, 0, 3, 11]
    shares = [(w / max(n, 1), (n - w) / max(n, 1)) for n, w in zip(episodes, won, strict=True)]
    success, other = (smooth([pair[k] for pair in shares], episodes) for k in (0, 1))
    known = ~np.isnan(success)
    assert known.sum() >= 10
    assert np.allclose(success[known] + other[known], 1.0)
    assert success[4] == pytest.approx((4 + 0 + 3 + 2) / (5 + 1 + 9 + 2))  # iterations 0 to 8


def test_the_weak_class_of_flights_is_told_in_page_and_table() -> None:
    row = {"policy": "a_run_with_a_long_name-1", "world": "edges 350/120 low", "mean_success_seconds": None}
    row |= {"outside_share": 0.61, "detour": 1.041, "least_clearance": 0.44, "control_effort": 11.54}
    row["by_class"] = {name: {"success": 0.58} for name in ("opposite", "adjacent")} | {"same": {"success": 1.0}}
    page = details_table([row], TASK)
    for text in ("<th>opposite</th>", "<td>.580</td>", "<td>1.000</td>", "<th>outside</th>", "<td>0.61</td>"):
        assert text in page
    assert page.index("opposite") < page.index("same")
    crossing = {**row, "world": "crossing 350/80", "by_class": {"crossing": {"success": 0.5}}}
    by_class, metrics = details([row, crossing], TASK)
    assert by_class.rows == [[row["policy"], row["world"], ".580", ".580", "1.000"]]  # one class is the whole: no row
    assert metrics.rows[0][2:] == ["0.61", "1.04", "0.44", "11.5"]


def test_the_env_of_the_training_comes_first_and_is_named() -> None:
    ours = load_policy("fledge-nav")
    assert trained_in(ours) == "crossing 350/80"
    asked = EvalRequest([], [])
    assert env_notes(["crossing 350/80", "edges 350/80"], asked, ours) == {
        "crossing 350/80": "the env that it was trained in",
        "edges 350/80": "the benchmark env of navigation",
    }
    varied = EvalRequest([], [], vary=("env.moving_obstacles", ["0", "80"]))
    notes = env_notes(["crossing 350/0", "crossing 350/80", "edges 350/0"], varied, ours)
    assert [text.startswith("the env that it was trained in") for text in notes.values()] == [True, True, False]


def test_the_page_says_how_the_run_was_made(tmp_path: Path) -> None:
    ours = load_policy("fledge-nav")
    before = "".join(run_section(tmp_path, ours, []))
    assert "<td>env.starts</td><td>crossing</td><td>edges</td>" in before  # without run.json: settings of the env
    write_run_info(tmp_path, "fledge train navigation ppo.lr=0.1", "fast", {"ppo.lr": 0.1}, {"ppo.lr": 0.0007}, "cpu")
    page = "".join(run_section(tmp_path, ours, [{"frames": 3e6, "seconds": 119.7, "step": 9.0}]))
    for text in (
        "fledge train navigation ppo.lr=0.1",
        "<td>ppo.lr</td><td>0.1</td><td>0.0007</td>",
        "3,000,000 decisions in 2 min 0 s, 25,063 per second (9 iterations)",
        ">fast<",
        "cores",
    ):
        assert text in page, text
    assert "env.starts" not in page


def test_smoothing_keeps_a_constant_and_the_length() -> None:
    assert smooth([2.0] * 30).tolist() == [2.0] * 30
    assert len(smooth([1.0, 2.0])) == 2


def test_navrls_recorded_results_are_those_of_its_worlds() -> None:
    rows = TASK.metrics.reference_rows()
    assert [row["world"] for row in rows] == ["crossing 350/0", "crossing 350/80", "edges 350/0", "edges 350/80"]
    assert all(row["episodes"] >= 2048 and row["floating_boxes"] and row["by_class"] for row in rows)
    assert all("recorded" in row["policy"] for row in rows)


def test_where_the_return_is_the_headline_it_is_drawn_once_and_endings_claim_no_sum() -> None:
    row = {"frames": 1e6, "return": 3.0, "frames_per_second": 4e4, "terminated": 0.3, "truncated": 0.7}
    figure = curves_figure([row, {**row, "frames": 2e6}], find_task("gym:CartPole-v1"))
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["return per episode", "how episodes end", "thousand decisions per second"]
    assert not any("iterations)" in ax.get_title() for ax in curves_figure([{**row, "success": 0.5}], TASK).axes)


def test_the_page_repeats_the_command_as_typed() -> None:
    run = Path("runs/a b")
    plain = EvalRequest([], [], 256, 7)
    assert command_line(run, plain, run / "report.html") == "fledge report 'runs/a b'"
    asked = EvalRequest([], ["env.x=1"], 9, 3, task="examples/hover.py", vary=("env.y", ["0", "8"]))
    assert command_line(run, asked, Path("p.html")) == (
        "fledge report 'runs/a b' env.x=1 --task examples/hover.py --out p.html --episodes 9 --seed 3 --vary env.y=0,8"
    )
