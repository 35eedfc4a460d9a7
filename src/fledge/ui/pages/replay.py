"""Watch: recordings and live trainings in a 3-D scene or on a tactical map."""

from __future__ import annotations

from nicegui import ui

from fledge.ui.layout import frame
from fledge.ui.server import Server


def register(server: Server) -> None:
    """Add the page's routes."""

    @ui.page("/watch", title="Watch · Fledge")
    def shelf_page() -> None:
        with frame("watch"):
            for entry in server.shelf.recordings():
                ui.link(entry.name, f"/watch/{entry.id}")

    @ui.page("/watch/{entry}", title="Watch · Fledge")
    def replay_page(entry: str) -> None:
        found = server.shelf.find(entry)
        with frame("watch"):
            ui.label(found.name if found else "There is no such recording here any more.")
