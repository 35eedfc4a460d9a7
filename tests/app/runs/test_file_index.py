"""The index has what lies below the given places, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.app.runs.file_index import FileIndex, make_id
from fledge.core.errors import ConfigError


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("task: navigation\n")
    return folder


def test_runs_and_recordings_are_found_below_a_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "deep" / "first")
    (run / "live").mkdir()
    (run / "live" / "now.frec").write_bytes(b"")
    (tmp_path / "runs" / "alone.frec").write_bytes(b"")
    (tmp_path / "runs" / "notes.txt").write_text("private")
    files = FileIndex([tmp_path / "runs"])
    assert [entry.name for entry in files.runs()] == ["deep/first"]
    found = {entry.name: entry.live for entry in files.recordings()}
    assert found == {"deep/first/live/now.frec": True, "alone.frec": False}


def test_an_id_is_looked_up_and_never_a_path(tmp_path: Path) -> None:
    run = make_run(tmp_path / "first")
    files = FileIndex([run])
    assert files.find(make_id(run)) is not None
    for wrong in ("", "first", str(run), "../first", "..%2f", "%00", make_id(tmp_path)):
        assert files.find(wrong) is None


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    secret = make_run(tmp_path / "elsewhere" / "secret")
    (tmp_path / "elsewhere" / "film.frec").write_bytes(b"")
    inside = make_run(tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "way").symlink_to(secret)
    (tmp_path / "runs" / "film.frec").symlink_to(tmp_path / "elsewhere" / "film.frec")
    (inside / "metrics.jsonl").symlink_to("/etc/passwd")
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    files = FileIndex([tmp_path / "runs"])
    names = {entry.name for entry in files.entries()}
    assert "mine" in names
    assert not any("secret" in name or "way" in name or "film" in name for name in names)
    entry = files.find(make_id(inside))
    assert entry is not None
    assert entry.file("metrics.jsonl") is None
    assert entry.file("..", "..", "elsewhere", "film.frec") is None
    assert entry.file("config.yaml") == entry.path / "config.yaml"


def test_a_given_place_may_itself_be_a_link(tmp_path: Path) -> None:
    run = make_run(tmp_path / "real")
    (tmp_path / "link").symlink_to(run)
    assert [entry.name for entry in FileIndex([tmp_path / "link"]).runs()] == ["real"]


def test_a_wrong_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        FileIndex([tmp_path / "nothing"])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match="is not a recording"):
        FileIndex([tmp_path / "notes.txt"])
    assert FileIndex([tmp_path]).entries() == []
    assert FileIndex([tmp_path / "later"], awaited=True).entries() == []


def test_what_comes_later_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fledge.app.runs.file_index.STALE_S", 0.0)
    monkeypatch.setattr("fledge.app.runs.file_index.SHARE", 1e9)
    files = FileIndex([tmp_path])
    assert files.runs() == []
    make_run(tmp_path / "new")
    assert files.runs() == []  # looking took long: it is not done again at once
    monkeypatch.setattr("fledge.app.runs.file_index.SHARE", 0.0)
    assert [entry.name for entry in files.runs()] == ["new"]
