"""`fledge train --live` in a real browser: curves and frames come while it learns; a server that went is found again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fledge.app.runs.file_index import make_id
from fledge.training.live import capture_files
from tests.app.conftest import App, Browser, start_app

P = "document.querySelector('fledge-player')"
ROWS = "Number(document.querySelector('fledge-training')?.dataset.rows ?? 0)"
WORDS = ["env.num_envs=48", "env.num_maps=2", "ppo.rollout_steps=16", "total_frames=100000000", "save_interval=100000"]
WORDS += ["tensorboard=false", "--live", "--port", "0"]


class Training:
    """A training that shows itself: its folder, its process, and the link that it printed."""

    def __init__(self, folder: Path) -> None:
        self.run = folder
        command = [sys.executable, "-m", "fledge.cli", "train", *WORDS, "--folder", str(folder)]
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"FLEDGE_RANKS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if found := re.search(r"open (http://\S+)", line):
                self.url = found[1].rstrip("/")
                return
        pytest.fail("".join(told))

    def stop(self) -> None:
        """As Ctrl-C does; it saves, and ends well."""
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGINT)
        self.process.stderr.read()
        assert self.process.wait(120) == 0


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    started = Training(tmp_path / "run")
    yield started
    started.process.kill()
    started.process.wait()


@pytest.mark.slow
def test_a_training_is_seen_while_it_learns_and_its_page_ends_with_it(
    training: Training, browser: Browser, shoot: Callable[..., None]
) -> None:
    browser.open(training.url)
    first = browser.until(ROWS, 240)
    browser.until(f"{ROWS} > {first}", 120)
    browser.until("document.querySelector('.ft-runs').innerText.includes('running')")
    assert "MB" in browser.text(".ft-tiles")  # memory
    assert not (training.run / "live").exists(), "nobody has watched yet"
    browser.open(f"{training.url}/watch/{make_id(training.run)}")
    browser.until(f"{P}?.payload && {P}.group.length > 1", 240)
    before = browser.run(f"return {P}.t")
    browser.until(f"{P}.t > {before} + 0.3", 180)
    assert browser.text(".fp-clock").startswith("live")
    assert capture_files(training.run / "live")
    shoot("watch_live")
    training.stop()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(OSError, match="refused"):
        opener.open(training.url, timeout=5)
    browser.until(f"{P}.message.textContent.includes('trying again')", 180)
    app: App | None = None
    try:
        app = start_app("watch", str(training.run), "--port", training.url.rpartition(":")[2])
        browser.until(f"{P}?.payload && !{P}.message.textContent.includes('trying again')", 240)
        strange = [error for error in browser.errors() if "net::ERR_" not in error and "WebSocket" not in error]
        assert strange == []
        browser.open("about:blank")  # the page would miss its server
    finally:
        if app is not None:
            app.process.terminate()
            app.process.wait(60)
