"""`fledge-runtime log` and `fledge inspect` tell from a log what happened in the flight."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fledge.cli import main as fledge
from fledge_runtime import Inputs
from fledge_runtime.cli import main
from fledge_runtime.flight_report import end_reason, report
from fledge_runtime.log import FlightLog


def write_flight(path: Path) -> None:
    """Write a flight of 10 s at 1 m/s: odometry at 10 Hz but for 0.8 s from 4 s on, which makes it hover; a fence ends it."""
    now = [100.0]
    facts = {"identity": "abc", "limits": "Limits(speed_m_s=1.0)", "fence": "Box(low, high)", "send": True}
    with FlightLog(path, facts, clock=lambda: now[0]) as log:
        log.add("reset", position_w=np.zeros(3), goal_w=np.array([20.0, 0.0, 1.5]))
        log.add("event", {"state": "flying", "reason": "", "at": 100.0})
        for k in range(101):
            now[0] = 100.0 + 0.1 * k
            if not 40 < k < 48:
                log.inputs(Inputs(now[0] - 0.02, [0.1 * k, 0.0, 1.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]))
                log.add("command", {"inputs_time_s": now[0], "ms": 2.0 + (k == 60)}, velocity_w=np.zeros(3))
            if k == 45:
                log.add("event", {"state": "hovering", "reason": "stale_odometry", "at": now[0]})
            if k == 53:
                log.add("event", {"state": "flying", "reason": "", "at": now[0]})
        log.add("event", {"state": "handed_over", "reason": "geofence", "at": now[0]})


def test_a_report_has_events_ages_gaps_periods_and_the_distance(tmp_path: Path) -> None:
    write_flight(tmp_path / "a.flog")
    told = report(tmp_path / "a.flog")
    assert told["reason"] == "geofence"
    assert told["seconds"] == pytest.approx(10.0)
    assert told["distance_m"] == pytest.approx(10.0)
    assert told["begin"]["identity"] == "abc"
    assert told["goal_w"] == [20.0, 0.0, 1.5]
    states = [(round(event["at_s"], 1), event["state"], event["reason"]) for event in told["events"]]
    hovered = [(4.5, "hovering", "stale_odometry"), (5.3, "flying", "")]
    assert states == [(0.0, "flying", ""), *hovered, (10.0, "handed_over", "geofence")]
    assert told["events"][1]["ages_s"]["odometry"] == pytest.approx(0.52)
    assert told["events"][1]["inputs"]["position_w"] == pytest.approx([4.0, 0.0, 1.5])
    assert told["gaps"][0] == pytest.approx({"at_s": 3.98, "seconds": 0.8})
    assert told["decision_period_s"]["mean"] == pytest.approx(10.0 / 93)
    assert told["decision_period_s"]["p99"] > 0.1
    assert 2.0 < told["decision_ms"]["mean"] < 2.1
    assert (told["dropped"], told["damaged"], told["complete"]) == (0, 0, True)


def test_damage_and_a_cut_are_told(tmp_path: Path) -> None:
    write_flight(tmp_path / "a.flog")
    data = bytearray((tmp_path / "a.flog").read_bytes())
    data[len(data) // 2] ^= 0x41
    (tmp_path / "bad.flog").write_bytes(data[:-10])
    told = report(tmp_path / "bad.flog")
    assert (told["damaged"], told["complete"]) == (2, False)


def test_both_commands_print_the_flight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_flight(tmp_path / "a.flog")
    path = str(tmp_path / "a.flog")
    assert main(["log", path]) == 0
    said = capsys.readouterr().out
    assert "ended: geofence" in said
    assert "hovering: stale_odometry  (at 4.00 0.00 1.50 m, 1.00 0.00 0.00 m/s, odometry 0.52 s old)" in said
    shown = CliRunner().invoke(fledge, ["inspect", path])
    assert shown.exit_code == 0, shown.output
    assert shown.output == said
    assert main(["log", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        CliRunner().invoke(fledge, ["inspect", path, "--json"]).output
    )


def test_a_file_that_is_no_log_is_refused_by_both(tmp_path: Path) -> None:
    (tmp_path / "a.flog").write_text("else")
    assert main(["log", str(tmp_path / "a.flog")]) == 1
    shown = CliRunner().invoke(fledge, ["inspect", str(tmp_path / "a.flog")])
    assert shown.exit_code == 1
    assert "not a flight log" in shown.output


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([("flying", ""), ("hovering", "goal_reached"), ("handed_over", "goal_reached")], "goal_reached"),
        ([("hovering", "goal_reached"), ("handed_over", "stopped")], "goal_reached"),
        ([("hovering", "stale_points"), ("flying", ""), ("handed_over", "stopped")], "stopped"),
        ([], ""),
    ],
)
def test_the_reason_of_the_end(events: list[tuple[str, str]], reason: str) -> None:
    assert end_reason([{"state": state, "reason": why} for state, why in events]) == reason
