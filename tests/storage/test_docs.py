"""The programs about checkpoints in docs/storage run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "storage").glob("checkpoint*.md"))


def snippet(words: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", "".join(page.read_text() for page in PAGES), re.S)
    return next(block for block in blocks if words in block)


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_resume_or_start_starts_and_then_resumes(tmp_path: Path) -> None:
    code = snippet("history.latest() is not None").replace("tempfile.mkdtemp()", repr(str(tmp_path)))
    assert run(code, tmp_path).startswith("100 ['checkpoint_000000050.fledge', 'checkpoint_000000100.fledge']")
    assert run(code, tmp_path).startswith("200 ")


@pytest.mark.slow
def test_what_attach_buys_can_be_measured(tmp_path: Path) -> None:
    lines = run(snippet("for attach in"), tmp_path).splitlines()
    assert [line.split(":")[0] for line in lines] == ["attach=False", "attach=True"]
