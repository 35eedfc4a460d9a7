"""Faults in the middle of a run: odd files, a full disk, a user's code that raises, Ctrl-C at the end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import warp as wp

import fledge
from fledge.core.errors import ConfigError, FledgeError, InputError, StorageError
from fledge.core.warp_start import start_warp
from fledge.monitor import metrics_file
from fledge.monitor.loggers import ConsoleLogger, FileLogger
from fledge.storage import CheckpointHistory
from fledge.training.outputs import RunOutputs

SMALL: dict[str, Any] = {"env": {"num_envs": 4}, "ppo": {"rollout_steps": 4, "minibatch": 16}, "total_frames": 64}
SMALL |= {"tensorboard": False, "ranks": 1, "progress": False}
ODD = [b"[1, 2]", b'"text"', b"NaN", b'{"step": NaN}', b'{"step": 1' + b"0" * 400 + b"}", b"{" * 100_000, b"\xff\xfe{}"]
ODD += [b'{"step": "1"}', b'{"step": 1' + b"0" * 5000 + b"}", b'{"ste', b"null", b"\x00"]


def write_odd(path: Path) -> None:
    """Put odd lines between the lines of a metrics.jsonl, and half a line at its end."""
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*ODD, lines[0], b"", *ODD, *lines[1:], b'{"step": 9, "fra']))


def newest(folder: Path) -> dict[str, Any]:
    return CheckpointHistory(folder / "checkpoints").load_latest()[0]


# ---- metrics.jsonl -------------------------------------------------------------------------------------------------------


def test_odd_lines_of_the_metrics_are_skipped_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 1, "loss": float("inf")}, {"step": 2, "loss": 0.5}]
    path.write_text("\n".join(map(json.dumps, rows)))
    write_odd(path)
    assert metrics_file.read_metrics(path) == metrics_file.read_metrics(path) == rows
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: skipped {2 * len(ODD)} lines without metrics."
    ]
    path.write_text('{"step": 1, "big": 1' + "0" * 400 + ', "word": "x", "list": [1], "\\ud800": 1, "loss": 1}\n')
    FileLogger(tmp_path, resume_step=1).close()
    assert json.loads(path.read_text()) == {"step": 1, "loss": 1}


def test_metrics_that_are_a_pipe_count_as_none_and_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert metrics_file.read_metrics(tmp_path / "metrics.jsonl") == []
    FileLogger(tmp_path, resume_step=1).close()
    assert (tmp_path / "metrics.jsonl").is_file()


def test_a_run_with_odd_metrics_resumes_and_is_read(tmp_path: Path) -> None:
    run = fledge.train("gym:CartPole-v1", folder=tmp_path / "run", **SMALL)
    write_odd(run.folder / "metrics.jsonl")
    assert [*run.metrics["step"]] == [1, 2, 3, 4]
    assert run.plot() is not None
    assert "64 decisions" in repr(run)
    assert "frames_per_second" in run._repr_html_()
    more = fledge.train(folder=run.folder, resume=True, **{**SMALL, "total_frames": 96})
    assert [*more.metrics["step"]] == [1, 2, 3, 4, 5, 6]
    assert len((run.folder / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_metric_without_an_episode_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    logger = ConsoleLogger(1, "success")
    logger.log(1, {"frames_per_second": 5.0})
    assert "5 decisions/s  success \N{EN DASH}  return \N{EN DASH}  0:00 left" in capsys.readouterr().err
    logger.log(1, {"frames_per_second": 5.0, "success_recent": 0.0, "return": 1.0})
    assert "success 0.000  return +1.0" in capsys.readouterr().err


def test_the_result_has_no_figures_of_episodes_if_none_has_ended(tmp_path: Path) -> None:
    run = fledge.train("gym:CartPole-v1", folder=tmp_path / "run", **{**SMALL, "total_frames": 16})
    assert run.final_metrics["episodes"] == 0
    assert not {"return", "length", "terminated"} & {*run.final_metrics}


# ---- code of the user's --------------------------------------------------------------------------------------------------


def test_an_evaluation_that_fails_stops_the_run_after_saving_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fledge.train("gym:CartPole-v1", folder=tmp_path / "whole", **SMALL)
    code = tmp_path / "own.py"
    code.write_text("def fail(*_, **__):\n    raise KeyError('oops')\n")
    names: dict[str, Any] = {}
    exec(compile(code.read_text(), str(code), "exec"), names)
    monkeypatch.setattr("fledge.training.outputs.evaluate", names["fail"])
    with pytest.raises(
        FledgeError, match=r"The evaluation after iteration 2 failed in .*own.py, line 2: KeyError: 'oops'"
    ):
        fledge.train("gym:CartPole-v1", folder=tmp_path / "run", eval_interval=2, save_interval=100, **SMALL)
    assert newest(tmp_path / "run")["iteration"] == 2
    fledge.train(folder=tmp_path / "run", resume=True, eval_interval=0, **SMALL)
    for name, value in newest(whole.folder)["model"].items():
        assert torch.equal(value, newest(tmp_path / "run")["model"][name]), name


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return out['nothing']", r"failed in .*own.py, line 2: KeyError"),
        ("return out['reward'][:2]", r"returned shape \(2,\), but must return a tensor of shape \(4,\)"),
    ],
)
def test_a_reward_that_fails_is_tried_before_the_run_exists(tmp_path: Path, body: str, sentence: str) -> None:
    (tmp_path / "own.py").write_text(f"def bad(env, action, out):\n    {body}\n")
    started: list[Path] = []
    with pytest.raises(InputError, match=sentence):
        fledge.train(
            "gym:CartPole-v1", folder=tmp_path / "r", reward=f"{tmp_path}/own.py:bad", on_start=started.append, **SMALL
        )
    assert not started
    assert not (tmp_path / "r").exists()


# ---- disk, signals, names ------------------------------------------------------------------------------------------------


def test_metrics_that_cannot_be_written_are_one_sentence_and_the_last_checkpoint_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileLogger.log

    def full(self: FileLogger, step: int, metrics: Any) -> None:
        if step == 3:  # as if too many rows were waiting for space
            raise OSError(errno.ENOSPC, "No space left on device")
        log(self, step, metrics)

    monkeypatch.setattr(FileLogger, "log", full)
    with pytest.raises(StorageError, match=r"run cannot be written \(No space left on device\).*free some space"):
        fledge.train("gym:CartPole-v1", folder=tmp_path / "run", save_interval=1, **SMALL)
    monkeypatch.undo()
    assert newest(tmp_path / "run")["iteration"] == 2
    assert len(fledge.train(folder=tmp_path / "run", resume=True, **SMALL).metrics) == 4


def test_ctrl_c_while_a_finished_run_is_saved_returns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, close = RunOutputs.finish, RunOutputs.close

    def press(self: RunOutputs, metrics: dict[str, float]) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return finish(self, metrics)

    monkeypatch.setattr(RunOutputs, "finish", press)
    run = fledge.train("gym:CartPole-v1", folder=tmp_path / "run", **SMALL)
    assert not run.interrupted
    monkeypatch.undo()

    def late(self: RunOutputs, discard: bool = False) -> None:
        close(self, discard)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunOutputs, "close", late)
    assert len(fledge.train(folder=run.folder, resume=True, **{**SMALL, "total_frames": 96}).metrics) == 6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_misspelt_run_is_told_the_name_that_is_near(tmp_path: Path) -> None:
    (tmp_path / "first_run").mkdir()
    (tmp_path / "first_run" / "config.yaml").write_text("")
    for call in (fledge.Run, lambda folder: fledge.train(folder=folder, resume=True)):
        with pytest.raises(ConfigError, match=f"there is no such folder. Did you mean {tmp_path}/first_run\\?"):
            call(tmp_path / "fist_run")


def test_a_cache_that_cannot_be_written_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp, "init", lambda: os.mkdir("/proc/nowhere"))
    with pytest.raises(StorageError, match=r"cannot be written \(No such file.*variable WARP_CACHE_PATH to a folder"):
        start_warp()


DIES = """
import os, signal
from pathlib import Path

calls = 0

def pay(env, action, out):
    global calls
    calls += 1
    mark = Path(__file__).with_name("died")
    if os.environ["RANK"] == "1" and calls > 24 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return out["reward"]
"""


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_lost_a_rank_and_it_continues(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(DIES)
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--standalone"]
    words = ["gym:CartPole-v1", "env.num_envs=4", "ppo.rollout_steps=8", "ppo.minibatch=8", "total_frames=256"]
    words += ["save_interval=1", "tensorboard=false", f"reward={tmp_path}/own.py:pay", "--resume", "auto"]
    command = [sys.executable, "-m", *torchrun, "-m", "fledge", "train", *words, "--folder", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "died").exists()
    assert "continues bit for bit" in done.stderr
    assert [*fledge.Run(tmp_path / "run").metrics["step"]] == [*range(1, 9)]


def test_printed_commands_can_be_pasted_for_a_folder_with_a_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my run"
    fledge.train("gym:CartPole-v1", folder=folder, **{**SMALL, "progress": True})
    assert f"fledge eval '{folder}'" in capsys.readouterr().err
