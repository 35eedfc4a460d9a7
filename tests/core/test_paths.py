"""A path that cannot be read gets one sentence, which says what is there instead."""

import errno
import os
from pathlib import Path

import pytest

from fledge.core.errors import ConfigError
from fledge.core.paths import check_readable, os_error_message


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
