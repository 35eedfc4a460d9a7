"""PerformanceMonitor: every block is counted once, on any thread, nested or not."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

from fledge.monitor import PerformanceMonitor
from fledge.monitor import performance as performance_module


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(performance_module, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def measure(monitor: PerformanceMonitor, clock: Clock, name: str, seconds: float) -> None:
    with monitor.timer(name):
        clock.now += seconds


def test_statistics_are_those_worked_out_by_hand(clock: Clock) -> None:
    monitor = PerformanceMonitor()
    for seconds in (1.0, 2.0, 3.0, 6.0):
        measure(monitor, clock, "a", seconds)
    stats = monitor.get_stats()["a"]
    assert stats["mean"] == pytest.approx(3.0)
    assert stats["std"] == pytest.approx(3.5**0.5)
    assert (stats["min"], stats["max"], stats["p50"], stats["count"]) == (1.0, 6.0, 2.5, 4)
    assert stats["p99"] == pytest.approx(5.91)


def test_a_window_takes_the_last_ones(clock: Clock) -> None:
    monitor = PerformanceMonitor()
    for seconds in (9.0, 1.0, 3.0):
        measure(monitor, clock, "a", seconds)
    assert monitor.get_stats(window=2)["a"]["mean"] == pytest.approx(2.0)


def test_timers_nest_also_with_the_same_name(clock: Clock) -> None:
    monitor = PerformanceMonitor()
    with monitor.timer("outer"):
        clock.now += 1
        with monitor.timer("inner"), monitor.timer("outer"):
            clock.now += 2
    assert monitor.get_stats()["outer"]["count"] == 2
    assert monitor.get_stats()["outer"]["max"] == 3.0
    assert monitor.get_stats()["inner"]["mean"] == 2.0


def test_the_summary_has_the_form_people_know(clock: Clock) -> None:
    monitor = PerformanceMonitor()
    for seconds in (0.010, 0.020):
        measure(monitor, clock, "data_collection", seconds)
    line = "data_collection          :   15.00 ms (±  5.00 ms) [ 10.00,  20.00]"
    assert monitor.get_summary() == f"=== Performance Summary ===\n{line}"


def test_a_block_that_fails_is_counted_and_its_error_passes(clock: Clock) -> None:
    monitor = PerformanceMonitor()
    with pytest.raises(KeyError), monitor.timer("a"):
        raise KeyError
    assert monitor.get_stats()["a"]["count"] == 1


def test_threads_lose_no_measurement() -> None:
    monitor = PerformanceMonitor()

    def work(name: str) -> None:
        for _ in range(500):
            with monitor.timer("shared"), monitor.timer(name):
                pass

    threads = [threading.Thread(target=work, args=(f"own{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = monitor.get_stats()
    assert stats["shared"]["count"] == 2000
    assert all(stats[f"own{i}"]["count"] == 500 for i in range(4))


def test_record_and_reset(clock: Clock) -> None:
    monitor = PerformanceMonitor(history=3)
    for seconds in (1.0, 2.0, 3.0, 4.0):
        monitor.record("a", seconds)
    assert monitor.get_stats()["a"]["min"] == 2.0  # only the last three are kept
    monitor.reset()
    assert monitor.get_stats() == {}
    assert monitor.get_summary() == ""


def test_real_time_passes() -> None:
    monitor = PerformanceMonitor()
    with monitor.timer("sleep"):
        time.sleep(0.02)
    assert monitor.get_stats()["sleep"]["mean"] >= 0.02
    line = r"sleep {20}: +[\d.]+ ms \(±  0\.00 ms\) \[ *[\d.]+, +[\d.]+\]"
    assert re.fullmatch(line, monitor.get_summary().splitlines()[1])


class FakeEvent:
    """A CUDA event whose GPU the test drives."""

    passed = 0
    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        FakeEvent.made += 1

    def record(self) -> None:
        FakeEvent.passed += 0
        self.at = FakeEvent.clock = getattr(FakeEvent, "clock", 0) + 5

    def query(self) -> bool:
        return self.at <= FakeEvent.passed

    def elapsed_time(self, end: FakeEvent) -> float:
        return float(end.at - self.at)

    def synchronize(self) -> None:
        raise AssertionError("a timer must not wait for the GPU")


def test_on_cuda_events_are_read_later_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    fake: Any = FakeEvent
    monkeypatch.setattr(torch.cuda, "Event", fake)
    monkeypatch.setattr(torch.cuda, "synchronize", FakeEvent.synchronize)
    monitor = PerformanceMonitor(cuda=True)
    for _ in range(2):
        with monitor.timer("kernel"):
            pass
    assert monitor.get_stats() == {}  # the GPU has not got there yet
    FakeEvent.passed = 10
    assert monitor.get_stats()["kernel"]["count"] == 1
    FakeEvent.passed = 20
    stats = monitor.get_stats()["kernel"]
    assert (stats["count"], stats["mean"]) == (2, pytest.approx(0.005))
    with monitor.timer("kernel"):
        pass
    assert FakeEvent.made == 4
