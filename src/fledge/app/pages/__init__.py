"""The pages of the app, one module for each. To add a page, add a module here with

LABEL = "Sweeps"                          its entry in the title bar
PATH = "/sweeps"                          where that entry leads
ORDER = 40                                its place among the entries
def register(server: Server) -> None      adds routes to `server.api` and pages with `ui.page`
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def find_pages() -> list[Any]:
    """Import the page modules of this folder, and return them in the order of their entries in the title bar."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return sorted(modules, key=lambda module: module.ORDER)
