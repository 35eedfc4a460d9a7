"""Matches: both sides, same starts, figures that add up."""

import io
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from fledge.agents.base import Action, Obs
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.evaluation.match_tables import match_table
from fledge.evaluation.matches import Match, cross_table, play
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.pilots import PlaceholderPilot, RandomPilot
from fledge.tasks.registry import find_task

TASK = find_task("aircombat")
NAMES = {1: "win", 2: "loss", 3: "draw", 4: "spent", 5: "timeout"}


def settings(**changed: object) -> AircombatConfig:
    chosen = {"spacetime": False, "scenario": Scenario.chase, "max_episode_s": 60.0, **changed}
    return AircombatConfig(**chosen)  # type: ignore[arg-type]


class Shooter(PlaceholderPilot):
    """Flies straight and shoots at once."""

    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        action = super().act(obs)
        assert isinstance(action, dict)
        return {**action, "fire": torch.ones_like(action["fire"])}


def test_figures_of_a_match_by_hand() -> None:
    match = Match(np.array([1, 1, 1, 2, 3, 5]), NAMES, np.array([0, 0, 0, 0, 1, 1]), ["easy", "hard"], np.full(6, 30.0))
    row = match.as_dict()
    assert (row["win"], row["loss"], row["draw"]) == (0.5, 0.1667, 0.3333)
    assert row["win_of_decided"] == 0.75
    assert row["decided"] == 0.6667
    low, high = row["ci95"]
    assert 0.3 < low < 0.75 < high < 0.96
    assert row["by_class"] == {
        "easy": {"win": 0.75, "loss": 0.25, "fights": 4},
        "hard": {"win": 0.0, "loss": 0.0, "fights": 2},
    }
    other = match.swapped().as_dict()
    assert (other["win"], other["loss"], other["draw"]) == (0.1667, 0.5, 0.3333)
    assert other["undecided"] == row["undecided"] == {"draw": 0.1667, "spent": 0.0, "timeout": 0.1667}


def test_without_decided_fights_there_is_no_share_of_them() -> None:
    row = Match(np.array([5, 5]), NAMES, np.zeros(2, int), [], np.ones(2)).as_dict()
    assert row["win_of_decided"] is None
    assert row["decided"] == 0.0


def test_an_agent_against_itself_wins_as_often_as_it_loses_because_starts_are_swapped() -> None:
    match = play(Shooter(), Shooter(), TASK, settings(), 64, num_threads=1)
    assert match.count("win") == match.count("loss") > 0


def test_who_shoots_beats_who_does_not() -> None:
    match = play(Shooter(), PlaceholderPilot(), TASK, settings(), 64, num_threads=1)
    assert match.count("loss") == 0
    assert match.count("win") > 20


def test_the_cross_table_mirrors_and_is_the_same_twice() -> None:
    agents = [("shooter", Shooter()), ("straight", PlaceholderPilot())]
    first = cross_table(agents, TASK, settings(), 32, num_threads=1)
    again = cross_table(agents, TASK, settings(), 32, num_threads=2)
    assert first == again
    assert first["agents"] == ["shooter", "straight"]
    assert first["table"][0][1]["win"] == first["table"][1][0]["loss"]
    assert first["table"][0][1]["ci95"][0] > 0.7
    assert first["elo"][0]["rating"] > 1000 > first["elo"][1]["rating"]
    assert first["elo"][0]["arena"] > 1000


def test_more_fights_than_fit_at_once_come_in_waves() -> None:
    seen: list[int] = []
    match = play(Shooter(), PlaceholderPilot(), TASK, settings(), 1030, num_threads=1, on_progress=seen.append)
    assert len(match.outcomes) == 1030
    assert seen == sorted(seen)
    assert seen[-1] == 1030


def test_an_odd_number_of_fights_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be even"):
        play(PlaceholderPilot(), RandomPilot(), TASK, settings(), 7)


def test_the_command_prints_the_table_as_json_and_for_people() -> None:
    words = ["eval", "--task", "aircombat", "random", "placeholder", "env.spacetime=false", "env.scenario=chase"]
    asked = [*words, "--episodes", "16", "--seed", "7", "--threads", "1"]
    done = CliRunner().invoke(main, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["agents"] == ["random", "placeholder"]
    assert set(found["table"][0][1]) >= {"win", "draw", "loss", "win_of_decided", "ci95"}
    shown = CliRunner().invoke(main, asked)
    assert "of decided fights" in shown.output
    assert "of all fights" in shown.output


def test_a_cross_table_of_six_fits_80_columns_with_every_name_whole() -> None:
    names = [f"pilot_called_{k}" for k in range(6)]
    cell = {"win_of_decided": 1.0, "decided": 1.0, "win": 1.0}
    elo = [{"rating": 1000.0, "ci95": [900.0, 1100.0]}] * 6
    result = {"agents": names, "table": [[cell] * 6] * 6, "elo": elo, "episodes": 9, "world": "duel", "seed": 7}
    console = Console(file=io.StringIO(), width=80)
    console.print(*match_table(result))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for number, name in enumerate(names, 1):
        assert text.count(f"{number} {name}") == 2
    assert text.count("1000 ±100") == 12
    assert text.count("100/100") == 30


def test_a_pilot_with_parameters_is_no_setting() -> None:
    words = [
        "eval",
        "--task",
        "aircombat",
        "random(seed=3)",
        "placeholder",
        "env.spacetime=false",
        "env.scenario=chase",
    ]
    done = CliRunner().invoke(main, [*words, "--episodes", "4", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["agents"] == ["random(seed=3)", "placeholder"]
