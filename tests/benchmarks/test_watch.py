"""The cost of watching a run: a small run of the real thing."""

from __future__ import annotations

import pytest

from benchmarks import watch as bench


@pytest.mark.slow
def test_all_variants_have_their_turns_and_frames_are_shown() -> None:
    pytest.importorskip("nicegui")
    said: list[str] = []
    result = bench.run(said.append, turns=1, iterations=1, num_envs=16)
    assert len(said) == 3
    assert result["answers"] >= 1
    assert set(result["time_against_bare"]) == {"unwatched", "watched"}
    assert any("watched" in line for line in bench.render(result))
