"""The watch page in a real browser: recordings are scrubbed and filtered, bad ones are told in a sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fledge.app.exporters.html import export_html
from fledge.app.recordings.trajectory import task_of
from fledge.app.runs.file_index import make_id
from fledge.storage import Recording
from tests.app.conftest import App, Browser
from tests.app.recorded import record_duel, record_flights, record_generic

P = "document.querySelector('fledge-player')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings, good and bad."""
    folder = tmp_path_factory.mktemp("recordings")
    whole = record_flights(folder / "flights.frec").read_bytes()
    record_generic(folder / "<i>else.frec")
    record_duel(folder / "duel.frec")
    (folder / "half.frec").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "newer.frec").write_bytes(whole.replace(b"fledge-recording 1\n", b"fledge-recording 9\n", 1))
    (folder / "no.frec").write_bytes(b"not at all")
    return folder


@pytest.fixture(scope="module")
def app(folder: Path, serve_app: Callable[..., App]) -> App:
    return serve_app("watch", str(folder))


def open_player(app: App, browser: Browser, path: Path, hash: str = "") -> None:
    browser.open(f"{app.base}/watch/{make_id(path)}{hash}")
    browser.until(f"{P}?.payload && {P}.group.length", 60)


def test_the_list_leads_to_a_recording(app: App, folder: Path, browser: Browser, shoot: Callable[..., None]) -> None:
    browser.open(f"{app.base}/watch")
    browser.until("document.querySelectorAll('.fp-card').length == 6", 60)
    assert "<i>else.frec" in browser.text()
    shoot("watch_list")
    browser.find(f"a[href='/watch/{make_id(folder / 'flights.frec')}']").click()
    browser.until(f"{P}?.payload", 60)


def test_a_recording_plays_scrubs_and_is_filtered(
    app: App, folder: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    open_player(app, browser, folder / "flights.frec")
    browser.until(f"{P}.t > 0.3")  # it plays by itself
    browser.find("[data-act=play]").click()
    assert not browser.run(f"return {P}.playing")
    # scrub: everything shows the moment
    end = browser.run(f"return {P}.length")
    browser.run(
        f"const bar = {P}.transport.bar; bar.value = arguments[0]; bar.dispatchEvent(new Event('input'))", end / 2
    )
    browser.until(f"Math.abs({P}.t - {end / 2}) < 1e-3")
    browser.until(f"!{P}.changed && {P}.view.chosen().moment.frame > 0")  # the picture is of that moment
    frame = browser.run(f"return {P}.view.chosen().moment.frame")
    browser.find("[data-act=on]").click()
    browser.until(f"{P}.view.chosen().moment.frame == {frame + 1}")
    assert browser.text(".fp-clock").startswith("0:")
    browser.until("location.hash.startsWith('#e=')")
    # only the crashes
    chip = next(chip for chip in browser.all(".fp-chip") if "collision" in chip.text)
    name = chip.get_attribute("data-outcome")
    chip.click()
    browser.until(f"{P}.payload.head.outcome == '{name}'")
    rows = Recording(folder / "flights.frec").outcomes()[name]
    assert len(browser.all(".fp-list .fp-row")) == rows
    # and the moment before one
    assert browser.text("[data-act=before]") == "Before the crash"
    browser.find("[data-act=before]").click()
    browser.until(f"{P}.mode == 'follow' && {P}.t > 0")
    left = browser.run(f"const p = {P}; p.play(false); return p.payload.offset + p.payload.end - p.t")
    assert 0 <= left <= 3.01
    browser.until(f"{P}.payload.beamParts.size")
    shoot("watch_follow")
    browser.run(f"{P}.toggle('beside'); {P}.look('overview')")
    browser.until(f"{P}.group.length > 1")
    browser.until(f"{P}.view.renderer.info.render.calls > 5")
    # as many draws for sixty-four drones and five hundred columns: what keeps it fluent
    assert browser.run(f"return {P}.view.renderer.info.render.calls") < 30
    shoot("watch_together")


def test_keys_work(app: App, folder: Path, browser: Browser) -> None:
    open_player(app, browser, folder / "flights.frec", "#e=2&t=1.5")
    browser.until(f"{P}.payload.number == 2 && {P}.t == 1.5 && !{P}.playing")
    stage = browser.find(".fp-stage")
    stage.send_keys(" ")
    browser.until(f"{P}.playing")
    stage.send_keys(" ")
    stage.send_keys("\ue013")  # arrow up
    browser.until(f"{P}.payload.number == 1")
    stage.send_keys("f")
    browser.until(f"{P}.mode == 'follow'")


def test_a_world_that_is_not_known_shows_a_map(
    app: App, folder: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    open_player(app, browser, folder / "<i>else.frec")
    assert browser.run(f"return {P}.view.constructor.name") == "Map2D"
    browser.run(f"{P}.play(false); {P}.seek(12)")
    assert "fuel kg" in browser.text(".fp-figures")
    assert "<img src=x" in browser.text(".fp-list")  # as text
    assert browser.run("return document.querySelectorAll('.fp-list img, .fp-title b').length") == 0
    shoot("watch_map")
    # of what is still being flown, the map goes as far as anybody has got
    browser.run(f"const f = {P}.payload; f.array(f.head.actors[0].pos)[3 * 59] = 90000; f.version += 1")
    assert browser.run(f"return {P}.view.reach()[1][0]") > 90000


GRAPH = "document.querySelector('.fp-graph')"
DRAWN = f"!{GRAPH}.hidden && {P}.taskGraph.key !== null"


def amount_painted(browser: Browser) -> Any:
    """How many pixels of the space-time graph are not empty."""
    return browser.run(
        "const c = document.querySelector('.fp-graph canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let n = 0; for (let k = 3; k < d.length; k += 4) n += d[k] > 0; return n;"
    )


def test_a_fight_shows_energies_and_its_space_time_graph(
    app: App, folder: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    open_player(app, browser, folder / "duel.frec")
    launch = browser.run(f"return {P}.payload.head.marks[0].t")
    browser.run(f"{P}.play(false); {P}.seek({launch + 6})")
    browser.until(DRAWN)
    browser.until(lambda: amount_painted(browser) > 2000)
    moment = f"{P}.payload.at({launch + 6})"
    energies = f"{P}.payload.head.actors.map((_, k) => {P}.payload.energy(k, {moment})).filter((e) => e !== null)"
    assert max(browser.run(f"return {energies}")) > 0.2
    assert "energy left" in browser.text(".fp-legend")
    shoot("watch_duel", 1.5)


def test_a_saved_fight_has_its_graph_without_a_server(
    folder: Path, browser: Browser, tmp_path: Path, shoot: Callable[..., None]
) -> None:
    with Recording(folder / "duel.frec") as recording:
        export_html(recording, task_of(recording), tmp_path / "duel.html")
    assert (tmp_path / "duel.html").stat().st_size < 4e6
    browser.open((tmp_path / "duel.html").as_uri())
    browser.until(f"{P}?.payload && {P}.t > 0.2", 60)
    browser.run(f"{P}.play(false); {P}.seek({P}.payload.head.marks[0].t + 6)")
    browser.until(DRAWN)
    browser.until(lambda: amount_painted(browser) > 2000)
    shoot("saved_duel", 1.0)


def test_bad_recordings_are_told_in_a_sentence_and_the_page_goes_on(
    app: App, folder: Path, browser: Browser, shoot: Callable[..., None]
) -> None:
    for name, words in (("newer", "version 9"), ("no", "not a Fledge recording")):
        browser.open(f"{app.base}/watch/{make_id(folder / f'{name}.frec')}")
        browser.until(f"({P}?.message.textContent ?? '').includes('{words}')", 60)
        assert str(folder) not in browser.text()
        assert all("404" in error for error in browser.errors())
    shoot("error_recording")
    open_player(app, browser, folder / "half.frec")  # plays as far as it goes
    browser.open(f"{app.base}/watch/nothing")
    browser.until("document.body.innerText.includes('does not exist any more')")
    shoot("error_gone")


def test_a_page_that_was_saved_needs_no_server(
    folder: Path, browser: Browser, tmp_path: Path, shoot: Callable[..., None]
) -> None:
    with Recording(folder / "flights.frec") as recording:
        export_html(recording, task_of(recording), tmp_path / "saved.html")
    assert (tmp_path / "saved.html").stat().st_size < 4e6
    browser.open((tmp_path / "saved.html").as_uri())
    browser.until(f"{P}?.payload && {P}.t > 0.2", 60)
    browser.run(f"{P}.play(false); {P}.toggle('beside'); {P}.look('follow'); {P}.seek(2)")
    browser.until(f"{P}.payload.beamParts.size && {P}.group.length > 1")
    shoot("watch_saved")


NO_WEBGL = """const known = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  return /webgl/.test(kind) ? null : known.call(this, kind, ...rest);
};"""


def test_without_webgl_the_map_is_shown_and_says_so(folder: Path, browser: Browser, tmp_path: Path) -> None:
    with Recording(folder / "flights.frec") as recording:
        export_html(recording, task_of(recording), tmp_path / "saved.html")
    command = "Page.addScriptToEvaluateOnNewDocument"
    script = browser.driver.execute_cdp_cmd(command, {"source": NO_WEBGL})["identifier"]
    says_so = "document.querySelector('.fp-title').innerText.includes('no WebGL')"
    on_map = f"{P}?.view && !{P}.view.renderer && {P}.t > 0 && {says_so}"
    try:
        browser.open((tmp_path / "saved.html").as_uri())
        browser.until(on_map, 60)
        assert any("creating WebGL context" in line for line in browser.errors())
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
    browser.open("about:blank")
    browser.open((tmp_path / "saved.html").as_uri())
    browser.until(f"{P}?.view?.renderer && {P}.t > 0", 60)
    browser.run(f"{P}.view.renderer.forceContextLoss()")  # as when the graphics driver is restarted
    browser.until(on_map)
    assert browser.run("return document.querySelectorAll('.fp-canvas canvas').length") == 1


def test_names_in_a_saved_page_are_text(browser: Browser, tmp_path: Path) -> None:
    path = record_generic(tmp_path / "evil.frec")
    with Recording(path) as recording:
        export_html(recording, task_of(recording), tmp_path / "evil.html")
    page = (tmp_path / "evil.html").read_text()
    assert "<img src=x" not in page
    assert "<b>bold" not in page
    browser.open((tmp_path / "evil.html").as_uri())
    browser.until(f"{P}?.payload", 60)
    time.sleep(0.3)
    assert "<img src=x" in browser.text(".fp-list")
    assert "<b>bold</b>" in browser.text("main")
