"""Storages: the journal survives torn lines, and SQLite is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from fledge.core.errors import ConfigError, StorageError
from fledge.tuning.storage import JOURNAL, Journal, check_storage, open_storage, open_study


def test_a_journal_torn_at_any_byte_is_read_up_to_its_last_whole_line_and_can_be_continued(tmp_path: Path) -> None:
    study = open_study(open_storage("", tmp_path), "s")
    for value in (1.0, 2.0):
        study.add_trial(optuna.trial.create_trial(value=value))
    whole = (tmp_path / JOURNAL).read_bytes()
    for cut in range(len(whole) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / JOURNAL).write_bytes(whole[:cut])
        again = open_study(open_storage("", folder), "s")
        before = len(again.trials)
        again.add_trial(optuna.trial.create_trial(value=3.0))
        lines = (folder / JOURNAL).read_bytes()
        assert lines.endswith(b"\n")
        assert all(json.loads(line) for line in lines.splitlines())
        assert [trial.value for trial in open_study(open_storage("", folder), "s").trials] == [
            *[1.0, 2.0][:before],
            3.0,
        ]
    assert before == 2


@pytest.mark.parametrize(
    "damaged", [b"garbage", b'{"op_code": \xff}', b"[]", b"{}", b"[" * 100_000, b'{"op_code":99}', b'{"op_code":4}']
)
def test_a_damaged_line_inside_a_journal_is_one_sentence(tmp_path: Path, damaged: bytes) -> None:
    study = open_study(open_storage("", tmp_path), "s")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    lines = (tmp_path / JOURNAL).read_bytes().splitlines()
    (tmp_path / JOURNAL).write_bytes(b"\n".join([lines[0], damaged, *lines[1:]]) + b"\n")
    with pytest.raises(StorageError, match=r"Line 2 of .*journal\.log is damaged: stop all workers"):
        open_storage("", tmp_path)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal.append_logs([{"a": 1}])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.append_logs([{"b": 2}])
    monkeypatch.undo()
    journal.append_logs([{"c": 3}])
    assert list(journal.read_logs(0)) == [{"a": 1}, {"c": 3}]


def test_the_lock_of_a_killed_worker_is_free_at_once(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).touch()
    hold = "import sys, time; from fledge.storage.disk.durable import folder_lock\n"
    hold += f"with folder_lock({str(tmp_path)!r}): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    begun = time.monotonic()
    Journal(tmp_path / JOURNAL).append_logs([{"a": 1}])
    assert time.monotonic() - begun < 30  # Optuna's own lock is freed after 30 s


@pytest.mark.parametrize("url", ["sqlite:///study.db", "sqlite+pysqlite:///x"])
def test_sqlite_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(ConfigError, match="SQLite locks its whole file"):
        check_storage(url)


@pytest.mark.parametrize("url", ["study.db", "mysql://host/db", "postgresql:", "grpc://"])
def test_an_unknown_storage_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a storage: use postgresql://"):
        check_storage(url)


def test_a_server_that_does_not_answer_is_one_sentence_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match="cannot be opened") as caught:
        open_storage("postgresql://user:secret@127.0.0.1:1/none", Path())
    assert "secret" not in str(caught.value)


def test_a_grpc_proxy_serves_a_study(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    serve = "import optuna, sys; from pathlib import Path; from fledge.tuning.storage import open_storage\n"
    serve += f"storage = open_storage('', Path({str(tmp_path)!r}))\n"
    serve += "optuna.storages.run_grpc_proxy_server(storage, host='localhost', port=int(sys.argv[1]))"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", serve, str(port)])
    try:
        study = open_study(open_storage(f"grpc://localhost:{port}", tmp_path), "s")
        study.add_trial(optuna.trial.create_trial(value=1.0))
        assert len(open_study(open_storage("", tmp_path), "s").trials) == 1
    finally:
        server.kill()
        server.wait()
