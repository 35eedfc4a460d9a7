"""The training page in a real browser: it keeps up with a run that is being written, and with a server that goes away."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fledge.app.runs.file_index import make_id
from tests.app.conftest import App, Browser, start_app

WEBGL = False
CONFIG = "task: aircombat\nalgo: ppo\ntotal_frames: 20000000\nppo:\n  lr: {lr}\n  gamma: 0.99\n"


def metrics(step: int, late: float = 0.0) -> dict[str, Any]:
    """A row such as a training of duels writes."""
    grown = 1 - math.exp(-step / (60 + 60 * late))
    noise = 0.05 * math.sin(step * 2.7)
    win = 0.4 + 0.45 * grown + noise
    return {
        "step": step, "win": win, "loss": 1 - win - 0.02, "draw": 0.02, "episodes": 400.0, "reward": 0.01,
        "return": 2 * win - 1, "length": 60.0 - 20 * grown, "league/rung": 1.0 + step // 50, "league/elo": 1000 + step,
        "policy_loss": 0.02 * math.cos(step), "value_loss": 0.3 / (1 + step / 20), "entropy": 2 - grown, "lr": 7e-4,
        "win_recent": 0.4 + 0.45 * grown, "frames": 32768 * step, "seconds": 0.9 * step, "collect_s": 0.3,
        "learn_s": 0.6 + noise, "simulate_s": 0.16, "frames_per_second": 36000 * (1 + noise), "memory_mb": 612.0 + late,
        "checkpoint/saves": step // 50, "checkpoint/failures": 0, "checkpoint/queue_size": 0,
        "checkpoint/bytes_out": 1.5e6 * (step // 50), "checkpoint/stall_p99_ms": 7.5, "checkpoint/fence_p99_ms": 0.3,
    }  # fmt: skip


def write_rows(run: Path, first: int, last: int, late: float = 0.0) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps(metrics(step, late)) + "\n" for step in range(first, last + 1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for k, name in enumerate(("first", "second")):
        (folder / name / "checkpoints").mkdir(parents=True)
        (folder / name / "config.yaml").write_text(CONFIG.format(lr=7e-4 * (k + 1)))
        write_rows(folder / name, 1, 200 - 50 * k, late=float(k))
        for step in (50, 100, 150):
            content = b"no checkpoint, but as large as one" * (2000 + step)
            (folder / name / "checkpoints" / f"checkpoint_{step:09d}.fledge").write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def app(serve_app: Callable[..., App], runs: Path) -> App:
    return serve_app("watch", str(runs))


@pytest.fixture
def both(runs: Path) -> str:
    return f"{make_id(runs / 'first')},{make_id(runs / 'second')}"


def rows_shown(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('fledge-training')?.dataset.rows ?? ''"))


def is_running(browser: Browser, run: Path) -> bool:
    """Whether the list says so; on a machine that is busy, a while may have passed since the last row."""
    os.utime(run / "metrics.jsonl")
    return "running" in browser.text(".ft-runs")


def painted(browser: Browser, number: int = 0) -> Any:
    """How many pixels of a chart's canvas are not empty."""
    return browser.run(
        "const c = document.querySelectorAll('canvas')[arguments[0]];"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let n = 0; for (let k = 3; k < d.length; k += 4) n += d[k] > 0; return n;",
        number,
    )


def test_a_run_being_written_moves_its_curves(
    app: App, runs: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    browser.open(f"{app.base}/?runs={make_id(runs / 'first')}")
    browser.until(lambda: rows_shown(browser) == "200")
    browser.until(lambda: painted(browser) > 500)
    text = browser.text()
    for label in (
        "WIN",
        "HOW EPISODES END",
        "RETURN AND LENGTH",
        "LEARNING",
        "LEAGUE",
        "SPEED",
        "CHECKPOINTS",
        "MEMORY",
    ):
        assert label in text.upper()
    browser.until(lambda: is_running(browser, runs / "first"))
    shoot("training")
    before = browser.text(".ft-tiles")
    write_rows(runs / "first", 201, 260)
    browser.until(lambda: rows_shown(browser) == "260")
    browser.until(lambda: browser.text(".ft-tiles") != before)
    assert browser.run("return document.querySelectorAll('canvas').length") > 12


def test_runs_are_overlaid_smoothed_and_read_by_the_cursor(
    app: App, both: str, browser: Browser, shoot: Callable[..., None]
) -> None:
    browser.open(f"{app.base}/?runs={both}&smooth=0&x=step")
    browser.until(lambda: rows_shown(browser).count(",") == 1)
    browser.until(lambda: painted(browser, 1) > 300)
    canvas = browser.all("canvas")[1]
    box = canvas.rect
    fire = "const c = arguments[0], b = c.getBoundingClientRect(); c.dispatchEvent(new PointerEvent('pointermove', "
    browser.run(fire + "{clientX: b.left + b.width / 3, clientY: b.top + 40}));", canvas)
    browser.until("!document.querySelectorAll('.fc-tip')[1].hidden")
    rough = browser.run("return document.querySelectorAll('.fc-tip')[1].innerText")
    assert "first" in rough
    assert "second" in rough
    assert "iterations" in rough
    shoot("training_two")
    slider = browser.find(".ft-smooth input")
    browser.run("arguments[0].value = 0.95; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert "smooth=0.95" in browser.driver.current_url
    browser.run(fire + "{clientX: b.left + b.width / 3, clientY: b.top + 40}));", canvas)
    browser.until(lambda: browser.run("return document.querySelectorAll('.fc-tip')[1].innerText") != rough)
    assert box["width"] > 200


def test_settings_differ_and_the_doctor_speaks(
    app: App, both: str, browser: Browser, shoot: Callable[..., None]
) -> None:
    browser.open(f"{app.base}/?runs={both}&tab=settings")
    browser.until("document.querySelectorAll('.ft-differs').length === 1")
    visible = "[...document.querySelectorAll('.ft-content tbody tr')].filter((row) => !row.hidden).length"
    assert browser.run(f"return {visible}") == 1
    assert "ppo.lr" in browser.text(".ft-content")
    browser.find(".ft-only input").click()
    assert browser.run(f"return {visible}") == 5
    shoot("training_settings")
    browser.open(f"{app.base}/?runs={both}&tab=checkpoints")
    browser.until("document.querySelectorAll('.ft-doctor').length === 2")
    browser.run("document.querySelector('.ft-doctor').click()")
    browser.until("document.querySelector('.ft-told').innerText.includes('3 damaged')")
    shoot("training_checkpoints")


def test_scales_of_odd_numbers_are_finite_and_few(app: App, browser: Browser) -> None:
    browser.open(app.base)
    browser.run(
        "import('/assets/charts/scale.js').then(({rangeOf, ticks}) => {"
        "  const odd = [[2, 2 + 4e-16], [1e300, -1e300], [5e-324, 0], [1e17, 1e17 + 32], [0, 0], [-3, -3], [1e-9, 1]];"
        "  document.body.dataset.ticks = JSON.stringify(odd.map((values) => {"
        "    const y = rangeOf(values, false); return ticks(y.low, y.high, 5).length; })); });"
    )
    counts = json.loads(browser.until("document.body.dataset.ticks"))
    assert all(1 <= count <= 13 for count in counts), counts


def test_the_theme_follows_the_system_until_someone_chooses(app: App, browser: Browser) -> None:
    browser.open(app.base)
    is_dark = "document.body.classList.contains('body--dark')"
    browser.until("document.querySelector('.fl-theme')?.textContent === 'Auto'")
    assert not browser.run(f"return {is_dark}")
    browser.dark(True)
    browser.until(is_dark)
    browser.find(".fl-theme").click()  # light
    browser.until(f"!{is_dark}")
    browser.open(app.base)
    browser.until("document.querySelector('.fl-theme')?.textContent === 'Light'")
    assert not browser.run(f"return {is_dark}")
    browser.run("localStorage.clear()")


def test_two_browsers_see_the_same_and_choose_for_themselves(
    app: App, runs: Path, browser: Browser, new_browser: Callable[[], Browser]
) -> None:
    other = new_browser()
    browser.open(f"{app.base}/?runs={make_id(runs / 'first')}")
    other.open(f"{app.base}/?runs={make_id(runs / 'second')}")
    other.until(lambda: rows_shown(other) == "150")
    browser.until(lambda: rows_shown(browser) not in ("", "150"))
    assert other.errors() == []


def test_a_run_that_goes_away_is_a_sentence(app: App, browser: Browser) -> None:
    browser.open(f"{app.base}/?runs=000000000000")
    browser.until("document.body.innerText.includes('Select a run')")


def test_a_saved_page_shows_the_same_without_a_server(
    app: App, both: str, runs: Path, tmp_path: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    import urllib.request

    page = tmp_path / "page.html"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    page.write_bytes(opener.open(f"{app.base}/api/save?ids={both}").read())
    browser.open(page.as_uri())
    browser.until(lambda: rows_shown(browser).count(",") == 1)
    browser.until(lambda: painted(browser) > 500)
    shoot("training_saved")
    browser.run("document.querySelector('[data-value=settings]').click()")
    browser.until("document.querySelectorAll('.ft-differs').length === 1")


@pytest.fixture
def mortal(runs: Path) -> Iterator[tuple[App, list[subprocess.Popen[str]]]]:
    """A server that a test may end and start again at the same port."""
    first = start_app("watch", str(runs))
    started = [first.process]
    yield first, started
    for process in started:
        process.kill()
        process.wait()


def test_a_dropped_connection_recovers(mortal: Any, runs: Path, browser: Browser) -> None:
    app, started = mortal
    browser.open(f"{app.base}/?runs={make_id(runs / 'second')}")
    browser.until(lambda: rows_shown(browser) == "150")
    app.process.kill()
    app.process.wait()
    browser.until("document.querySelector('.ft-trouble').innerText.includes('trying again')")
    write_rows(runs / "second", 151, 155, late=1.0)
    started.append(start_app("watch", str(runs), "--port", app.base.rpartition(":")[2]).process)
    browser.until(lambda: rows_shown(browser) == "155")
    browser.until("document.querySelector('.ft-trouble').hidden")
    assert all("ERR_CONNECTION" in line or "WebSocket" in line or "Failed to load" in line for line in browser.errors())
