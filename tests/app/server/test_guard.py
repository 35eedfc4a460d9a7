"""The guard refuses requests without access, and gives the reason in a sentence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from fledge.app.server.guard import MAX_BODY, Guard
from fledge.app.server.server import AppConfig
from fledge.core.errors import ConfigError

TOKEN = "a-token-that-is-long-enough"
REACHED = b"the app"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers everything, after reading it."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"ALLOWALL")]})
    await send({"type": "http.response.body", "body": REACHED})


def ask(
    guard: Guard,
    path: str = "/",
    method: str = "GET",
    kind: str = "http",
    parts: Any = (b"",),
    more: Any = (),
    **headers: str,
) -> Any:
    """Return the response of the guard: status or state of the socket, headers, body; `more` are further header pairs."""
    named = {"host": "localhost:8080"} | {name.replace("_", "-"): value for name, value in headers.items()}
    path, _, query = path.partition("?")
    scope = {"type": kind, "method": method, "path": path, "query_string": query.encode()}
    scope["headers"] = [(name.encode(), value.encode("latin-1")) for name, value in (*named.items(), *more)]
    inbox = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    inbox = [*inbox, {"type": "http.request", "body": b""}] if kind == "http" else [{"type": "websocket.connect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return inbox.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    if kind == "websocket":
        return sent[0]["type"]
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:])


def visit(failing: Any, kind: str, arrives: list[str], send_fails: bool = False) -> None:
    """Let a guarded app meet a visitor that leaves; raises what the guard lets through."""
    inbox = [{"type": name} for name in arrives]

    async def receive() -> Any:
        return inbox.pop(0)

    async def send(message: Any) -> None:
        if send_fails:
            raise ConnectionResetError

    scope = {"type": kind, "method": "POST", "path": "/", "query_string": b""}
    scope["headers"] = [(b"host", b"localhost:8080"), (b"origin", b"http://localhost:8080")]
    asyncio.run(Guard(failing, "127.0.0.1")(scope, receive, send))


def raises_after_reading(error: Exception) -> Any:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise error

    return failing


GONE = [
    ClientDisconnect(),
    WebSocketDisconnect(1006),
    RuntimeError('Cannot call "send" once a close message was sent.'),
]


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_a_visitor_who_leaves_is_no_error_of_the_app(error: Exception) -> None:
    for kind in ("http", "websocket"):
        visit(raises_after_reading(error), kind, [f"{kind}.disconnect"])
    with pytest.raises(type(error)):
        visit(raises_after_reading(error), "http", ["http.request"])  # the visitor is still there


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug"), KeyError("x")], ids=repr)
def test_errors_of_the_app_are_raised_even_after_the_visitor_left(error: Exception) -> None:
    with pytest.raises(type(error)):
        visit(raises_after_reading(error), "http", ["http.disconnect"])


def test_sending_to_a_closed_connection_is_no_error() -> None:
    async def sends(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.send", "text": "x"})

    visit(sends, "websocket", [], send_fails=True)


@pytest.fixture
def local() -> Guard:
    return Guard(app, "127.0.0.1")


@pytest.fixture
def public() -> Guard:
    return Guard(app, "0.0.0.0", TOKEN, ["drones.example"], port=8080)


def test_localhost_is_let_in_with_strict_headers(local: Guard) -> None:
    status, headers, body = ask(local)
    assert (status, body) == (200, REACHED)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert ask(local)[1]["content-security-policy"] != policy  # a nonce of its own


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "", "localhost.evil.example", "192.168.1.2:8080"),
        *("[::1].evil.com", "[::1]evil.com:80", "[::1", "::1", "[localhost]", "[::1%25eth0]", "localhost."),
        *("localhost:80@evil.com", "evil.com@localhost", "localhost:port", "localhost:", "localhost, evil.com"),
        *(
            "localhost/evil",
            "localhost evil.com",
            "localhost:8080\t",
            "localhost\xa0",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
        ),
    ],
)
def test_a_foreign_name_that_points_here_is_refused(local: Guard, host: str) -> None:
    status, _, body = ask(local, host=host)
    assert status == 421
    assert REACHED not in body


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8080", "LOCALHOST:8080"])
def test_a_tunnel_to_localhost_may_have_any_port(local: Guard, host: str) -> None:
    assert ask(local, host=host)[0] == 200


@pytest.mark.parametrize("name", ["host", "origin", "content-length", "sec-fetch-site", "sec-fetch-mode"])
def test_a_header_that_decides_may_not_come_twice(local: Guard, name: str) -> None:
    values = {"host": "localhost:8080", "origin": "http://localhost:8080", "content-length": "0"}
    pairs = [(name, values.get(name, "same-origin"))] * (1 if name == "host" else 2)
    status, _, body = ask(local, more=pairs)
    assert status == 400
    assert f"header {name} twice".encode() in body
    assert (
        ask(local, kind="websocket", origin="http://localhost:8080", more=[("Origin", "http://a.b")])
        == "websocket.close"
    )


def test_only_answers_that_say_so_may_be_cached(local: Guard) -> None:
    async def library(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Cache-Control", b"no-cache")]})
        await send({"type": "http.response.body", "body": b""})

    assert ask(local, "/api/runs")[1]["cache-control"] == "no-store"
    assert ask(Guard(library, "127.0.0.1"), "/assets/style.css")[1]["Cache-Control"] == "no-cache"
    assert ask(local, host="evil.example")[1]["cache-control"] == "no-store"


ORIGINS = [
    "http://evil.example",
    "http://localhost:3000",
    "http://localhost",
    "null",
    "",
    "http://localhost:8080.evil.example",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_site_reaches_neither_sockets_nor_posts(local: Guard, origin: str) -> None:
    assert ask(local, kind="websocket", origin=origin) == "websocket.close"
    assert ask(local, method="POST", origin=origin)[0] == 403
    assert ask(local, method="DELETE", origin=origin)[0] == 403
    assert ask(local, origin=origin)[0] == 403


def test_sockets_and_posts_must_say_that_they_are_ours(local: Guard) -> None:
    assert ask(local, kind="websocket") == "websocket.close"
    assert ask(local, method="POST")[0] == 403
    assert ask(local, kind="websocket", origin="http://localhost:8080") == "websocket.accept"
    assert ask(local, method="POST", origin="http://localhost:8080")[0] == 200


def test_a_page_of_another_site_may_link_here_but_not_load_from_here(local: Guard) -> None:
    assert ask(local, sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200
    assert ask(local, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")[0] == 403
    assert ask(local, sec_fetch_site="same-site", sec_fetch_mode="cors")[0] == 403
    assert ask(local, sec_fetch_site="same-origin", sec_fetch_mode="cors")[0] == 200


def test_others_than_this_machine_need_the_token(public: Guard) -> None:
    for headers in (
        {},
        {"cookie": "fledge_token_8080=wrong"},
        {"cookie": f"other={TOKEN}"},
        {"cookie": f"fledge_token_80={TOKEN}"},
    ):
        status, _, body = ask(public, host="10.0.0.5:8080", **headers)
        assert status == 401
        assert REACHED not in body
    assert ask(public, kind="websocket", host="10.0.0.5:8080", origin="http://10.0.0.5:8080") == "websocket.close"
    assert ask(public, "/?token=wrong-but-quite-long-enough", host="10.0.0.5:8080")[0] == 403


def test_the_token_goes_from_the_link_into_a_cookie_and_out_of_sight(public: Guard) -> None:
    status, headers, body = ask(public, f"/watch/x?token={TOKEN}&a=%22%3E%3Cb", host="drones.example")
    assert status == 200
    assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
    assert TOKEN.encode() not in body
    assert b"url=/watch/x?a=%22%3E%3Cb" in body
    cookie = headers["set-cookie"].partition(";")[0]
    assert ask(public, host="drones.example", cookie=f"a=b; {cookie}")[2] == REACHED
    assert ask(public, "//evil.example?token=" + TOKEN, host="drones.example")[2].count(b"url=/evil.example") == 1


@pytest.mark.parametrize("path", ["/\\evil.example", "/\t/evil.example", "/ /evil.example", "/\\/evil.example"])
def test_a_link_with_the_token_leads_to_no_other_site(public: Guard, path: str) -> None:
    body = ask(public, f"{path}?token={TOKEN}", host="drones.example")[2].decode()
    assert "url=/%" in body
    assert "\\" not in body
    assert "\t" not in body


def test_any_token_that_is_taken_works_in_the_printed_link() -> None:
    from fledge.app.runs.file_index import FileIndex
    from fledge.app.server.server import Server

    token = "base64+has/these=%41=="
    link = Server(AppConfig(host="0.0.0.0", token=token), FileIndex(), None).link("/watch?a=1")
    guard = Guard(app, "0.0.0.0", token, port=8080)
    cookie = ask(guard, "/watch?" + link.partition("?")[2], host="10.0.0.5")[1]["set-cookie"].partition(";")[0]
    assert ask(guard, host="10.0.0.5", cookie=cookie)[2] == REACHED


def test_a_public_server_is_known_by_addresses_and_names_that_were_given(public: Guard) -> None:
    cookie = f"fledge_token_8080={TOKEN}"
    assert ask(public, host="10.0.0.5:8080", cookie=cookie)[0] == 200
    assert ask(public, host="drones.example", cookie=cookie)[0] == 200
    assert ask(public, host="evil.example", cookie=cookie)[0] == 421


def test_a_body_too_long_is_refused_whether_it_says_so_or_not(local: Guard) -> None:
    ours = {"origin": "http://localhost:8080", "method": "POST"}
    assert ask(local, content_length=str(MAX_BODY + 1), **ours)[0] == 413
    for odd in ("-5", "9" * 5000, "_1"):
        assert ask(local, content_length=odd, **ours)[0] == 413
    status, _, body = ask(local, parts=[b"x" * 400_000] * 3, **ours)
    assert status == 413
    assert REACHED not in body
    assert ask(local, parts=[b"x" * 400_000] * 2, **ours)[0] == 200


def test_a_server_for_others_makes_up_a_token_and_refuses_a_weak_one() -> None:
    assert AppConfig().token is None
    made = AppConfig(host="0.0.0.0").token
    assert made is not None
    assert len(made) >= 32
    assert AppConfig(host="0.0.0.0").token != made
    for weak in ("short", "a" * 15, "has spaces in it, many", 'quote"quote"quote"', "ümläutümläutümläut"):
        with pytest.raises(ConfigError, match="at least 16"):
            AppConfig(host="0.0.0.0", token=weak)
