"""Recognise errors that only mean that a visitor left during a request, so that they are not printed."""

from __future__ import annotations

from typing import Any

AFTER_CLOSE = (
    'Cannot call "',
    "Unexpected ASGI message",
    "WebSocket is not connected",
)  # how such errors of starlette and uvicorn begin


class Departure:
    """Notices whether the visitor of one request or websocket has left, by wrapping ASGI's `receive` and `send`."""

    def __init__(self) -> None:
        self.left = False

    def receive(self, receive: Any) -> Any:
        """Return `receive` wrapped to notice that the visitor disconnects."""

        async def inner() -> Any:
            message = await receive()
            self.left = self.left or message["type"] in ("http.disconnect", "websocket.disconnect")
            return message

        return inner

    def send(self, send: Any) -> Any:
        """Return `send` wrapped to notice that the connection is closed."""

        async def inner(message: Any) -> None:
            try:
                await send(message)
            except OSError:  # includes uvicorn's ClientDisconnected
                self.left = True
                raise

        return inner

    def explains(self, error: Exception) -> bool:
        """Return whether an error only means that the visitor has left."""
        from starlette.requests import ClientDisconnect
        from starlette.websockets import WebSocketDisconnect

        if not self.left:
            return False
        if isinstance(error, RuntimeError):
            return str(error).startswith(AFTER_CLOSE)
        return isinstance(error, ClientDisconnect | WebSocketDisconnect | ConnectionError) or (
            type(error).__name__ == "ClientDisconnected"  # uvicorn's, which is not public
        )
