"""`fledge doctor` finds what is wrong with a folder, mends what can be mended, and loses nothing good."""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.storage import CheckpointHistory, examine_folder, load_checkpoint, repair_folder, save_checkpoint
from fledge.storage.disk.durable import TEMP_PREFIX
from tests.storage.states import assert_same, near_at

SIZE = 400
DEAD = f"{TEMP_PREFIX}1-dead"


def history_of(folder: Path, steps: int = 4, **options: object) -> CheckpointHistory:
    history = CheckpointHistory(folder, keep_whole=9, **options)  # type: ignore[arg-type]
    for step in range(1, steps + 1):
        history.save(near_at(step, SIZE), step)
    return history


def flip(path: Path, at: float = 0.4) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def contents(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file()} - {b""}


def states(folder: Path) -> dict[str, str]:
    return {finding.file: finding.state for finding in examine_folder(folder).files if finding.state != "good"}


def test_a_good_folder_is_healthy_and_stays_as_it_is(tmp_path: Path) -> None:
    history_of(tmp_path / "run" / "checkpoints")
    before = contents(tmp_path)
    report = examine_folder(tmp_path / "run")
    assert report.healthy
    assert report.resume == {"checkpoint": "checkpoint_000000004.fledge"}
    assert repair_folder(tmp_path / "run").repairs == ()
    assert contents(tmp_path) == before


def test_the_pointer_to_the_newest_checkpoint_is_not_counted_as_one(tmp_path: Path) -> None:
    history_of(tmp_path, steps=1)
    assert f"{tmp_path}: 1 good checkpoint\n" in CliRunner().invoke(main, ["doctor", str(tmp_path)]).output


def test_what_is_damaged_left_over_or_points_at_nothing_is_found_and_mended(tmp_path: Path) -> None:
    history = history_of(tmp_path)
    newest = history.entries()[-1].path
    flip(newest)
    (tmp_path / DEAD).write_bytes(b"half a file")
    (tmp_path / "torn.pt").write_bytes(b"PK\x03\x04")
    torch.save({"w": torch.ones(3)}, tmp_path / "whole.pt")
    before = contents(tmp_path)
    assert states(tmp_path) == {newest.name: "damaged", DEAD: "leftover", "torn.pt": "damaged", "latest": "leftover"}
    report = repair_folder(tmp_path)
    assert report.healthy
    assert len(report.repairs) == 4
    assert report.resume == {"checkpoint": "checkpoint_000000003.fledge"}
    assert json.loads((tmp_path / "latest").read_text()) == {"file": "checkpoint_000000003.fledge", "step": 3}
    assert [json.loads(content)["step"] for content in before - contents(tmp_path)] == [4]  # what `latest` said
    moved = sorted(path.name for path in (tmp_path / "aside").iterdir())
    assert moved == sorted([newest.name, DEAD.lstrip("."), "torn.pt"])
    state, info = CheckpointHistory(tmp_path).load_latest()
    assert not info.skipped
    assert_same(state, near_at(3, SIZE))


def test_deltas_that_lost_their_base_are_told_from_damaged_files(tmp_path: Path) -> None:
    history = history_of(tmp_path, delta="all", max_chain=8)
    entries = history.entries()
    assert [entry.base for entry in entries[1:]] == [entry.path.name for entry in entries[:-1]]
    entries[1].path.rename(tmp_path / "kept")
    assert states(tmp_path) == {entries[2].path.name: "orphan", entries[3].path.name: "orphan", "latest": "leftover"}
    (tmp_path / "kept").rename(entries[1].path)
    assert states(tmp_path) == {}


def test_a_good_delta_to_a_damaged_file_is_made_to_stand_alone(tmp_path: Path) -> None:
    first = save_checkpoint({"a": torch.randn(400), "b": torch.randn(400)}, tmp_path / "one", compression_level=0)
    state = load_checkpoint(first)
    second = save_checkpoint({"a": state["a"]}, tmp_path / "two", base=first)
    content = bytearray(first.read_bytes())
    content[content.index(state["b"].numpy().tobytes())] ^= 1
    first.write_bytes(content)
    assert states(tmp_path) == {"one.fledge": "damaged"}
    assert repair_folder(tmp_path).healthy
    assert torch.equal(load_checkpoint(second)["a"], state["a"])
    assert (tmp_path / "aside" / "one.fledge").read_bytes() == content


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    history_of(tmp_path)
    busy = tmp_path / f"{TEMP_PREFIX}1-busy"
    with busy.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert states(tmp_path) == {busy.name: "in use"}
        assert repair_folder(tmp_path).healthy
        assert busy.exists()


def test_nothing_that_was_moved_aside_before_is_written_over(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        (tmp_path / "x.fledge").write_bytes(content)
        repair_folder(tmp_path)
    assert {path.read_bytes() for path in (tmp_path / "aside").iterdir()} == {b"one", b"two"}


def test_other_tools_latest_and_other_files_are_left_alone(tmp_path: Path) -> None:
    save_checkpoint({"x": 1}, tmp_path / "a")
    (tmp_path / "latest").write_text("global_step100")
    torch.save({"x": 1}, tmp_path / "latest_model.pt")
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    assert examine_folder(tmp_path).healthy
    assert repair_folder(tmp_path).repairs == ()
    assert contents(tmp_path) == before


def test_when_nothing_is_good_that_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    history = history_of(tmp_path, steps=1)
    flip(history.entries()[0].path)
    before = contents(tmp_path)
    done = CliRunner().invoke(main, ["doctor", str(tmp_path)])
    assert done.exit_code == 1
    assert "resume: no whole checkpoint of a history is good" in done.output
    done = CliRunner().invoke(main, ["doctor", str(tmp_path), "--repair", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["resume"] == {}
    assert contents(tmp_path) == before


def test_two_histories_in_a_folder_are_told_apart(tmp_path: Path) -> None:
    history_of(tmp_path, prefix="run")
    history_of(tmp_path, steps=2, prefix="run_best")
    (tmp_path / "latest_run_best").unlink()
    (tmp_path / "latest_run").write_text("{")
    report = repair_folder(tmp_path)
    assert report.resume == {"run": "run_000000004.fledge", "run_best": "run_best_000000002.fledge"}
    assert json.loads((tmp_path / "latest_run_best").read_text())["step"] == 2
    assert json.loads((tmp_path / "latest_run").read_text())["step"] == 4


def test_the_command_says_what_it_found(tmp_path: Path) -> None:
    history = history_of(tmp_path)
    flip(history.entries()[-1].path)
    (tmp_path / "a\x1b[31m.pt").write_bytes(b"")
    done = CliRunner().invoke(main, ["doctor", str(tmp_path)])
    assert done.exit_code == 1
    assert "resume: checkpoint_000000003.fledge, step 3" in done.output
    assert "checkpoint_000000004.fledge: damaged: " in done.output
    assert "\x1b" not in done.output
    assert "\\x1b[31m.pt: damaged" in done.output
    assert f"fledge doctor {tmp_path} --repair" in done.output


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_without_checkpoints_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        examine_folder(tmp_path / name)
    assert CliRunner().invoke(main, ["doctor", str(tmp_path / name)]).exit_code == 2


def test_a_pipe_device_folder_or_broken_link_in_place_of_a_file_is_named_and_moved_aside(tmp_path: Path) -> None:
    history_of(tmp_path, steps=1)
    names = {n: f"checkpoint_00000000{n}.fledge" for n in (5, 6, 7, 8)}
    os.mkfifo(tmp_path / names[5])
    (tmp_path / names[6]).symlink_to("/dev/zero")
    (tmp_path / names[7]).mkdir()
    (tmp_path / names[8]).symlink_to("/nowhere")
    (tmp_path / "folder.pt").mkdir()  # of another tool
    kinds = {5: "a named pipe", 6: "a device", 7: "a folder", 8: "a broken link"}
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        (tmp_path / "latest").unlink()
        make(tmp_path / "latest")
        done = CliRunner().invoke(main, ["doctor", str(tmp_path)])
        assert done.exit_code == 1
        assert re.search(
            r"^latest: damaged: it is a (named pipe|folder|device), not a regular file$", done.output, re.M
        )
        for number, kind in kinds.items():
            assert f"{names[number]}: damaged: it is {kind}, not a regular file" in done.output
        assert repair_folder(tmp_path).healthy
        assert json.loads((tmp_path / "latest").read_text())["step"] == 1
        kinds = {}
    assert (tmp_path / "folder.pt").is_dir()


@pytest.mark.parametrize("content", ["[" * 200_000, '{"file": ["x"]}', '{"file": 1' + "0" * 5000 + "}", " " * 2**20])
def test_a_latest_that_a_stranger_wrote_is_damaged(tmp_path: Path, content: str) -> None:
    history_of(tmp_path, steps=1)
    (tmp_path / "latest").write_text(content)
    assert states(tmp_path) == {"latest": "damaged"}
