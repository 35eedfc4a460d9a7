"""The judgement of the soak test (what grows, is flat or unclear), its client in a match, and all of it briefly (slow)."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import soak
from benchmarks.soak import clients
from benchmarks.soak.plan import Plan
from benchmarks.soak.sampling import Samples, disk_use, judge, peaks
from fledge import find_task
from fledge.app.play.match import Match
from fledge.app.play.roster import Roster
from fledge.app.play.socket import Sender, said

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


class PlayedHere:
    """The socket of a match in this process, whose time passes only while the client waits for a message.

    The server's own code writes the messages. If it has nothing to say, `recv` times out at once.
    """

    def __init__(self, match: Match) -> None:
        self.match, self.queue = match, [said("welcome")]

    def send(self, text: str) -> None:
        message = json.loads(text)
        if message["do"] == "hello":
            self.match.enter(message["who"])
            self.sender = Sender(self, self.match, message["who"])
        self.match.do(message.get("who", ""), message)

    def recv(self, timeout: float) -> str | bytes:
        if not self.queue:
            self.match._before -= 1.0  # the match thinks that a second has passed
            self.match._fly()
            self.queue.extend(self.sender.news())
        if not self.queue:
            raise TimeoutError(f"timed out in {timeout}s")
        return self.queue.pop(0)


def test_a_client_rewinds_a_match_and_leaves_it_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A match that is over is silent: a client that waits for its next message waits in vain."""
    monkeypatch.setattr(clients, "MATCH_S", 1e9)
    plan = Plan(tmp_path, tmp_path, 1.0, 0)
    client = clients.Clients(plan, "http://localhost")
    match = Match(Roster(find_task("aircombat")), ["envelope", "crank"], seed=0)
    monkeypatch.setattr(client, "ask", lambda path, body=None: b'{"id": "here"}' if body else b"recording")
    monkeypatch.setattr(client, "page", lambda path: nullcontext(""))
    monkeypatch.setattr(client, "socket", lambda path: nullcontext(PlayedHere(match)))
    try:
        with match.lock:  # its own threads wait
            client.play_match()
            assert match.fight.over is not None
            assert (match.fight.branch, match.fight.cuts[-1], match.fight.speed) == (2, 10, 2.0)
    finally:
        match.close()
    assert plan.counts["matches watched to their end"] == plan.counts["matches"] == 1
    assert (tmp_path / "fight.frec").read_bytes() == b"recording"


def test_a_client_reports_what_a_stopped_match_says(tmp_path: Path) -> None:
    client = clients.Clients(Plan(tmp_path, tmp_path, 1.0, 0), "http://localhost")
    stopped = SimpleNamespace(recv=lambda timeout: said("state", note="The match stopped: no memory", over=None))
    with pytest.raises(OSError, match="no memory"):
        client.watch_match(stopped)


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
