"""Static files: a task's page folder is served once the app has loaded the task, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.app.server.assets import TaskPages, serve_assets
from fledge.tasks.registry import find_task

pytest.importorskip("nicegui")


def test_the_page_of_a_task_is_served_and_nothing_beside_it(tmp_path: Path) -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    folder = tmp_path / "page"
    folder.mkdir()
    for name in ("index.js", "b.css", "a.css", "secret.py"):
        (folder / name).write_text(name)
    (tmp_path / "other.js").write_text("other")
    pages = TaskPages()
    api = FastAPI()
    serve_assets(api, pages)
    client = TestClient(api)
    assert client.get("/tasks/mine/index.js").status_code == 404
    pages["mine"] = folder
    assert pages.urls("mine", "*.css") == ["/tasks/mine/a.css", "/tasks/mine/b.css"]
    assert pages.urls("other", "*.css") == []
    assert client.get("/tasks/mine/index.js").text == "index.js"
    for wrong in ("secret.py", "..%2fother.js", "%2e%2e/other.js", "none.js"):
        assert client.get(f"/tasks/mine/{wrong}").status_code == 404
    assert client.get("/tasks/os:system/index.js").status_code == 404
    assert client.get("/assets/theme.js").status_code == 200


def test_air_combat_has_a_page_with_all_that_the_app_asks_for() -> None:
    folder = find_task("aircombat").view.page
    assert folder is not None
    script = (folder / "lobby.js").read_text() + (folder / "match.js").read_text()
    assert (folder / "index.js").is_file()
    assert "globalThis.fledgeGraph" in (folder / "graph.js").read_text()
    assert all(f'customElements.define("{tag}"' in script for tag in ("fledge-lobby", "fledge-match"))


def test_pages_are_found_in_the_order_of_the_title_bar() -> None:
    from fledge.app.pages import find_pages

    assert [(page.LABEL, page.PATH) for page in find_pages()] == [
        ("Training", "/"),
        ("Sweeps", "/sweeps"),
        ("Watch", "/watch"),
        ("Play", "/play"),
    ]
