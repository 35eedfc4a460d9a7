"""`fledge benchmark`: every column of a protocol is flown, the table and the picture tell it, others' figures stay theirs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.core.terminal import make_console
from fledge.evaluation.benchmark import cell, chosen_worlds, draw, labels
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.export import export_policy
from fledge.tasks.metrics import env_label
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task

TASK = find_task("navigation")
FEW = ["--episodes", "2", "--threads", "1", "env.num_envs=2", "env.max_episode_steps=40"]


@pytest.mark.parametrize("name", TASK.metrics.benchmarks)
def test_every_world_of_a_benchmark_can_be_made_for_every_reference_agent(name: str) -> None:
    benchmark = TASK.metrics.benchmarks[name]
    for policy in (load_policy(p, TASK) for p in benchmark.policies):
        labels = {env_label(TASK, eval_env(policy, benchmark.preset, w).cfg) for w in benchmark.worlds.values()}
        assert len(labels) == len(benchmark.worlds)
    for rates in benchmark.published.values():
        assert set(rates) <= set(benchmark.worlds)
        assert all(0 <= rate <= 1 for rate in rates.values())
    assert bool(benchmark.published) == bool(benchmark.source)


def test_figures_of_all_columns_come_as_json_with_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "p2m.png"
    done = CliRunner().invoke(
        main, ["benchmark", "p2m", "--only", "straight", "--json", "--picture", str(picture), *FEW]
    )
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [row["column"] for row in figures["rows"]] == ["7+7", "13+13", "25+19", "25+0", "0+44"]
    assert {row["policy"] for row in figures["rows"]} == {"straight"}
    assert all(row["episodes"] == 2 and len(row["success_ci95"]) == 2 for row in figures["rows"])
    assert figures["published"]["NavRL"]["0+44"] == 0.80
    assert "0+44" not in figures["published"]["Obsnet"]
    assert picture.stat().st_size > 1000


def test_the_table_names_whose_figures_are_whose() -> None:
    done = CliRunner().invoke(main, ["benchmark", "density", "--only", "straight", *FEW])
    assert done.exit_code == 0, done.output
    assert "MOTAR (published)" in done.output
    assert "Time of a decision for 2 drones at once: straight" in " ".join(done.output.split())


def test_columns_can_be_chosen_and_cells_name_the_endings() -> None:
    words = ["benchmark", "transfer", "--only", "straight", "--columns", "iris soft, iris 0 movers", *FEW]
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [row["column"] for row in figures["rows"]] == ["iris soft", "iris 0 movers"]
    assert [row["world"] for row in figures["rows"]] == ["crossing 350/80, iris soft", "crossing 350/0, iris"]
    assert len(cell(figures["rows"][0], "success", figures["endings"]).splitlines()[2].split()) == 3


def test_columns_whose_package_is_missing_are_left_out_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, console = TASK.metrics.benchmarks["transfer"], make_console(file=io.StringIO(), width=200)
    monkeypatch.setattr("fledge.evaluation.benchmark.installed", lambda package: package != "mujoco")
    kept = chosen_worlds(benchmark, (), console)
    assert set(benchmark.worlds) - set(kept) == {name for name in benchmark.worlds if name.startswith("mujoco")}
    assert "left out, as mujoco is not installed: mujoco 0 movers" in console.file.getvalue()
    assert list(chosen_worlds(benchmark, ["mujoco all"], console)) == ["mujoco all"]
    with pytest.raises(ConfigError, match="'iris 9 movers' is not a column of this benchmark; available: lee 0 movers"):
        chosen_worlds(benchmark, ["iris 9 movers"], console)


def test_misuse_gets_one_sentence() -> None:
    for words, sentence in (
        (["benchmark", "racing"], "has no benchmark 'racing'; available: crossing"),
        (["benchmark", "crossing", "--only"], "There is no policy to evaluate"),
        (["benchmark", "crossing", "--task", "aircombat"], "aircombat has no benchmark"),
    ):
        done = CliRunner().invoke(main, words)
        assert isinstance(done.exception, ConfigError | SystemExit)
        assert sentence in done.output + str(done.exception)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("navrl", "density", "faults", "transfer", "swarm")
        else name
        for name in TASK.metrics.benchmarks
    ],
)
def test_a_policy_does_not_bring_rules_of_its_own(name: str, tmp_path: Path) -> None:
    benchmark = TASK.metrics.benchmarks[name]
    easy = tmp_path / "easy.fledge"
    export_policy("fledge-nav", easy, overrides=["env.goal_radius_m=30", "env.dt_s=0.02", "env.max_episode_steps=9000"])
    shipped, changed = load_policy("fledge-nav", TASK), load_policy(str(easy), TASK)
    compared = [load_policy(name, TASK) for name in benchmark.policies]
    for words in benchmark.worlds.values():
        ruled = [*benchmark.rules, *words]
        worlds = [eval_env(policy, benchmark.preset, ruled).cfg for policy in (shipped, changed)]
        assert worlds[0] == worlds[1]
        for policy in compared:  # their envs follow these rules anyway
            assert eval_env(policy, benchmark.preset, ruled).cfg == eval_env(policy, benchmark.preset, words).cfg


def test_two_files_of_one_name_have_a_line_each(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.fledge" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        export_policy("fledge-reflex", file)
    loaded = [load_policy(name, TASK) for name in (*map(str, files), "planner(fast=1)", "fledge-nav+orca")]
    assert labels(loaded) == [*map(str, files), "planner(fast=1)", "fledge-nav+orca"]
    assert labels(loaded[1:]) == ["mine.fledge", "planner(fast=1)", "fledge-nav+orca"]


def test_every_policy_has_its_own_line_style_in_the_picture() -> None:
    benchmark = TASK.metrics.benchmarks["p2m"]
    figures = {"title": "", "rows": [], "published": benchmark.published}
    lines = draw(figures, list(benchmark.worlds), "success").axes[0].get_lines()
    assert len({line.get_marker() for line in lines}) == len(lines) == len(benchmark.published)
