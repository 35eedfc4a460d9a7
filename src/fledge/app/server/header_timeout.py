"""How long the server waits for a request: who opens connections and says nothing must not keep others out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_S = 10.0  # in which the head of a request must be there

_Base: Any = AutoHTTPProtocol


class Patient(_Base):
    """Uvicorn's protocol, with an end to its patience: it waits for a head for ever, and every connection counts."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():
            self._wait()  # a part of a head; not from anew, or a byte now and then would do
        elif self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _between_requests(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        # a websocket has another protocol by now
        if self._between_requests() and self.transport.get_protocol() is self:
            self.transport.close()
