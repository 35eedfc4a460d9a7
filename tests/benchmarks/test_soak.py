"""The judgement of the soak test: what grows, what is flat, what cannot be told; and the real thing for a moment (slow)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import soak
from benchmarks.soak.sampling import Samples, disk_use, judge, peaks

MINUTES = [k / 12 for k in range(720)]  # an hour, every five seconds
NOISE = np.random.default_rng(0).normal(size=720)


def verdict(values: np.ndarray, limit: float = 10.0) -> str:
    return str(judge(MINUTES, values.tolist(), 60.0, limit)["verdict"])


def test_noise_around_a_level_is_flat_and_a_leak_below_the_noise_is_found() -> None:
    minutes = np.array(MINUTES)
    assert verdict(500 + 5 * NOISE) == "flat"
    assert verdict(500 + 5 * NOISE + 20 * minutes / 60) == "grows"
    assert verdict(500 - 30 * minutes / 60) == "flat"


def test_a_cache_that_fills_during_the_warm_up_is_no_leak() -> None:
    minutes = np.array(MINUTES)
    assert verdict(100 + 400 * np.minimum(minutes / 14, 1.0) + NOISE) == "flat"


def test_an_equal_beginning_and_end_do_not_hide_a_leak() -> None:
    minutes = np.array(MINUTES)
    values = 500 + 30 * minutes / 60
    values[-5:] = 500
    assert verdict(values) == "grows"


def test_too_much_noise_or_too_little_time_is_not_called_flat() -> None:
    steps = np.repeat(np.random.default_rng(1).normal(size=12), 60)
    assert verdict(500 + 100 * steps) == "unclear"
    assert judge(MINUTES[:20], [1.0] * 20, 1.6, 10.0)["verdict"] == "too short"


def test_the_change_is_per_hour_with_its_interval() -> None:
    found = judge(MINUTES, (500 + 24 * np.array(MINUTES) / 60 + NOISE).tolist(), 60.0, 10.0)
    assert found["low"] < 24 < found["high"]
    assert found["high"] - found["low"] < 4


def test_restarted_processes_count_by_their_peaks() -> None:
    row = {"minute": [1.0, 2.0, 3.0, 4.0], "process": [7, 7, 8, 8], "memory_mb": [100.0, 300.0, 90.0, 310.0]}
    assert peaks(row) == {"minute": [1.5, 3.5], "process": [7.0, 8.0], "memory_mb": [300.0, 310.0]}


def test_metrics_and_old_weights_count_only_as_part_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for step in range(5):
        (tmp_path / "checkpoints" / f"checkpoint_{step:09d}.fledge").write_bytes(bytes(1_000_000))
    (tmp_path / "metrics.jsonl").write_bytes(bytes(500_000))
    (tmp_path / ".checkpoint.tmp").write_bytes(bytes(250_000))
    assert disk_use(tmp_path) == pytest.approx((5.75, 3.25))


def test_a_process_that_has_ended_is_not_sampled() -> None:
    samples = Samples()
    samples.add(0.0, "here", os.getpid())
    samples.add(0.0, "gone", 2**22 + 1)
    assert list(samples.rows) == ["here"]
    assert samples.last("here", "memory_mb") > 5


@pytest.mark.slow
def test_everything_runs_together_without_a_fault(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    result = soak.run(lambda text: None, minutes=0.4, folder=str(tmp_path))
    assert result["faults"] == {}
    assert result["passed"]
    assert result["counts"]["requests"] > 20
    assert result["counts"]["saves"] > 0
    assert json.loads((tmp_path / "soak.json").read_text())["verdicts"][0]["process"] == "browser server"
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert "passed" in list(soak.render(result))
