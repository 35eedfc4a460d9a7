"""`python -m benchmarks page`: frame rates of the browser app's pages, and memory of server and page, in a headless Chromium.

crowd      a recording in the 3-D scene: 500 obstacles, 80 of which move, and 64 drones
fight      two scripted policies on the play page: map, space-time graph and instruments
memory     with --minutes: a training run watched live; memory of the server and of the page, at equal intervals

The page itself counts its frames (requestAnimationFrame). Headless Chromium draws on the CPU, 3-D included, and shares it
with the server; a graphics card is faster.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.served import Served, chromium
from fledge.core.errors import ConfigError
from fledge.core.machine import machine_info
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.recordings import save_recording
from fledge.tasks.policy_loader import make_pilot
from fledge.tasks.registry import find_task

DRONES, STILL, MOVING = 64, 420, 80
COUNT = """
const [seconds, done] = arguments;
const begun = performance.now(); let frames = 0; let before = begun; let longest = 0;
const step = (now) => {
  frames += 1; longest = Math.max(longest, now - before); before = now;
  if (now - begun < 1000 * seconds) requestAnimationFrame(step);
  else done({ frames_per_second: (1000 * (frames - 1)) / (now - begun), longest_ms: longest });
};
requestAnimationFrame(step);
"""
PLAYER, DUEL = "document.querySelector('fledge-player')", "document.querySelector('fledge-match')"
TRAINING = ("navigation", "env.num_envs=48", "env.num_maps=2", "ppo.rollout_steps=16", "total_frames=1000000000000",
            "save_interval=100000", "tensorboard=false", "ranks=1")  # fmt: skip


def run(
    on_progress: Callable[[str], None], seconds: float = 5.0, minutes: float = 0.0, every: float = 30.0
) -> dict[str, Any]:
    """Return the figures of the pages; JSON-able.

    Args:
        seconds: Time over which to count frames.
        minutes: Time over which to measure memory; 0: skip it.
        every: Seconds between measurements of memory.
    """
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        result: dict[str, Any] = {"machine": machine_info(), "seconds": seconds}
        on_progress("flying 64 drones")
        path = record_crowd(Path(place) / "crowd.frec")
        on_progress("a crowd in 3-D")
        result["crowd"] = crowd_rate(browser, path, seconds)
        on_progress("a fight")
        result["fight"] = fight_rate(browser, seconds)
        browser.get("about:blank")
        if minutes:
            result["memory"] = follow_memory(browser, Path(place) / "run", minutes, every, on_progress)
    return result


def until(browser: Any, condition: str, seconds: float = 120.0) -> Any:
    """Wait for a JavaScript expression to be true."""
    end = time.monotonic() + seconds
    while not (found := browser.execute_script(f"return {condition}")):
        if time.monotonic() > end:
            raise ConfigError(f"The page was not ready within {seconds:.0f} s: {condition}.")
        time.sleep(0.1)
    return found


def record_crowd(path: Path) -> Path:
    """Record 64 flights on one map."""
    task = find_task("navigation")
    settings = {"num_envs": DRONES, "num_maps": 1, "static_obstacles": STILL, "moving_obstacles": MOVING}
    cfg = task.config(**settings, decimation=8, max_episode_steps=800)
    agent = make_pilot(task, "gap")
    assert agent is not None
    flown = evaluate(agent, task, cfg, DRONES, 3, highlights=DRONES)
    save_recording(path, task, flown.highlights, flown.decision_s, {"policy": "gap"})
    return path


def crowd_rate(browser: Any, path: Path, seconds: float) -> dict[str, Any]:
    """Return frames per second of the playing 3-D scene with all drones."""
    server = Served("replay", str(path))
    try:
        browser.get(server.link)
        until(browser, f"{PLAYER}?.payload && {PLAYER}.group.length")
        browser.execute_script(f"{PLAYER}.toggle('beside'); {PLAYER}.speed = 0.5")
        drones = until(browser, f"{PLAYER}.group.length > 1 && {PLAYER}.group.length")
        browser.execute_script(f"{PLAYER}.seek(0.5); {PLAYER}.play(true)")
        time.sleep(2.0)  # it settles on a resolution that this machine can draw
        found = browser.execute_async_script(COUNT, seconds)
        pixels = browser.execute_script(
            "const c = document.querySelector('.fp-canvas canvas'); return [c.width, c.height]"
        )
        drawn = browser.execute_script(f"return Number({PLAYER}.dataset.fps)")
        return {**found, "drawn_per_second": drawn, "drones": drones, "obstacles": STILL + MOVING, "pixels": pixels}
    finally:
        browser.get("about:blank")
        server.close()


def fight_rate(browser: Any, seconds: float) -> dict[str, Any]:
    """Return frames per second of the page of a fight."""
    server = Served("play", "aircombat", "blue=envelope", "red=crank", "seed=7")
    try:
        browser.get(server.link)
        until(browser, f"{DUEL}?.state && {DUEL}.store?.last > 20 && {DUEL}.graphs > 2")
        before = browser.execute_script(f"return [{DUEL}.drawn, {DUEL}.graphs]")
        found: dict[str, Any] = browser.execute_async_script(COUNT, seconds)
        after = browser.execute_script(f"return [{DUEL}.drawn, {DUEL}.graphs]")
        each = [round((b - a) / seconds, 1) for a, b in zip(before, after, strict=True)]
        return {**found, "drawn_per_second": each[0], "graphs_per_second": each[1]}
    finally:
        browser.get("about:blank")
        server.close()


def follow_memory(
    browser: Any, folder: Path, minutes: float, every: float, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return memory of the server and of the page while a training run is watched live."""
    command = [sys.executable, "-m", "fledge.cli", "train", *TRAINING, "--folder", str(folder)]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = None
    rows = []
    try:
        wait_for(folder / "metrics.jsonl", training)
        server = Served("watch", str(folder))
        browser.get(f"{server.base}/watch")
        until(browser, "document.querySelector('a.fp-card') !== null")
        browser.execute_script("document.querySelector('a.fp-card').click()")
        until(browser, f"{PLAYER}?.payload && {PLAYER}.group.length", 240)
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < 60 * minutes + 1:
            rows.append({"minutes": round(passed / 60, 2), **look_at_page(browser), "server_mb": server.memory_mb()})
            on_progress(f"minute {passed / 60:.1f} of {minutes:g}: server {rows[-1]['server_mb']:.0f} MB")
            time.sleep(every)
    finally:
        browser.get("about:blank")
        training.terminate()
        training.wait()
        if server is not None:
            server.close()
    return {"rows": rows, "growth_mb_per_minute": {name: growth(rows, name) for name in ("server_mb", "page_mb")}}


def wait_for(path: Path, training: subprocess.Popen[bytes], seconds: float = 300.0) -> None:
    """Wait until a training run has written a file."""
    end = time.monotonic() + seconds
    while not path.exists():
        if training.poll() is not None or time.monotonic() > end:
            raise ConfigError("The training did not start.")
        time.sleep(0.2)


def look_at_page(browser: Any) -> dict[str, Any]:
    """Return the page's memory after garbage collection, its number of elements, and its frame rate."""
    browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    heap = browser.execute_cdp_cmd("Runtime.getHeapUsage", {})
    shown = browser.execute_script(f"return [document.querySelectorAll('*').length, Number({PLAYER}.dataset.fps)]")
    outside = heap.get("backingStorageSize", 0)  # arrays of numbers
    return {
        "page_mb": round((heap["usedSize"] + outside) / 1e6, 2),
        "elements": shown[0],
        "frames_per_second": shown[1],
    }


def growth(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the slope in MB per minute of a straight line through the second half; None if there are too few rows."""
    half = rows[len(rows) // 2 :]
    if len(half) < 3:
        return None
    slope = np.polyfit([row["minutes"] for row in half], [row[name] for row in half], 1)[0]
    return round(float(slope), 3)


def render(result: dict[str, Any]) -> Iterator[str]:
    """Yield the figures as lines of text."""
    crowd, fight = result["crowd"], result["fight"]
    yield f"headless Chromium, drawn by the processor; load average {result['machine']['load_average']}"
    yield f"{'page':<7} {'frames/s':>9} {'longest':>9}"
    for name, found in (("crowd", crowd), ("fight", fight)):
        yield f"{name:<7} {found['frames_per_second']:>9.1f} {found['longest_ms']:>6.0f} ms"
    size = " x ".join(map(str, crowd["pixels"]))
    yield f"crowd: {crowd['obstacles']} obstacles and {crowd['drones']} drones in {size} pixels"
    yield f"fight: {fight['graphs_per_second']} space-time graphs/s"
    if "memory" not in result:
        return
    rows, slope = result["memory"]["rows"], result["memory"]["growth_mb_per_minute"]
    yield f"{'minute':>6} {'server MB':>10} {'page MB':>8} {'elements':>9} {'frames/s':>9}"
    for row in rows:
        yield (
            f"{row['minutes']:>6.1f} {row['server_mb']:>10.1f} {row['page_mb']:>8.1f} {row['elements']:>9} "
            f"{row['frames_per_second']:>9.1f}"
        )
    yield f"growth in the second half, MB a minute: server {slope['server_mb']}, page {slope['page_mb']}"
