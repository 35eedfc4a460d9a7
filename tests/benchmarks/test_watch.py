"""The cost of being watched: a small run of the real thing."""

from __future__ import annotations

import pytest

from benchmarks import watch as bench


def test_all_ways_have_their_turns_and_frames_are_shown() -> None:
    pytest.importorskip("nicegui")
    said: list[str] = []
    result = bench.run(said.append, turns=1, iterations=1, num_envs=16)
    assert len(said) == 3
    assert result["answers"] >= 1
    assert set(result["time_against_bare"]) == {"nobody", "viewer"}
    assert any("viewer" in line for line in bench.render(result))
