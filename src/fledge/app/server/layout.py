"""The frame of every page: title bar with navigation, light and dark themes, phone layout.

with frame("/watch"):
    add_styles("player")
    add_module("player/player.js")
    mount("fledge-player", {"entry": id})
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from fledge.app.server.assets import STATIC

navigation: dict[str, str] = {}
"""Entries of the title bar, path -> label; `server.build` fills it from the page modules."""


@contextmanager
def frame(active: str) -> Iterator[None]:
    """Add the title bar, and put the content of the `with` block below it; `active` is the path of the present page."""
    add_style("style.css")
    ui.add_head_html('<script src="/assets/theme.js"></script>')
    with ui.header(elevated=False).classes("fl-bar"), ui.element("div").classes("fl-bar-inner"):
        with ui.link(target="/").classes("fl-brand").props('aria-label="Fledge, start page"'):
            ui.element("span").classes("fl-mark").props("aria-hidden=true")
            ui.label("Fledge")
        with ui.element("nav").classes("fl-nav").props('aria-label="Pages"'):
            for path, label in navigation.items():
                link = ui.link(label, path)
                if path == active:
                    link.classes("fl-active").props("aria-current=page")
        # theme.js handles its clicks
        with ui.element("button").classes("fl-theme").props('type=button aria-label="Light or dark"'):
            ui.label("Theme")
    with ui.element("main").classes("fl-main").props("id=main"):
        yield


def add_styles(folder: str) -> None:
    """Load all style sheets of a folder of static/ into the page."""
    for path in sorted((STATIC / folder).glob("*.css")):
        add_style(f"{folder}/{path.name}")


def add_style(path: str) -> None:
    """Load a style sheet into the page: a path below static/, or an absolute path on this server."""
    ui.add_head_html(f'<link rel="stylesheet" href="{asset_url(path)}">')


def add_module(path: str) -> None:
    """Load an ES module into the page: a path below static/, or an absolute path on this server."""
    ui.add_body_html(f'<script type="module" src="{asset_url(path)}"></script>')


def asset_url(path: str) -> str:
    return path if path.startswith("/") else f"/assets/{path}"


def mount(tag: str, data: dict[str, Any] | None = None) -> None:
    """Put a custom element into the page; the element reads `data` as JSON from its attribute data-options."""
    ui.element(tag)._props["data-options"] = json.dumps(data or {})
