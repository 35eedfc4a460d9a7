"""Sweeps with real trainings, as commands: on a journal file, and on PostgreSQL with workers that are killed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fledge
from fledge.storage import CheckpointHistory
from fledge.tuning.storage import open_storage, open_study
from tests.tuning.tiny import RANGES, SMALL

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
TRIALS = 12

pytestmark = pytest.mark.slow


def command(*words: str) -> subprocess.Popen[bytes]:
    """Start `fledge tune WORDS`."""
    return subprocess.Popen([sys.executable, "-m", "fledge.cli", "tune", *words], stderr=subprocess.DEVNULL)


def test_a_sweep_leaves_ordinary_runs_and_a_preset_that_trains(tmp_path: Path) -> None:
    words = [*RANGES, *SMALL, "--trials", "2", "--seeds", "1", "--confirm", "1", "--episodes", "16", "--workers", "2"]
    assert command("navigation", *words, "--folder", str(tmp_path / "s")).wait(600) == 0
    summary = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert (summary["state"], [row["state"] for row in summary["trials"]]) == ("finished", ["complete"] * 2)
    assert {row["frames"] for row in summary["trials"]} == {4096}
    assert (
        fledge.Run(tmp_path / "s" / "trials" / "0001").settings["ppo"]["lr"] == summary["trials"][1]["params"]["ppo.lr"]
    )
    best = tmp_path / "s" / "best.yaml"
    run = fledge.train("navigation", best, tmp_path / "again", ranks=1, tensorboard=False, progress=False)
    assert run.final_metrics["frames"] == 4096


def test_a_population_continues_its_runs_on_one_schedule(tmp_path: Path) -> None:
    words = [
        "ppo.lr=1e-4..1e-2",
        *SMALL,
        "--mode",
        "pbt",
        "--population",
        "4",
        "--generations",
        "2",
        "--episodes",
        "16",
    ]
    assert command("navigation", *words, "--workers", "2", "--folder", str(tmp_path / "s")).wait(600) == 0
    rows = json.loads((tmp_path / "s" / "summary.json").read_text())["trials"]
    assert [row["frames"] for row in rows] == [2048] * 4 + [4096] * 4
    worst = min(range(4), key=lambda k: (rows[k]["value"], -k))
    copied = [row for row in rows[4:] if row["parent"] != row["number"] - 4]
    assert [row["member"] for row in copied] in ([], [worst])  # [] if the worst is also the best: all are equal
    kept = next(row for row in rows[4:] if row not in copied)
    assert kept["params"] == rows[kept["parent"]]["params"]
    steps = [entry.step for entry in CheckpointHistory(tmp_path / "s" / kept["run"] / "checkpoints").entries()]
    assert steps[-1] == 4


@pytest.fixture
def server() -> Iterator[str]:
    """A PostgreSQL server of this test: its own data, port and socket; the URL of a database of it."""
    pytest.importorskip("psycopg")
    if not BINARIES:
        pytest.skip("no PostgreSQL: apt install postgresql")
    folder, user = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp")), pwd.getpwuid(os.getuid()).pw_name
    options: dict[str, Any] = {}
    if os.getuid() == 0:  # which PostgreSQL refuses
        user = "postgres"
        shutil.chown(folder, user)
        options["user"] = user
    run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, **options}
    port = str(20000 + os.getpid() % 20000)
    subprocess.run([BINARIES[-1] / "initdb", "-D", folder / "data", "-U", user, "-A", "trust", "-N"], **run)
    settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    control = [BINARIES[-1] / "pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log"]
    subprocess.run([*control, "-o", settings, "start"], **run)
    try:
        yield f"postgresql://{user}@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **run)
        shutil.rmtree(folder, ignore_errors=True)


def test_four_workers_on_postgresql_lose_and_double_no_trial_though_one_is_killed_twice(
    server: str, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    words = ["navigation", *RANGES, *SMALL, "--trials", str(TRIALS), "--seeds", "0", "--episodes", "16"]
    words += ["--storage", server, "--folder", str(folder), "--heartbeat", "1"]
    workers = [command(*words) for _ in range(4)]  # all create the sweep, the study and the tables
    for _ in range(2):
        begun = time.monotonic()
        before = len(list((folder / "trials").glob("*.log")))
        while len(list((folder / "trials").glob("*.log"))) <= before and time.monotonic() - begun < 120:
            time.sleep(0.1)
        time.sleep(2.0)
        workers[-1].send_signal(signal.SIGKILL)
        workers[-1].wait()
        workers[-1] = command("--folder", str(folder))
    assert [worker.wait(900) for worker in workers] == [0] * 4
    spec = json.loads((folder / "sweep.json").read_text())
    study = open_study(open_storage(server, folder), spec["study"])
    trials = study.trials[:TRIALS]
    assert [trial.state.name for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")] == [
        trial.state.name for trial in trials
    ]
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert all(trial.state.name == "WAITING" for trial in study.trials[TRIALS:])
    assert sorted(path.name for path in (folder / "trials").glob("*.json")) == [f"{k:04d}.json" for k in range(TRIALS)]
    assert len({trial.params["ppo.lr"] for trial in trials}) == TRIALS
    claims = open_study(open_storage(server, folder), f"{spec['study']}/claims").trials
    owners = [(claim.user_attrs["job"], claim.user_attrs["epoch"]) for claim in claims]
    assert max(epoch for _, epoch in owners) >= 1  # the trial of the killed worker had another owner
    assert {job for job, _ in owners} == {f"trial/{k:04d}" for k in range(TRIALS)}
