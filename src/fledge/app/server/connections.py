"""Limits that uvicorn does not have: timeouts, the size of headers, and the number of connections from one address.

A connection is closed if
- the header of a request is not complete within HEADER_S seconds, or is larger than MAX_HEADER bytes;
- the body of a request is not complete within BODY_S seconds after its header;
- the visitor reads less than MIN_READ bytes of an answer, or of websocket messages, within STALL_S seconds;
- there are more than MAX_CONNECTIONS connections, or more than MAX_PER_ADDRESS from its address.
A websocket whose browser is gone is closed by uvicorn's pings.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

HEADER_S = 10.0
BODY_S = 30.0
STALL_S = 60.0
MAX_HEADER = 65536
MIN_READ = 16384
MAX_FRAGMENTS = 1000  # of a websocket message
MAX_CONNECTIONS = 400
MAX_PER_ADDRESS = 100  # a browser opens six, and one or two for each page; other machines only

_HTTP: Any = AutoHTTPProtocol
_WebSocket: Any = AutoWebSocketsProtocol


class _StallTimeout:
    """Mixin for protocols that aborts a connection whose visitor stops reading.

    Closing is not enough: asyncio keeps a closed connection open until everything written to it was read.
    """

    _stall_timer: asyncio.TimerHandle | None = None
    _unread = 0  # bytes in the write buffer at the last check
    _resumed = False  # whether the write buffer was emptied since the last check

    def connection_made(self: Any, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._stall_timer = self.loop.call_later(STALL_S, self._check_stall)

    def connection_lost(self: Any, exc: Exception | None) -> None:
        self._stop_stall_timer()
        super().connection_lost(exc)  # type: ignore[misc]

    def resume_writing(self) -> None:
        self._resumed = True
        super().resume_writing()  # type: ignore[misc]

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _check_stall(self: Any) -> None:
        unread = self.transport.get_write_buffer_size()
        if self._unread and unread > self._unread - MIN_READ and unread and not self._resumed:
            return self.transport.abort()
        self._unread, self._resumed = unread, False
        self._stall_timer = self.loop.call_later(STALL_S, self._check_stall)


class WebSocketProtocol(_StallTimeout, _WebSocket):
    """Uvicorn's websocket protocol, which also disconnects visitors that do not read, or send too many fragments."""

    def handle_cont(self, event: Any) -> None:
        super().handle_cont(event)
        if len(self.frames) > MAX_FRAGMENTS:  # empty ones would pass the limit of a message's size
            self.transport.abort()


class HttpProtocol(_StallTimeout, _HTTP):
    """Uvicorn's HTTP protocol with the limits of this module."""

    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if too_many(self.connections, self.client):
            self._refuse(
                "503 Service Unavailable", "There are too many connections. Close some pages, or try again later."
            )
        self._start(HEADER_S)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop()  # the header is complete: the body has a time limit of its own
        if self._between_requests():
            self._header_bytes = 0 if self.cycle is not before else self._header_bytes + len(data)
            if self._header_bytes > MAX_HEADER:
                self._refuse(
                    "431 Request Header Fields Too Large", f"A request's header may have {MAX_HEADER:,} bytes."
                )
            self._start(HEADER_S)  # does not restart a running timer: single bytes must not keep a connection open
        elif self.cycle.more_body:
            self._start(BODY_S)
        else:
            self._stop()

    def handle_websocket_upgrade(self) -> None:
        self._stop()
        self._stop_stall_timer()  # the websocket protocol has its own
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _between_requests(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _start(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._timer = None
        # a websocket has switched to another protocol
        if self.transport.get_protocol() is self and (self._between_requests() or self.cycle.more_body):
            self.transport.close()

    def _refuse(self, status: str, sentence: str) -> None:
        """Answer with a sentence, and close the connection."""
        heads = f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(sentence)}\r\nconnection: close"
        self.transport.write(f"HTTP/1.1 {status}\r\n{heads}\r\ncache-control: no-store\r\n\r\n{sentence}".encode())
        self.transport.close()


def too_many(connections: Any, client: tuple[str, int] | None) -> bool:
    """Return whether there are more connections than allowed, in all or from the address of `client`.

    Connections from this machine count only towards the total: a proxy or a tunnel brings all visitors from one address.
    """
    if len(connections) > MAX_CONNECTIONS:
        return True
    if client is None or ipaddress.ip_address(client[0].partition("%")[0]).is_loopback:
        return False
    return sum(each.client is not None and each.client[0] == client[0] for each in connections) > MAX_PER_ADDRESS
