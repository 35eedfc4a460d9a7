"""A real server under attack: nothing outside of the given folders comes out, nothing of another site gets in."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fledge.app.runs.file_index import make_id
from tests.app.conftest import App, Browser
from tests.app.runs.test_runs import make_run

pytest.importorskip("nicegui")
WEBGL = False
SECRET = "the-secret-of-another-folder"
EVIL = "<img src=x onerror=document.body.dataset.hacked=1>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("attacked")
    (place / "secret.yaml").write_text(f"task: {SECRET}\n")
    (place / "secret.jsonl").write_text(json.dumps({"step": 1, SECRET: 1}) + "\n")
    config = f"task: '{EVIL}'\n'{EVIL}': '{EVIL}'\n"
    make_run(place / "runs" / EVIL.replace("/", ""), config, **{f"{EVIL}_recent": 0.5, "__proto__": 1.0, EVIL: 2.0})
    bad = make_run(place / "runs" / "linked").path
    for name in ("config.yaml", "metrics.jsonl"):
        (bad / name).unlink()
        (bad / name).symlink_to(place / f"secret.{name.partition('.')[2]}")
    (bad / "checkpoints").symlink_to(place)
    return place


@pytest.fixture(scope="module")
def app(serve_app: Callable[..., App], folder: Path) -> App:
    return serve_app("watch", str(folder / "runs"))


def talk(app: App, text: str | bytes, wait: float = 20.0) -> bytes:
    """Bytes to the server as they are, and what it answers."""
    port = int(app.base.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(text.encode() if isinstance(text, str) else text)
        sock.settimeout(wait)
        answer = b""
        try:
            while part := sock.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


def exhaust(sock: Any) -> None:
    while True:
        sock.recv(10)


def get(app: App, path: str, **headers: str) -> bytes:
    named = {"Host": "localhost", "Connection": "close", **headers}
    return talk(app, f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in named.items()) + "\r\n")


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


PATHS = [
    "/../secret.yaml",
    "/assets/../../../../../../etc/passwd",
    "/assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/assets/..%2f..%2f..%2fpyproject.toml",
    "/assets//etc/passwd",
    "/assets/server.py",
    "/assets/pages/training.py",
    "/api/runs/..%2fsecret.yaml",
    "/api/runs/%2fetc%2fpasswd",
    "/api/checkpoints/..",
    "/api/doctor/%2e%2e%2f%2e%2e",
    "/api/settings?ids=../secret,/etc/passwd",
    "/api/save?ids=..%2f..",
    "/watch/..%2f..%2fsecret.yaml",
    "/_nicegui/3.18.0/resources/x/../../../../../etc/passwd",
    "/_nicegui/3.18.0/static/..%2f..%2f..%2f..%2fetc/passwd",
    "/docs",
    "/openapi.json",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_climbs_finds_nothing(app: App, path: str) -> None:
    answer = get(app, path)
    assert status(answer) in (200, 400, 404, 403, 422), answer[:200]
    body = answer.partition(b"\r\n\r\n")[2]
    for hidden in (SECRET.encode(), b"root:", b"def register", b"[build-system]", b'"paths"'):
        assert hidden not in body


def test_a_page_that_is_not_there_is_a_sentence_and_a_way_back(app: App) -> None:
    answer = get(app, "/nowhere/<img>", Accept="text/html").decode()
    assert answer.startswith("HTTP/1.1 404")
    assert "This page does not exist." in answer
    assert 'href="/"' in answer
    assert "HTTPException" not in answer
    assert b'{"error":' in get(app, "/nowhere")


def test_a_link_inside_a_run_does_not_lead_out(app: App, folder: Path) -> None:
    id = make_id(folder / "runs" / "linked")
    for path in (
        "/api/runs",
        f"/api/runs/{id}",
        f"/api/settings?ids={id}",
        f"/api/checkpoints/{id}",
        f"/api/doctor/{id}",
    ):
        answer = get(app, path)
        assert SECRET.encode() not in answer
        assert b"secret" not in answer


def test_places_of_this_machine_are_not_told(app: App, folder: Path) -> None:
    for path in ("/", "/watch", "/play", "/api/runs"):
        assert str(folder).encode() not in get(app, path)


def test_another_site_gets_no_socket(app: App) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    wish = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    port = app.base.rpartition(":")[2]
    assert status(get(app, path, **wish, Origin="http://evil.example")) == 403
    assert status(get(app, path, **wish)) == 403
    assert status(get(app, path, **wish, Origin=f"http://localhost:{port}")) == 403  # the Host has no port
    poll = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert status(get(app, poll, Origin="http://evil.example")) == 403
    assert status(get(app, "/", Host="evil.example")) == 421


def test_an_oversized_message_ends_its_own_socket_and_nothing_else(app: App) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    address = app.base.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with connect(address, origin=app.base, proxy=None) as sock:  # type: ignore[arg-type]
        assert "sid" in str(sock.recv(10))
        sock.send("4" + "x" * 2_000_000)
        with pytest.raises(ConnectionClosed) as closed:
            exhaust(sock)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009  # too big
    heads = "Host: localhost\r\nOrigin: http://localhost\r\nConnection: close\r\nContent-Length: 99999999\r\n"
    assert status(talk(app, f"POST / HTTP/1.1\r\n{heads}\r\n")) == 413
    assert status(get(app, "/api/runs")) == 200


def test_attachments_that_were_announced_are_not_kept(app: App) -> None:
    from websockets.sync.client import connect

    def memory() -> int:
        return int(Path(f"/proc/{app.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    address = app.base.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with connect(address, origin=app.base, proxy=None) as sock:  # type: ignore[arg-type]
        assert "sid" in str(sock.recv(10))
        sock.send("40")
        assert "sid" in str(sock.recv(10))
        before = memory()
        sock.send('459999999999-["event",{"_placeholder":true,"num":0}]')
        for _ in range(60):
            sock.send(bytes(900_000))
        assert status(get(app, "/api/runs")) == 200
        assert memory() - before < 30_000_000


RUBBISH = [
    *(
        "",
        "4",
        "9",
        "41",
        "42",
        "43[]",
        "44{}",
        "45-[]",
        "2probe",
        "5",
        "6",
        "40/evil,{}",
        "42x",
        "42[]",
        "42{}",
        '420["x"]',
    ),
    *('42["handshake",1]', '42["handshake",{"client_id":"x"}]', '42["handshake",{"client_id":[]}]', '42["event",null]'),
    *('42["event",{"client_id":{}}]', '42["javascript_response",{}]', '42["ack",{}]', '42["log",{"level":"x"}]'),
    *(
        '42["ack",{"client_id":"x","next_message_id":[]}]',
        "42" + "[" * 50_000,
        '42999999999999999999999["x"]',
        b"\0\1",
        b"",
    ),
]


def test_messages_that_no_page_sends_are_dropped_without_a_traceback(app: App) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    address = app.base.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    for rubbish in RUBBISH:
        with connect(address, origin=app.base, proxy=None) as sock:  # type: ignore[arg-type]
            assert "sid" in str(sock.recv(10))
            sock.send("40")
            sock.recv(10)
            sock.send(rubbish)
            with contextlib.suppress(ConnectionClosed):
                sock.send('42["nope",{}]')
    assert status(get(app, "/api/runs")) == 200
    assert "Traceback" not in "".join(app.log)
    assert "exception" not in "".join(app.log)


def test_rubbish_is_refused_and_the_server_goes_on(app: App) -> None:
    for rubbish in (
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    ):
        talk(app, rubbish, wait=1.0)
    assert status(get(app, "/api/runs")) == 200


def test_what_runs_hold_stays_out_of_caches_and_the_pages_scripts_do_not(app: App) -> None:
    assert b"cache-control: no-store" in get(app, "/api/runs").lower()
    assert b"cache-control: no-store" in get(app, "/recordings/x").lower()
    assert b"no-store" in get(app, "/", Accept="text/html").lower()
    assert b"cache-control: no-cache" in get(app, "/assets/style.css").lower()


def test_markup_in_names_is_shown_as_text(app: App, folder: Path, browser: Browser) -> None:
    id = make_id(folder / "runs" / EVIL.replace("/", ""))
    for tab in ("curves", "settings"):
        browser.open(f"{app.base}/?runs={id}&tab={tab}")
        browser.until("document.querySelector('fledge-training')?.dataset.rows === '3'")
        browser.until(f"document.body.innerText.includes({json.dumps(EVIL)})")
        assert browser.run("return document.body.dataset.hacked ?? ''") == ""
        assert browser.run("return document.querySelectorAll('main img').length") == 0


def test_a_script_that_got_into_the_page_would_not_run(app: App, browser: Browser) -> None:
    browser.open(app.base)
    browser.until("document.querySelector('.ft-run') !== null")
    browser.run("const s = document.createElement('div'); s.innerHTML = arguments[0]; document.body.append(s);", EVIL)
    put = "const s = document.createElement('script'); s.textContent = arguments[0]; document.body.append(s);"
    browser.run(put, "document.body.dataset.hacked = 2")
    browser.run("fetch('https://203.0.113.9/').catch(() => { document.body.dataset.kept = 1; })")
    browser.until("document.body.dataset.kept === '1'")
    assert browser.run("return document.body.dataset.hacked ?? ''") == ""
    assert any("Content Security Policy" in line or "violates" in line for line in browser.errors())


def test_a_server_for_others_asks_for_its_token(serve_app: Callable[..., App], folder: Path, browser: Browser) -> None:
    app = serve_app("watch", str(folder / "runs"), "--host", "0.0.0.0")
    assert "?token=" in app.url
    base = f"http://127.0.0.1:{app.base.rpartition(':')[2]}"
    browser.open(base)
    assert "needs a token" in browser.text()
    browser.open(f"{base}/?token=wrong-wrong-wrong-wrong")
    assert "wrong" in browser.text()
    assert [line for line in browser.errors() if "401" not in line and "403" not in line] == []
    browser.open(base + "/?token=" + app.url.partition("token=")[2])
    browser.until("document.querySelector('.ft-run') !== null")
    assert "token" not in browser.driver.current_url
    assert browser.run("return document.cookie") == ""
    browser.open(base + "/watch")
    browser.until("document.querySelector('[aria-current=page]')?.textContent === 'Watch'")
