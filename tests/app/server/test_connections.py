"""Visitors that send or read too slowly, or open too many connections, do not block the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nicegui")

import uvicorn

from fledge.app.server import connections
from fledge.app.server.connections import HttpProtocol, WebSocketProtocol, too_many

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
LARGE = 20_000_000  # more than the operating system's buffers of a connection take


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read everything, wait for longer than the time limits, and answer; a websocket gets one large message."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(LARGE)})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await asyncio.sleep(0.4)
    size = LARGE if scope["path"] == "/large" else 2
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    await send({"type": "http.response.body", "body": b"x" * size})


@asynccontextmanager
async def served() -> AsyncIterator[tuple[int, Any]]:
    """Serve `app` as the browser app is served; yield the port, and uvicorn's state with all connections."""
    config = uvicorn.Config(
        app, port=0, log_level="warning", lifespan="off", http=HttpProtocol, ws=WebSocketProtocol, timeout_keep_alive=1
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1], server.server_state
    server.should_exit = True
    await running


async def answer_to(port: int, text: bytes, then: bytes = b"", every_s: float = 0.0) -> bytes:
    """Send bytes, then single bytes of `then`, and return everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)

    async def trickle() -> None:
        for byte in then:
            await asyncio.sleep(every_s)
            writer.write(bytes([byte]))

    sending = asyncio.create_task(trickle())
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        sending.cancel()
        writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_S", "BODY_S", "STALL_S"):
        monkeypatch.setattr(connections, name, 0.25)


def test_a_request_that_is_not_completed_is_dropped_and_a_slow_answer_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def attack() -> list[bytes]:
        async with served() as (port, state):
            found = await asyncio.gather(
                *(answer_to(port, text) for text in (b"", HEAD[:10], POST, POST + b"halves", HEAD, HEAD + HEAD[:10])),
                answer_to(port, HEAD[:-2], b"a" * 1000, 0.02),
                answer_to(port, POST[:-4].replace(b"10", b"999"), b"a" * 1000, 0.02),
            )
            await until(lambda: not state.connections and not state.tasks)
            return list(found)

    silent, header, body, complete, served_one, again, slow_header, slow_body = asyncio.run(attack())
    assert (silent, header, body, slow_header, slow_body) == (b"",) * 5
    assert complete.startswith(b"HTTP/1.1 200")
    assert served_one.startswith(b"HTTP/1.1 200")
    assert again.count(b"HTTP/1.1 200") == 1
    assert caplog.text == ""


@pytest.mark.parametrize("request_bytes", [HEAD.replace(b"/", b"/large", 1), UPGRADE], ids=["answer", "websocket"])
def test_a_visitor_that_does_not_read_is_dropped_with_what_it_was_to_read(request_bytes: bytes) -> None:
    async def attack() -> None:
        async with served() as (port, state):
            idle = socket.socket()
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with idle:
                idle.connect(("127.0.0.1", port))
                idle.sendall(request_bytes)
                await until(lambda: any(each.transport.get_write_buffer_size() for each in state.connections))
                await until(lambda: not state.connections and not state.tasks)

    asyncio.run(attack())


def test_a_visitor_that_reads_slowly_but_steadily_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MIN_READ", 1)

    async def read() -> int:
        async with served() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
            writer.write(HEAD.replace(b"/", b"/large", 1))
            size = 0
            while size < LARGE and (part := await reader.read(250_000)):
                size += len(part)
                await asyncio.sleep(0.01)
            writer.close()
            return size

    assert asyncio.run(read()) >= LARGE


def test_a_header_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 20.0)

    async def attack() -> bytes:
        async with served() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
            answer = asyncio.create_task(reader.read())
            while not answer.done():
                writer.write(b"y" * 10_000)
                await asyncio.sleep(0.002)
            writer.close()
            return answer.result() if answer.exception() is None else b"HTTP/1.1 431"

    assert asyncio.run(attack()).startswith(b"HTTP/1.1 431")


def test_empty_fragments_of_a_message_end_the_websocket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_FRAGMENTS", 5)

    async def attack() -> None:
        async with served() as (port, state):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(UPGRADE)
            await until(lambda: any(isinstance(each, WebSocketProtocol) for each in state.connections))
            writer.write(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 10)
            await until(lambda: not state.connections)
            writer.close()

    monkeypatch.setattr(connections, "STALL_S", 60.0)
    asyncio.run(attack())


def test_more_connections_than_allowed_are_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(connections, "HEADER_S", 5.0)

    async def attack() -> tuple[bytes, bytes]:
        async with served() as (port, state):
            writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(3)]
            await until(lambda: len(state.connections) == 3)
            refused = await answer_to(port, b"")
            for writer in writers:
                writer.close()
            await until(lambda: not state.connections)
            return refused, await answer_to(port, HEAD)

    refused, later = asyncio.run(attack())
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"too many connections" in refused
    assert later.startswith(b"HTTP/1.1 200")


def test_another_machine_may_open_a_hundred_connections_and_a_proxy_on_this_one_more() -> None:
    def open_from(address: str, count: int) -> list[Any]:
        return [SimpleNamespace(client=(address, port)) for port in range(count)]

    others = [*open_from("10.0.0.5", 100), *open_from("127.0.0.1", 250), SimpleNamespace(client=None)]
    assert not too_many(others, ("10.0.0.5", 1))
    assert too_many([*others, *open_from("10.0.0.5", 1)], ("10.0.0.5", 1))
    assert not too_many([*others, *open_from("10.0.0.6", 1)], ("10.0.0.6", 1))
    assert not too_many(others, ("127.0.0.1", 1))
    assert not too_many(others, ("::1", 1))
    assert too_many(open_from("fe80::1%eth0", 101), ("fe80::1%eth0", 1))
    assert too_many(open_from("127.0.0.1", 401), ("127.0.0.1", 1))
