"""Tables of evaluations say how many episodes were flown, in which env, and what their columns mean."""

from __future__ import annotations

from typing import Any

import pytest

from fledge.evaluation.tables import detail_tables, results_table
from fledge.tasks.navigation.networks.navrl import NavRLPolicy
from fledge.tasks.navigation.shield import Shielded
from fledge.tasks.registry import find_task

TASK = find_task("navigation")


def row(policy: str, world: str) -> dict[str, Any]:
    shares = dict.fromkeys(TASK.metrics.labels, 0.1234)
    figures = dict.fromkeys(TASK.metrics.columns, 12.3)
    by_class = {name: {"success": 0.5} for name in TASK.metrics.classes}
    facts = {"policy": policy, "world": world, "episodes": 1024, "seed": 7, "success_ci95": [0.1, 0.15]}
    return {**facts, **shares, **figures, "by_class": by_class}


@pytest.mark.parametrize("width", [80, 60])
def test_every_table_of_an_evaluation_fits_with_nothing_cut(width: int) -> None:
    rows = [row("a_run_with_a_long_name-1", "crossing, no walls 350/120 low"), row("straight", "edges 350/80")]
    for table in (results_table(rows, TASK), *detail_tables(rows, TASK)):
        text = table.to_text(width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        for heading in table.columns[2:]:
            assert all(word in text for word in heading.split())


def test_the_title_says_episodes_env_and_seed_and_the_note_explains_every_column() -> None:
    table = results_table([row("a", "edges 350/80"), row("b", "edges 350/80")], TASK)
    assert table.title == "1,024 held-out episodes each in env edges 350/80, seed 7"
    assert table.columns[0] == "policy"
    assert "env" not in table.columns  # one env for all is in the title
    for heading in table.columns[1:]:
        assert heading in table.note
    for details in detail_tables([row("a", "edges 350/80")], TASK):
        assert details.note


def test_a_published_policy_is_introduced_below_its_results() -> None:
    assert "github.com/Zhefan-Xu/NavRL" in NavRLPolicy.about
    assert Shielded(NavRLPolicy(), "orca").about == NavRLPolicy.about
    known = {**row("navrl.pt", "edges 350/80"), "about": NavRLPolicy.about}
    assert results_table([known, known], TASK).note.count("NavRL (Xu et al.") == 1


def test_rows_of_several_envs_name_their_env() -> None:
    table = results_table([row("a", "edges 350/80"), row("a", "crossing 350/80")], TASK)
    assert table.title == "1,024 held-out episodes each in 2 envs, seed 7"
    assert [cells[1] for cells in table.rows] == ["edges 350/80", "crossing 350/80"]
