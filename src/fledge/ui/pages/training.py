"""Training: curves of one or several runs, their settings, and the health of their checkpoints."""

from __future__ import annotations

from nicegui import ui

from fledge.ui.layout import frame
from fledge.ui.server import Server


def register(server: Server) -> None:
    """Add the page's routes."""

    @ui.page("/", title="Training · Fledge")
    def page() -> None:
        with frame("training"):
            for entry in server.shelf.runs():
                ui.label(entry.name)
