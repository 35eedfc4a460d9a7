"""The benchmark of the runtime: what it counts and tells, without flying."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import runtime
from fledge.core.errors import ConfigError

NAMES = {1: "success", 2: "collision_static"}
RESULT = {
    "machine": {"cpu": "x", "cores": 1, "load_average": 0.0},
    "settings": {"policy": "planner", "planner": "c"},
    "cpu_ms": {"p50": 0.25, "p99": 0.5, "worst": 1.0},
    "seconds": 3.0,
}


def test_flights_that_end_otherwise_are_listed() -> None:
    found = runtime.outcomes(np.array([128, 129, 130]), np.array([1, 2, 1]), np.array([1, 1, 1]), NAMES)
    assert (found["flights"], found["same"]) == (3, 2)
    assert found["differ"] == [{"flight": 129, "runtime": "collision_static", "policy": "success"}]
    assert found["counts"]["success"] == {"runtime": 2, "policy": 3}


def test_unequal_commands_are_counted_and_the_largest_difference_is_told() -> None:
    commands = runtime.compare(np.array([0.0, 1e-6, 2e-5, 0.5]))
    assert (commands["decisions"], commands["unequal"], commands["largest_m_s"]) == (4, 2, 0.5)
    ends = runtime.outcomes(np.array([0]), np.array([2]), np.array([1]), NAMES)
    said = "\n".join(map(str, runtime.render({**RESULT, "commands": commands, "outcomes": ends})))
    assert "Commands: 2 of 4 differ from the policy's by more than 1e-05 m/s; the largest difference is 0.5 m/s" in said
    assert "flight 0: collision_static, policy success" in said


def test_parts_begin_where_a_wave_does() -> None:
    with pytest.raises(ConfigError, match="first=100 must be a multiple of 128"):
        runtime.run(first=100)
