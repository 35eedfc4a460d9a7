"""Judging: groups of fights, what is distinct, what is weak."""

import io
import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from rich.console import Console

from fledge.cli import main
from fledge.evaluation.match_figures import FEWEST, CrossTableFigures, SideRecord, worst
from fledge.evaluation.match_tables import behaviour_tables
from fledge.evaluation.matches import Match, cross_table
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.pilots import PlaceholderPilot, PursuitPilot
from fledge.tasks.match import MatchRules
from fledge.tasks.registry import find_task

TASK = find_task("aircombat")
NAMES = {1: "win", 2: "loss", 3: "draw"}
STARTS = ["easy", "hard", "cell"]


def sheet(won: list[float], start: list[int], number: list[float]) -> SideRecord:
    notes = {"start": np.array(start), "survived": np.array(won), "range_m": np.array(number)}
    return SideRecord(np.array(won), notes, STARTS, ["cell"])


def test_a_fight_that_is_flown_again_counts_once_in_an_interval() -> None:
    same = sheet([1.0] * 50, [0] * 50, [7.0] * 50).score()
    assert (same["fights"], same["distinct"], same["score"]) == (50, 1, 1.0)
    assert same["score_ci95"][0] < 0.25
    different = sheet([1.0] * 50, [0] * 50, list(range(50))).score()
    assert different["distinct"] == 50
    assert different["score_ci95"][0] > 0.9


def test_only_what_enough_fights_tell_is_called_the_worst() -> None:
    few, many = {"score": 0.0, "distinct": FEWEST - 1}, {"score": 0.4, "distinct": FEWEST}
    found = worst([("few", few), ("many", many), ("better", {"score": 0.9, "distinct": 99})])
    assert found is not None
    assert (found["name"], found["of"]) == ("many", 2)
    assert worst([("few", few)]) is None


def test_the_judge_sees_both_sides_of_a_match() -> None:
    count = 40
    notes = {
        "start": np.tile([0, 1], (count, 1)),
        "survived": np.tile([1.0, 0.0], (count, 1)),
        "range_m": np.tile(np.arange(count)[:, None], (1, 2)),
    }

    class Plain(MatchRules):
        def summarize(self, notes: dict[str, np.ndarray]) -> dict[str, float | None]:
            return {"survived": float(notes["survived"].mean()), "nothing": None}

    judge = CrossTableFigures(Plain(), 2)
    won = np.full(count, 1)
    match = Match(won, NAMES, np.zeros(count, int), [], np.ones(count), notes=notes, starts=STARTS)
    even = Match(np.full(count, 3), NAMES, np.zeros(count, int), [], np.ones(count), notes=notes, starts=STARTS)
    judge.note(0, 0, even)
    judge.note(0, 1, match)
    judge.note(1, 1, even)
    assert judge.pair(0, 1)["by_start"]["easy"]["win"] == 1.0
    assert judge.pair(1, 0)["by_start"]["hard"] == {
        "fights": count, "distinct": count, "win": 0.0, "loss": 1.0,
        "score": 0.0, "score_ci95": [0.0, 0.0876], "survived": 0.0, "survived_ci95": [0.0, 0.0876],
    }  # fmt: skip
    assert [row["survived"] for row in judge.agents()] == [1.0, 0.5]
    weak = judge.weak(["one", "two"])
    assert (weak[1]["opponent"]["name"], weak[1]["start"]["name"], weak[1]["random_start"]) == ("one", "hard", None)


def test_a_cross_table_has_the_behaviour_of_each_agent_and_fits_80_columns() -> None:
    cfg = AircombatConfig(scenario=Scenario.mixed, max_episode_s=90.0)
    result = cross_table([("pursuit", PursuitPilot()), ("straight", PlaceholderPilot())], TASK, cfg, 32, num_threads=1)
    pursuit, straight = result["behaviour"]
    assert straight["shots"] == 0
    assert straight["outside_r_max"] is None
    assert pursuit["shots"] > 0.2
    assert pursuit["outside_r_max"] == 0.0  # it shoots inside R_tr
    assert set(pursuit) >= set(TASK.match.columns)
    pair = result["table"][0][1]["behaviour"]["by_start"]
    assert pair["head_on"]["distinct"] == 1
    assert sum(row["fights"] for row in pair.values()) == 32
    assert {row["agent"] for row in result["weak"]} == {"pursuit", "straight"}
    console = Console(file=io.StringIO(), width=80)
    console.print(*behaviour_tables(result, TASK))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "defending" in text
    assert "…" not in text


def test_recordings_of_lost_fights_say_why(tmp_path: Path) -> None:
    words = ["eval", "--task", "aircombat", "pursuit", "placeholder", "env.scenario=chase", "--episodes", "16"]
    words += ["--threads", "1", "--record", str(tmp_path / "fights.frec"), "--record-episodes", "4"]
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    losses = json.loads(done.stdout)["losses"]
    assert losses
    assert all(row["agent"] == "placeholder" and row["why"].startswith("Killed ") for row in losses)
    assert Path(losses[0]["recording"]).is_file()
    listed = CliRunner().invoke(main, ["inspect", losses[0]["recording"]])
    assert f"placeholder: {losses[0]['why']}" in listed.output
