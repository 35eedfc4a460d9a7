"""Play in a real browser: keys fly and fire, time goes back, two people fight, a lost connection comes back."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

DUEL = "document.querySelector('fledge-match')"
LINK = "/play?blue=you&red=placeholder&start=head_on&seed=5"


@pytest.fixture(scope="module")
def app(serve_app: Callable[..., Any]) -> Any:
    return serve_app("play", "aircombat")


def origin(app: Any) -> str:
    """The server's address, without a page."""
    where = urlsplit(app.url)
    return f"{where.scheme}://{where.netloc}"


def begin(browser: Any, app: Any, link: str = LINK) -> None:
    """Open a fight by its link, and wait until it is drawn."""
    browser.open(origin(app) + link)
    browser.until(f"{DUEL}?.state && {DUEL}.store?.last > 3 && {DUEL}.graphs > 0", 60)


def frame(browser: Any, name: str, index: int = 0) -> float:
    return browser.run(
        f"const s = {DUEL}.store; return s.value(s.row(s.last), arguments[0], arguments[1])", name, index
    )


def keys(browser: Any, code: str, kind: str = "keydown") -> None:
    browser.run(
        "window.dispatchEvent(new KeyboardEvent(arguments[0], {code: arguments[1], bubbles: true}))", kind, code
    )


def press(browser: Any, text: str) -> None:
    browser.run(
        "[...document.querySelectorAll('fledge-match button')].find(b => b.textContent === arguments[0]).click()", text
    )


def test_keys_fly_the_aircraft_and_fire(browser: Any, app: Any, shoot: Callable[..., None]) -> None:
    begin(browser, app)
    browser.find("body").send_keys(" ")  # a real key press
    browser.until(lambda: frame(browser, "missiles_left") == 5)
    keys(browser, "ArrowLeft")
    browser.until(lambda: frame(browser, "rudder") > 0.9)
    keys(browser, "ArrowLeft", "keyup")
    browser.until(lambda: abs(frame(browser, "rudder")) < 0.05)
    browser.until(f"{DUEL}.graph.sides[1].incoming.length > 0")
    browser.until(lambda: "missile is coming" in browser.text(".fd-red .fd-verdict"))
    press(browser, "Pause")
    browser.until(f"{DUEL}.state.paused")
    shoot("play", 1.0)


def test_it_goes_back_and_is_taken_over(browser: Any, app: Any, shoot: Callable[..., None]) -> None:
    begin(browser, app, "/play?blue=pursuit&red=placeholder&start=head_on&seed=5")
    assert "You are watching" in browser.text(".fd-status")
    browser.run(f"{DUEL}.link.send({{do: 'speed', to: 4}})")
    browser.until(f"{DUEL}.store.last > 60", 40)
    browser.run(f"{DUEL}.slider.value = 20; {DUEL}.slider.dispatchEvent(new Event('input'))")
    browser.until(f"{DUEL}.state.paused && {DUEL}.shown === 20")
    browser.until(f"{DUEL}.graphTick === 20")  # the graph is that moment's, too
    shoot("play_past")
    then = browser.run(f"return Array.from({DUEL}.store.row(20))")
    browser.run(f"{DUEL}.link.send({{do: 'speed', to: 1}})")
    browser.run("document.querySelector('.fd-seat.fd-blue button').click()")  # take over
    browser.until(f"{DUEL}.mine === 0 && {DUEL}.store.last > 24 && {DUEL}.store.last < 60")
    assert browser.run(f"return Array.from({DUEL}.store.row(20))") == then
    keys(browser, "KeyD")
    browser.until(lambda: frame(browser, "rudder") < -0.9)
    keys(browser, "KeyD", "keyup")


def test_two_browsers_and_a_lost_connection(
    browser: Any, new_browser: Callable[[], Any], app: Any, shoot: Callable[..., None]
) -> None:
    browser.open(origin(app) + "/play?blue=you&red=you&start=head_on&seed=6")
    browser.until(f"{DUEL}?.state?.waiting.length === 1", 60)
    assert "Waiting for red" in browser.text(".fd-status")
    shoot("play_waiting")
    other = new_browser()
    other.open(browser.driver.current_url)
    other.until(f"{DUEL}?.mine === 1 && {DUEL}.store?.last > 3", 60)
    keys(other, "KeyA")
    browser.until(lambda: frame(browser, "rudder", 1) > 0.9)  # the one sees what the other does
    keys(other, "KeyA", "keyup")
    shoot("play_two")
    other.run(f"{DUEL}.link.socket.close()")
    other.until("document.querySelector('.fd-down') === null")
    last = other.run(f"return {DUEL}.store.last")
    other.until(f"{DUEL}.mine === 1 && {DUEL}.store.last > {last} + 3")
    assert other.errors() == []
    other.open("about:blank")  # leaves for good
    browser.until(f"{DUEL}.state.waiting.length === 1")
    browser.run(
        "const s = document.querySelector('.fd-seat.fd-red select'); s.value = 'crank'; s.dispatchEvent(new Event('change'))"
    )
    browser.until(f"{DUEL}.state.waiting.length === 0 && {DUEL}.state.seats[1].name === 'crank'")


def test_the_lobby_and_names_that_are_markup(browser: Any, app: Any, shoot: Callable[..., None]) -> None:
    browser.open(origin(app) + "/play")
    browser.until("document.querySelector('fledge-lobby .fd-begin')", 40)
    shoot("lobby")
    browser.open(origin(app) + "/play?blue=%3Cimg%20src%3Dx%20onerror%3D%22window.hit%3D1%22%3E&red=crank")
    browser.until(
        "document.querySelector('fledge-lobby .fl-error').textContent.includes('is not a known pilot or policy')", 40
    )
    assert browser.run("return window.hit === undefined && document.querySelector('fledge-lobby img') === null")
    browser.errors()  # the refusal is a 400, which the console notes


def ask(app: Any, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
    where = urlsplit(origin(app))
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_other_sites_cannot_play(app: Any) -> None:
    body = json.dumps({"blue": "crank", "red": "crank"})
    assert ask(app, "POST", "/play/new", body)[0] == 403
    assert ask(app, "POST", "/play/new", body, Origin="http://evil.example")[0] == 403
    status, told = ask(app, "POST", "/play/new", body, Origin=origin(app))
    assert status == 200
    name = json.loads(told)["id"]
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert ask(app, "GET", f"/play/{name}/socket", Origin="http://evil.example", **upgrade)[0] == 403
    assert ask(app, "GET", f"/play/{name}/socket", **upgrade)[0] == 403


def test_a_fight_is_to_be_had_as_figures_and_files(app: Any) -> None:
    _, told = ask(
        app, "POST", "/play/new", json.dumps({"blue": "crank", "red": "crank", "seed": 4}), Origin=origin(app)
    )
    name = json.loads(told)["id"]
    time.sleep(0.3)
    status, state = ask(app, "GET", f"/play/{name}/state.json")
    assert status == 200
    assert json.loads(state)["seed"] == 4
    status, recording = ask(app, "GET", f"/play/{name}/fight.frec")
    assert (status, recording[:6]) == (200, b"fledge")
    status, acmi = ask(app, "GET", f"/play/{name}/fight.acmi")
    assert acmi.decode("utf-8-sig").startswith("FileType=text/acmi/tacview")
    for path in ("fight.txt", "..%2f..%2fetc%2fpasswd", "%2e%2e/state.json"):
        assert ask(app, "GET", f"/play/{name}/{path}")[0] in (404, 405)
    assert ask(app, "GET", "/play/none/fight.frec")[0] == 404


@pytest.mark.parametrize(
    "body", ["", "[]", "3", "{", '{"seed": "x"}', '{"seed": -1}', '{"blue": 3}', '{"start": "../../x.yaml"}']
)
def test_a_fight_that_makes_no_sense_is_told_so(app: Any, body: str) -> None:
    status, told = ask(app, "POST", "/play/new", body, Origin=origin(app))
    assert status == 400
    assert json.loads(told)["error"]
