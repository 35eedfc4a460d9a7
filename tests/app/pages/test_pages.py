"""The app as a browser has it: every page loads, says what it is, and complains about nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.app.conftest import App, Browser


@pytest.fixture(scope="module")
def app(serve_app: Callable[..., App], tmp_path_factory: pytest.TempPathFactory) -> App:
    return serve_app("watch", str(tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize(("path", "label"), [("/", "Training"), ("/watch", "Watch"), ("/play", "Play")])
def test_pages_load_without_a_complaint(
    app: App, browser: Browser, shoot: Callable[..., None], path: str, label: str
) -> None:
    browser.open(app.base + path)
    browser.until("document.querySelector('[aria-current=page]') !== null")
    assert browser.text("[aria-current=page]") == label
    browser.until("document.querySelector('.fl-theme').textContent === 'Auto'")
    shoot(f"empty_{label.lower()}")
