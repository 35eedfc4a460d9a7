"""The pages of the app, one module for each. To add a page, add a module here with

LABEL = "Sweeps"                          text of its link in the title bar
PATH = "/sweeps"                          address of the page
ORDER = 40                                number that sorts the links, the lowest first
def register(server: Server) -> None      adds routes to `server.api` and pages with `ui.page`
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def find_pages() -> list[Any]:
    """Import the page modules of this folder, and return them in the order of their links in the title bar."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return sorted(modules, key=lambda module: module.ORDER)
