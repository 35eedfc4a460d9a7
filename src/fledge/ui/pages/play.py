"""Play: a fight against a pilot, an agent or another person."""

from __future__ import annotations

from nicegui import ui

from fledge.ui.layout import frame
from fledge.ui.server import Server


def register(server: Server) -> None:
    """Add the page's routes."""

    @ui.page("/play", title="Play · Fledge")
    def page() -> None:
        with frame("play"):
            ui.label("Nothing to play yet.")
