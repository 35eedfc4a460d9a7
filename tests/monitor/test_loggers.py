"""Metrics reach the console, the files, TensorBoard and W&B; a resume neither loses nor doubles a step."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fledge.monitor import loggers as loggers_module
from fledge.monitor.loggers import ConsoleLogger, FileLogger, TensorBoardLogger, WandbLogger, open_wandb
from fledge.monitor.metrics_file import read_metrics

METRICS = {"frames_per_second": 12_345.6, "success_recent": 0.5, "return": -3.25}


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# ---- files -----------------------------------------------------------------------------------------------------


def test_every_row_is_in_both_files_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    logger = FileLogger(tmp_path)
    for step in (1, 2, 3):
        logger.log(step, {"loss": 0.1 * step, "frames": 32 * step})
        assert lines(tmp_path)[-1] == {"step": step, "loss": 0.1 * step, "frames": 32 * step}
        row = table(tmp_path)[-1]
        assert (int(row["step"]), float(row["loss"]), int(row["frames"])) == (step, 0.1 * step, 32 * step)
        assert len(lines(tmp_path)) == len(table(tmp_path)) == step
    logger.close()


def test_a_metric_that_appears_later_becomes_a_column_of_all_rows(tmp_path: Path) -> None:
    logger = FileLogger(tmp_path)
    logger.log(1, {"loss": 1.0})
    logger.log(2, {"loss": 0.5, "eval/success": 0.25})
    logger.log(3, {"loss": 0.4})
    logger.close()
    assert [list(row.values()) for row in table(tmp_path)] == [["1", "1.0", ""], ["2", "0.5", "0.25"], ["3", "0.4", ""]]
    assert list(table(tmp_path)[0]) == ["step", "loss", "eval/success"]
    assert lines(tmp_path)[0] == {"step": 1, "loss": 1.0}


def test_what_is_not_finite_comes_back(tmp_path: Path) -> None:
    logger = FileLogger(tmp_path)
    logger.log(1, {"return": math.nan, "loss": math.inf})
    logger.close()
    assert math.isnan(lines(tmp_path)[0]["return"])
    assert float(table(tmp_path)[0]["loss"]) == math.inf


def run_to(folder: Path, last: int) -> None:
    logger = FileLogger(folder)
    for step in range(1, last + 1):
        logger.log(step, {"loss": float(step), **({"eval/success": 0.5} if step == 2 else {})})
    logger.close()


def test_a_resume_drops_the_rows_past_its_step_and_goes_on(tmp_path: Path) -> None:
    run_to(tmp_path, 5)
    before = (tmp_path / "metrics.jsonl").read_text().splitlines()
    logger = FileLogger(tmp_path, resume_step=3)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == before[:3]
    logger.log(4, {"loss": 40.0, "extra": 1.0})
    logger.close()
    assert [(row["step"], row["loss"]) for row in lines(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    assert list(table(tmp_path)[0]) == ["step", "loss", "eval/success", "extra"]
    assert [list(row.values()) for row in table(tmp_path)][1:] == [
        ["2", "2.0", "0.5", ""],
        ["3", "3.0", "", ""],
        ["4", "40.0", "", "1.0"],
    ]


def test_a_line_that_was_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    run_to(tmp_path, 3)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    FileLogger(tmp_path, resume_step=3).close()
    assert [row["step"] for row in lines(tmp_path)] == [1, 2]
    assert [row["step"] for row in table(tmp_path)] == ["1", "2"]


def test_a_resume_without_files_and_a_new_run_start_empty(tmp_path: Path) -> None:
    FileLogger(tmp_path, resume_step=7).close()
    assert (tmp_path / "metrics.jsonl").read_text() == (tmp_path / "metrics.csv").read_text() == ""
    run_to(tmp_path, 3)
    run_to(tmp_path, 2)
    assert [row["step"] for row in lines(tmp_path)] == [1, 2]
    assert len(table(tmp_path)) == 2


@pytest.mark.parametrize("moment", ["resume", "new column"])
def test_a_kill_while_the_files_are_rewritten_loses_no_row(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to(tmp_path, 3)
    kept, row = (tmp_path / "metrics.jsonl").read_text(), {"loss": 1.0, "eval/more": 1.0}
    logger = FileLogger(tmp_path, resume_step=3) if moment == "new column" else None

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        logger.log(4, row) if logger is not None else FileLogger(tmp_path, resume_step=3)
    assert (tmp_path / "metrics.jsonl").read_text().startswith(kept)
    assert [row["step"] for row in table(tmp_path)] == ["1", "2", "3"]


# ---- TensorBoard -----------------------------------------------------------------------------------------------


def events(folder: Path, name: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_tensorboard_shows_every_metric_by_step(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    for step in (1, 2):
        logger.log(step, {"loss": 0.5 * step, "eval/success": 0.25})
    logger.close()
    assert events(tmp_path, "loss") == [(1, 0.5), (2, 1.0)]
    assert events(tmp_path, "eval/success") == [(1, 0.25), (2, 0.25)]


def test_tensorboard_is_complete_at_any_moment(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    for step in (1, 2, 3):
        logger.log(step, {"loss": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard"))  # as after a kill: nothing was closed
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    logger.close()


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    for step in range(1, 6):
        logger.log(step, {"loss": float(step)})
    logger.close()
    logger = TensorBoardLogger(tmp_path, resume_step=3)
    for step in (4, 5, 6):
        logger.log(step, {"loss": 10.0 * step})
    logger.close()
    assert events(tmp_path, "loss") == [(1, 1), (2, 2), (3, 3), (4, 40), (5, 50), (6, 60)]


# ---- Weights & Biases ------------------------------------------------------------------------------------------


class FakeWandb:
    """As much of the package as is used; remembers what it was given."""

    def __init__(self, key: str | None, error: Exception | None = None) -> None:
        self.api, self.error = SimpleNamespace(api_key=key), error
        self.started: dict[str, Any] = {}
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def init(self, **settings: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.started = settings
        return SimpleNamespace(log=lambda row, step: self.rows.append((step, row)), finish=self.finish)

    def finish(self) -> None:
        self.finished = True


def test_without_wandb_training_goes_on_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    logger, note = open_wandb(tmp_path, "online", "project", {})
    assert logger is None
    assert "-m pip install" in note
    assert "[wandb]" in note
    assert "training continues without it" in note


@pytest.mark.parametrize(("key", "used"), [("secret", "online"), (None, "offline")])
def test_without_a_key_wandb_logs_offline_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, used: str
) -> None:
    fake = FakeWandb(key)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger, note = open_wandb(tmp_path, "online", "project", {"seed": 1})
    assert isinstance(logger, WandbLogger)
    assert fake.started == {"project": "project", "dir": str(tmp_path), "mode": used, "config": {"seed": 1}}
    assert ("wandb sync" in note) == (used == "offline")
    logger.log(3, {"loss": 0.5})
    logger.close()
    assert fake.rows == [(3, {"loss": 0.5})]
    assert fake.finished


def test_a_wandb_that_cannot_start_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb("secret", ConnectionError("no route to host")))
    logger, note = open_wandb(tmp_path, "online", "project", {})
    assert logger is None
    assert "no route to host" in note


# ---- console ---------------------------------------------------------------------------------------------------


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(loggers_module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return Clock(monkeypatch)


def test_off_a_terminal_a_line_comes_every_ten_seconds_and_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = ConsoleLogger(100)
    for step in range(1, 101):
        clock.now += 4.0
        logger.log(step, METRICS)
    logger.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    said = printed.err.splitlines()
    assert said[0] == "iteration 3/100  12,346 decisions/s  success 0.500  return -3.2  6:28 left"  # 97 steps of 4 s
    assert [line.split()[1] for line in said] == [*(f"{step}/100" for step in range(3, 100, 3)), "100/100"]
    assert said[-1].endswith("0:00 left")


def test_a_metric_without_a_value_is_a_dash_and_others_are_left_out(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = ConsoleLogger(1)
    logger.log(1, {"return": 2.0, "loss": 1.0})
    assert capsys.readouterr().err == "iteration 1/1  success \N{EN DASH}  return +2.0  0:00 left\n"


def test_the_primary_metric_is_the_tasks_own(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"return": 2.0, "return_recent": 1.5, "win_recent": 0.25}
    ConsoleLogger(1, primary_metric="win").log(1, metrics)
    ConsoleLogger(1, primary_metric="return").log(1, metrics)
    assert capsys.readouterr().err.splitlines() == [
        "iteration 1/1  win 0.250  return +2.0  0:00 left",
        "iteration 1/1  return 1.500  0:00 left",
    ]


def test_after_a_resume_the_time_left_goes_by_the_steps_of_this_run(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = ConsoleLogger(100)
    clock.now += 50.0  # loading
    logger.resume(80, 120)
    clock.now += 20.0
    logger.log(84, METRICS)
    assert capsys.readouterr().err.endswith("3:00 left\n")  # 36 steps of 5 s
    logger.close()


@pytest.mark.parametrize("text", ["pip install 'fledge[wandb]'", "[Checkpoint Stats] saved 3", "a [/b] :smile: c"])
def test_what_is_said_is_printed_as_it_is(clock: Clock, capsys: pytest.CaptureFixture[str], text: str) -> None:
    logger = ConsoleLogger(10)
    logger.say(text)
    logger.close()
    assert capsys.readouterr().err == text + "\n"


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    logger = ConsoleLogger(200)
    logger.resume(100, 400)
    assert logger._bar is not None
    logger.log(200, METRICS)
    assert (logger._bar.tasks[0].completed, logger._bar.tasks[0].total) == (200, 400)
    logger.say("a note")
    logger.close()
    printed = capsys.readouterr().err
    assert "a note" in printed
    assert "50%" in printed
    assert "12,346 decisions/s" in printed
    assert "iteration" not in printed


@pytest.mark.parametrize("fits", [0, 7])
def test_while_the_disk_is_full_metrics_wait_and_are_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fits: int
) -> None:
    files = FileLogger(tmp_path)
    files.log(1, {"loss": 1.0})

    class FullDisk:
        """Accepts `fits` bytes of the first write, as a disk does that becomes full in the middle of a line."""

        def __init__(self) -> None:
            self.left = fits

        def write(self, data: bytes) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left, part = 0, data[: self.left]
            return files_json.write(part)

    files_json = files._json
    files._json = FullDisk()  # type: ignore[assignment]
    files.log(2, {"loss": 2.0})
    files.log(3, {"loss": 3.0, "eval/success": 0.5})
    files._json = files_json
    assert [record.message for record in caplog.records if "metrics wait in memory" in record.message] != []
    assert len(caplog.records) == 1
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    files.log(4, {"loss": 4.0})
    files.log(5, {"loss": 5.0})
    files.close()
    assert [row["loss"] for row in lines(tmp_path)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [(row["step"], row["eval/success"]) for row in table(tmp_path)] == [
        ("1", ""),
        ("2", ""),
        ("3", "0.5"),
        ("4", ""),
        ("5", ""),
    ]


def test_a_full_disk_at_metrics_csv_alone_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileLogger(tmp_path)
    files.log(1, {"loss": 1.0})

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loggers_module, "_replace", full)
    files.log(2, {"loss": 2.0, "new": 1.0})
    monkeypatch.undo()
    files.log(3, {"loss": 3.0})
    files.close()
    assert [row["step"] for row in table(tmp_path)] == ["1", "2", "3"]
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
