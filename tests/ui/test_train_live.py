"""`fledge train --live`: a real training in the browser while it learns, gone when it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.ui.conftest import Browser

WEBGL = False
WORDS = [
    "gym:CartPole-v1",
    "ranks=1",
    "env.num_envs=8",
    "ppo.rollout_steps=32",
    "ppo.minibatch=64",
    "policy.hidden=[8]",
]
WORDS += ["total_frames=50000000", "tensorboard=false", "--live", "--port", "0"]


def test_a_training_is_seen_while_it_learns_and_its_page_ends_with_it(tmp_path: Path, browser: Browser) -> None:
    command = [sys.executable, "-m", "fledge.cli", "train", *WORDS, "--folder", str(tmp_path / "run")]
    training = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert training.stderr is not None
    try:
        told = []
        for line in training.stderr:
            told.append(line)
            if found := re.search(r"open (http://\S+)", line):
                break
        else:
            pytest.fail("".join(told))
        browser.open(found[1])
        rows = "Number(document.querySelector('fledge-training')?.dataset.rows ?? 0)"
        first = browser.until(rows)
        browser.until(f"{rows} > {first}")
        browser.until("document.querySelector('.ft-runs').innerText.includes('running')")
        assert "MB" in browser.text(".ft-tiles")  # memory
        training.send_signal(signal.SIGINT)
        training.stderr.read()
        assert training.wait(60) == 0
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(OSError, match="refused"):
            opener.open(found[1], timeout=5)
        browser.until("document.querySelector('.ft-trouble').innerText.includes('trying again')")
        browser.open("about:blank")
        browser.errors()  # of a server that is gone
    finally:
        training.kill()
        training.wait()
