"""A time limit for request headers, so that silent connections cannot use up the server's connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_S = 10.0  # time within which the header of a request must be complete

_Base: Any = AutoHTTPProtocol


class HeaderTimeoutProtocol(_Base):
    """Uvicorn's HTTP protocol with a time limit of HEADER_S for request headers, which uvicorn does not have."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():
            self._start()  # an incomplete header; restarting a running timer would let single bytes keep it open
        else:
            self._cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _between_requests(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_S, self._close)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._timer = None
        # a websocket has switched to another protocol
        if self._between_requests() and self.transport.get_protocol() is self:
            self.transport.close()
