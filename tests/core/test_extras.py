"""The command that installs a missing extra, from wherever Fledge was installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fledge.core import extras


def test_from_a_checkout_it_is_an_editable_install_with_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "pyproject.toml").write_text("")
    monkeypatch.setattr(extras, "PACKAGE", tmp_path / "my code" / "src" / "fledge")
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert extras.install_command("ui") == f".venv/bin/python -m pip install -e '{tmp_path}/my code[ui]'"


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        ({"url": "file:///w/fledge-1.whl", "archive_info": {}}, "'fledge[ui] @ file:///w/fledge-1.whl'"),
        ({"url": "file:///my%20code", "dir_info": {}}, "'/my code[ui]'"),
        ({}, "'fledge[ui]'"),
    ],
)
def test_from_a_wheel_or_a_folder_it_names_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: dict[str, Any], command: str
) -> None:
    monkeypatch.setattr(extras, "PACKAGE", tmp_path / "site-packages" / "fledge")
    note = SimpleNamespace(read_text=lambda name: json.dumps(noted) if noted else None)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: note)
    assert extras.requirement("ui") == command
