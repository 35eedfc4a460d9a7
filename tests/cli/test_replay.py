"""`fledge replay` and `fledge convert` of recordings, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fledge.cli import main
from tests.app.recorded import record_flights, record_generic


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(words))
    return result.exit_code, result.output + str(result.exception or "")


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_flights(tmp_path_factory.mktemp("flown") / "flights.frec")


def test_all_that_is_shown_is_there_as_json(flown: Path, tmp_path: Path) -> None:
    code, told = call("replay", str(flown), "--json")
    assert code == 0
    listed = json.loads(told)
    assert len(listed["episodes"]) == 16
    code, told = call("replay", str(flown), "--json", "--episode", "2")
    shown = json.loads(told)
    assert shown["outcome"] == listed["episodes"][2]["outcome"]
    speeds = next(each for each in shown["instruments"] if each["name"] == "speed")
    assert len(shown["arrays"][speeds["values"]]) == listed["episodes"][2]["frames"]
    assert call("convert", str(flown), str(tmp_path / "two.json"), "--episode", "2")[0] == 0
    assert json.loads((tmp_path / "two.json").read_text()) == shown


def test_a_page_of_one_episode_is_written(flown: Path, tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    code, told = call("convert", str(flown), str(tmp_path / "one.html"), "--episode", "2", "--json")
    assert code == 0
    assert json.loads(told)["drawn"] == 1
    page = (tmp_path / "one.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "").partition("globalThis.fledgeThree")[0]
    assert "connect-src" not in page  # the policy's default is nothing


def test_what_cannot_be_shown_is_one_sentence(flown: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.frec"
    other.write_bytes(b"something")
    newer = tmp_path / "newer.frec"
    newer.write_bytes(flown.read_bytes().replace(b"fledge-recording 1\n", b"fledge-recording 7\n", 1))
    for words, sentence in (
        (["replay", str(tmp_path / "none.frec")], "There is no "),
        (["replay", str(other)], "not a Fledge recording"),
        (["replay", str(newer)], "version 7"),
        (["replay", str(flown), "--episode", "1"], "requires --json"),
        (["replay", str(flown), "--json", "--episode", "99"], "no episode 99"),
        (["convert", str(flown), str(tmp_path / "x.tape")], "must end in"),
    ):
        code, told = call(*words)
        assert code != 0
        assert sentence in told


def test_a_world_that_is_code_is_not_run_unless_it_is_named(tmp_path: Path) -> None:
    path = record_generic(tmp_path / "else.frec")
    assert json.loads(call("replay", str(path), "--json")[1])["task"] == "elsewhere.py:task"
    code, told = call("replay", str(path), "--json", "--task", str(tmp_path / "missing.py"))
    assert code != 0
    assert "missing.py" in told
