"""The report of fights: one page with the cross-table, behaviour, the league's tree, and lost fights with why."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main
from fledge.evaluation.league_tree import members, read_league, spread, tree_figure
from fledge.evaluation.match_report import Fights, chosen_losses, lost_fights
from fledge.evaluation.report import read_curves
from fledge.tasks.registry import find_task
from fledge.tasks.view.trajectory import LossReason, Trajectory

TASK = find_task("aircombat")
LEAGUE = {
    "names": ["easy", "hard", "self 1"],
    "rung": 1,
    "totals": torch.tensor([[9.0, 1.0, 0.0], [5.0, 0.0, 5.0], [3.0, 0.0, 7.0]]),
    "met": torch.tensor([500.0, 300.0, 200.0]),
    "ratings": [1200.0, 1000.0, 1150.0, 1180.0],
    "selves": {"2": {}},
}


def curve(**last: float) -> list[dict[str, float]]:
    rows = [{"frames": 1e6 * k, "league/elo": 1000.0 + 50 * k, "league/fights": 250.0 * k} for k in range(1, 5)]
    return [{**row, **last} for row in rows]


def test_members_of_a_league_stand_where_they_joined() -> None:
    league = {**LEAGUE, "joined": {"0": {"fights": 0.0, "rating": 1000.0}, "1": {"fights": 375.0, "rating": 1075.0}}}
    first, second = members(league, curve())
    assert (first["name"], first["frames"], first["rating"], first["score"]) == ("easy", 0.0, 1000.0, 0.95)
    assert (second["name"], second["frames"], second["joined_at"], second["self"]) == ("hard", 1.5e6, 1075.0, False)


def test_members_of_an_older_run_are_found_by_its_metrics() -> None:
    rows = curve()
    for row, rung, opponents in zip(rows, (1, 1, 2, 2), (1, 1, 2, 3), strict=True):
        row |= {"league/rung": float(rung), "league/opponents": float(opponents)}
    found = {row["name"]: row["frames"] for row in members(LEAGUE, rows)}
    assert found == {"easy": 0.0, "hard": 3e6, "self 1": 4e6}


def test_the_tree_names_every_opponent_with_its_rating() -> None:
    joined = {str(k): {"fights": 200.0 * k, "rating": 1000.0 + 40 * k} for k in range(3)}
    figure = tree_figure({**LEAGUE, "joined": joined}, curve())
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["easy  1000", "hard  1150", "self 1  1180", "the learner  1200"]


def test_labels_keep_their_order_and_a_gap() -> None:
    places = spread([1.0, 1.1, 5.0, 1.05], 0.5)
    assert np.argsort(places).tolist() == np.argsort([1.0, 1.1, 5.0, 1.05]).tolist()
    assert np.diff(np.sort(places)).min() >= 0.5 - 1e-3
    assert places[2] == pytest.approx(5.0)


def test_lost_fights_of_every_kind_are_shown_against_different_opponents() -> None:
    track = Trajectory({}, {}, "loss")
    lost = [
        (foe, track, LossReason(kind, "")) for kind, foe in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"))
    ]
    shown = [(kind.kind, foe) for foe, _, kind in chosen_losses(Fights(lost), ["a", "b"])]
    assert shown[:3] == [("a", "x"), ("b", "y"), ("a", "x")]
    assert len(shown) == 5
    page = "".join(lost_fights(Fights(), TASK, {"episodes": 10, "agents": ["this run", "x"]}))
    assert "None of 10" in page


def test_a_run_of_fights_gets_a_page_that_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    words = [
        "total_frames=1024",
        "env.num_envs=16",
        "ppo.rollout_steps=16",
        "ppo.minibatch=64",
        "ranks=1",
        "tensorboard=false",
    ]
    words += [
        "env.scenario=chase",
        "env.max_episode_s=40",
        "policy.hidden=[8]",
        "policy.tokens=4",
        "policy.spacetime=false",
    ]
    done = CliRunner().invoke(main, ["train", "aircombat", "--folder", str(run), *words])
    assert done.exit_code == 0, done.output
    assert read_league(run)["names"][0] == "placeholder"
    pilots = {name: make for name, make in TASK.pilots().items() if name in ("pursuit", "placeholder")}
    monkeypatch.setattr(type(TASK), "pilots", lambda self: pilots)
    done = CliRunner().invoke(main, ["report", str(run), "--episodes", "8", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["agents"] == ["this run", "pursuit", "placeholder"] or set(result["agents"][1:]) == set(pilots)
    page = (run / "report.html").read_text()
    assert not re.findall(r"(?:src|href)='(?!data:)", page)
    for words_in_it in (
        "Wins against each other",
        "How it was made",
        "How they fight",
        "Which starts they survive",
        "Where they are weak",
        "The league",
    ):
        assert words_in_it in page
    assert "prefers-color-scheme:dark" in page
    assert "The fights it lost, and why" in page
    lost = result["lost"]
    assert sum(lost["kinds"].values()) == lost["fights"]
    if lost["fights"]:
        assert "Killed " in page


def test_curves_of_a_killed_run_end_before_its_torn_line(tmp_path: Path) -> None:
    assert read_curves(tmp_path) == []
    rows = [{"step": step, "frames": 8 * step, "seconds": 0.5 * step} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, rows), '{"step": 3}', '{"ste']))
    assert read_curves(tmp_path) == rows


def test_the_tree_bears_a_name_that_looks_like_a_formula() -> None:
    league = {
        **LEAGUE,
        "names": ["runs/$x^$", "<b>hard</b>", "self 1"],
        "joined": {"0": {"fights": 0.0}, "1": {"fights": 9.0}},
    }
    tree_figure(league, curve()).savefig(io.BytesIO())
