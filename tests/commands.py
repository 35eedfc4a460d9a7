"""Run `fledge` commands for tests that compare what they leave behind."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from fledge.cli import main


def fledge(*words: object, apart: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `fledge WORDS` in this process, because starting one takes most of a small run's time.

    Args:
        apart: Start a process all the same: for several ranks, and for servers.
    """
    arguments = [str(word) for word in words]
    if apart:
        command = [sys.executable, "-m", "fledge.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)
    done = CliRunner().invoke(main, arguments)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
