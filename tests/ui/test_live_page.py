"""Watching a training in a real browser: frames come while it runs, a server that goes away is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fledge.train.live import footage
from fledge.ui.shelf import make_id
from tests.ui.conftest import App, Browser, start_app

P = "document.querySelector('fledge-player')"
WORDS = ["env.num_envs=48", "env.num_maps=2", "ppo.rollout_steps=16", "total_frames=100000000", "save_interval=100000"]


def test_a_training_is_watched_live_and_a_lost_server_is_found_again(
    tmp_path: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "fledge.cli", "train", *WORDS, "--folder", str(run)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    training = subprocess.Popen(command, env=os.environ | {"FLEDGE_RANKS": "1"}, **quiet)
    app: App | None = None
    try:
        browser.until(lambda: (run / "config.yaml").exists() and (run / "metrics.jsonl").exists(), 240)
        assert not (run / "live").exists(), "nobody has watched yet"
        app = start_app("watch", str(run))
        page = f"{app.base}/watch/{make_id(run)}"
        browser.open(page)
        browser.until(f"{P}?.film && {P}.group.length > 1", 240)
        before = browser.run(f"return {P}.t")
        browser.until(f"{P}.t > {before} + 0.3", 180)
        assert browser.text(".fp-clock").startswith("live")
        assert footage(run / "live")
        shoot("watch_live")
        # the server goes and comes back
        port = app.base.rpartition(":")[2]
        app.process.kill()
        app.process.wait()
        browser.until(f"{P}.message.textContent.includes('trying again')", 180)
        app = start_app("watch", str(run), "--port", port)
        browser.until(f"{P}?.film && !{P}.message.textContent.includes('trying again')", 240)
        strange = [error for error in browser.errors() if "net::ERR_" not in error and "WebSocket" not in error]
        assert strange == []
        browser.open("about:blank")  # the page would miss its server
    finally:
        for process in (training, *([app.process] if app else [])):
            process.terminate()
            process.wait(60)
