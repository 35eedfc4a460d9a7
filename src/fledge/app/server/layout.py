"""The frame of every page: title bar with navigation, light and dark, and the width of a phone.

    @ui.page("/watch", title="Watch")
    def page() -> None:
        with frame("watch"):
            ...

Assets (`style.css` and ES modules) are served from this folder under /assets; `add_module` loads one into a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui

PAGES = {"training": ("Training", "/"), "watch": ("Watch", "/watch"), "play": ("Play", "/play")}


@contextmanager
def frame(active: str) -> Iterator[None]:
    """A page's content goes inside. `active` is its name in the title bar, one of PAGES."""
    ui.add_head_html('<link rel="stylesheet" href="/assets/style.css"><script src="/assets/theme.js"></script>')
    with ui.header(elevated=False).classes("fl-bar"), ui.element("div").classes("fl-bar-inner"):
        with ui.link(target="/").classes("fl-brand").props('aria-label="Fledge, start page"'):
            ui.element("span").classes("fl-mark").props("aria-hidden=true")
            ui.label("Fledge")
        with ui.element("nav").classes("fl-nav").props('aria-label="Pages"'):
            for name, (label, path) in PAGES.items():
                link = ui.link(label, path)
                if name == active:
                    link.classes("fl-active").props("aria-current=page")
        # theme.js gives it its meaning
        button = ui.element("button").classes("fl-theme").props('type=button aria-label="Light or dark"')
        with button:
            ui.label("Theme")
    with ui.element("main").classes("fl-main").props("id=main"):
        yield


def add_style(path: str) -> None:
    """Load a style sheet of ours into the page: its path below this folder."""
    ui.add_head_html(f'<link rel="stylesheet" href="/assets/{path}">')


def add_module(path: str) -> None:
    """Load an ES module of ours into the page: its path below this folder, for example player/replay.js."""
    ui.add_body_html(f'<script type="module" src="/assets/{path}"></script>')


def mount(tag: str, data: dict[str, Any] | None = None, classes: str = "") -> ui.element:
    """A custom element of ours in the page; `data` reaches it as its attribute data-options, as JSON."""
    element = ui.element(tag).classes(classes)
    element._props["data-options"] = json.dumps(data or {})
    return element
