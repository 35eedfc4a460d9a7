"""The benchmark of the planner: a small run of the real thing, and a wrong planner that it must catch."""

import io
import json

import pytest
from rich.console import Console

from benchmarks import planner
from fledge.core.errors import FledgeError
from fledge.tasks.navigation.planner import responses

pytestmark = pytest.mark.slow


def test_decisions_agree_with_the_plain_planner_and_are_timed() -> None:
    result = planner.run(num_envs=4, threads=1, decisions=4, movers=8)
    assert json.loads(json.dumps(result)) == result
    assert result["parity"]["commands"]["ok"]
    assert 0 < result["wall_ms"]["low"] <= result["wall_ms"]["median"] <= result["wall_ms"]["high"]
    console = Console(file=io.StringIO(), width=80)
    console.print(*planner.render(result), sep="\n")
    assert "4 drones among 8 movers, 1 threads" in console.file.getvalue()


def test_a_planner_that_chooses_otherwise_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = responses.candidates
    monkeypatch.setattr(responses, "candidates", lambda cfg: 0.9 * right(cfg))
    with pytest.raises(FledgeError, match="disagree on commands"):
        planner.run(num_envs=4, threads=1, decisions=4)
