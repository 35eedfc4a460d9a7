"""Check the messages that arrive on NiceGUI's own socket, because NiceGUI does not check them."""

from __future__ import annotations

import logging
from typing import Any

MESSAGES = {"handshake": ("tab_id", "document_id"), "event": ("id",), "javascript_response": ("request_id",), "ack": ()}
"""Messages that pages may send, and the texts or numbers that they must have besides `client_id`."""


def check_messages() -> None:
    """Make NiceGUI's socket drop invalid messages, without a traceback in the log.

    Binary attachments are invalid too: a message could announce any number of them, and all would be kept in memory until
    the last arrives. Our pages send none.
    """
    from nicegui import core
    from socketio import packet

    known: Any = core.sio.packet_class

    class Checked(known):
        def decode(self, encoded_packet: Any) -> Any:
            if super().decode(encoded_packet):
                raise ValueError("messages with attachments are not accepted")
            if self.packet_type == packet.EVENT and not is_message(self.data):
                raise ValueError("this is not a message of a page")

    core.sio.packet_class = Checked
    logging.getLogger("engineio.server").setLevel(logging.CRITICAL)  # its errors are invalid messages only


def is_message(data: Any) -> bool:
    """Return whether data is `[name, content]` as the pages of NiceGUI send it."""
    if not isinstance(data, list) or len(data) != 2 or data[0] not in tuple(MESSAGES) or not isinstance(data[1], dict):
        return False
    name, content = data
    if name == "ack" and not isinstance(content.get("next_message_id"), int):
        return False
    return all(isinstance(content.get(key), str | int) for key in ("client_id", *MESSAGES[name]))
