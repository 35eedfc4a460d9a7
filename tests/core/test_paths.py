"""A path that cannot be read gets one sentence, which says what is there instead."""

import errno
import os
from pathlib import Path

import pytest

from fledge.core.errors import ConfigError
from fledge.core.paths import check_output, check_readable, os_error_message


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("/nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "mine").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("pipe", "a named pipe"),
        ("dangling", "a link to /nowhere, which does not exist"),
        ("loop", "a link that leads back to itself"),
        ("zero", "a device"),
        ("mime", "Did you mean .*/mine?"),
        ("qqqqq", "has dangling, loop, mine, pipe, zero"),
        ("x" * 300, "too long"),
        ("gone/deeper/x", "There is no folder .*gone/deeper either"),
    ],
)
def test_a_path_that_cannot_be_read_gets_one_sentence(name: str, sentence: str, odd: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_readable(odd / name)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EROFS, errno.ENOSPC, errno.EISDIR, errno.EEXIST])
def test_the_systems_refusal_is_told_with_the_path_and_a_fix(code: int) -> None:
    told = os_error_message(OSError(code, os.strerror(code), "some/file"))
    assert told.startswith("some/file cannot be used: ")
    assert told.count(". ") == 1


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "run.json", "metrics.jsonl", "checkpoints/checkpoint_000000008.fledge"):
        (tmp_path / "run" / name).write_text("ours")
    (tmp_path / "link").symlink_to(tmp_path / "run/checkpoints")
    (tmp_path / "history").mkdir()
    (tmp_path / "history/latest_mine").write_text("mine_8.fledge")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "run/config.yaml", "run/run.json", "run/run.lock", "run/metrics.jsonl", "run/metrics.csv",
        "run/checkpoints/checkpoint_000000008.fledge", "run/checkpoints/new.pt", "run/selves/self_1.fledge",
        "run/checkpoints/deeper/x.html",
        "link/checkpoint_000000008.fledge", "run/../run/config.yaml", "history/mine_8.fledge",
    ],
)  # fmt: skip
def test_no_output_replaces_a_file_of_a_run_or_a_history(name: str, run: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: it belongs to the (run|checkpoint history in) /"):
        check_output(run / name)


def test_other_files_may_be_written_also_into_a_runs_folder(run: Path) -> None:
    for name in ("run/report.html", "run/policy.fledge", "history/other_8.fledge", "metrics.csv", "checkpoints/x.pt"):
        assert check_output(run / name) == run / name


def test_an_output_has_the_right_ending_and_is_not_what_is_read(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"page.txt must end in .html: choose another name"):
        check_output("page.txt", (".html",))
    with pytest.raises(ConfigError, match=r"must end in .png, .svg or .jpg"):
        check_output("page", (".png", ".svg", ".jpg"))
    with pytest.raises(ConfigError, match="is the file that is read: choose another name"):
        check_output(run / "run/../a.fledge", source=run / "a.fledge")
