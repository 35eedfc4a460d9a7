"""`fledge watch` as it is called: what it prints, and one sentence for each mistake."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fledge.app.runs.file_index import make_id
from fledge.cli.watch import first_page
from fledge.core.errors import FormatError
from tests.app.recorded import record_generic
from tests.app.runs.test_runs import make_run
from tests.commands import fledge

pytest.importorskip("nicegui")


def test_json_has_what_the_page_shows_and_a_page_is_saved(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    make_run(tmp_path / "two", "task: navigation\ntotal_frames: 30\n")
    page = tmp_path / "out" / "page.html"
    done = fledge("watch", str(tmp_path), "--json", "--save", str(page))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert sorted(each["run"]["name"] for each in told["runs"]) == ["one", "two"]
    assert told["runs"][0]["curves"]["values"]["success_recent"]["mean"] == [0.25, 0.5, 0.75]
    assert [row["key"] for row in told["settings"]["rows"] if row["differs"]] == ["total_frames"]
    assert all("doctor" in each for each in told["checkpoints"].values())
    assert page.read_text().startswith("<!doctype html>")


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    cases = [
        (["watch", str(tmp_path / "nowhere")], " has empty, notes.txt."),
        (["watch", str(tmp_path / "notes.txt")], "is not a recording"),
        (["watch", str(tmp_path / "empty"), "--json"], "no run found"),
        (["watch", str(tmp_path), "--save", str(tmp_path / "page.txt")], "must end in .html"),
        (["watch", str(tmp_path), "--port", port], f"Port {port} on 127.0.0.1 cannot be used (Address already in use)"),
        (["watch", str(tmp_path), "--port", "0", "--host", "203.0.113.9"], "cannot be used"),
        (["watch", str(tmp_path), "--host", "0.0.0.0", "--token", "1234"], "at least 16"),
        (["replay", str(tmp_path / "no.frec")], "There is no "),
    ]
    for words, sentence in cases:
        done = fledge(*words)
        assert done.returncode == 2, (words, done.stderr)
        assert sentence in done.stderr, (words, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    taken.close()


def test_a_server_whose_training_is_gone_already_ends(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = fledge("watch", str(tmp_path), "--port", "0", "--no-browser", "--with-parent", str(gone.pid), apart=True)
    assert done.returncode == 0, done.stderr


def test_a_recording_is_opened_in_the_player_and_several_in_the_list(tmp_path: Path) -> None:
    flights = record_generic(tmp_path / "a.frec")
    other = tmp_path / "b.frec"
    other.write_bytes(flights.read_bytes())
    make_run(tmp_path / "run")
    assert first_page([flights]) == f"/watch/{make_id(flights)}"
    assert first_page([flights, other]) == "/watch"
    assert first_page([tmp_path / "run"]) == first_page([tmp_path / "run", flights]) == "/"
    other.write_bytes(b"something else")
    with pytest.raises(FormatError, match="not a Fledge recording"):
        first_page([other])
