"""A real browser and a real server for the tests of the browser app.

Chromium and its driver are Debian's packages chromium and chromium-driver; where they are missing, the tests that need them
are skipped, and say so. FLEDGE_SHOTS names a folder for the screenshots that tests take.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SIZES = {"wide": (1280, 800), "phone": (390, 844)}
DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium")


@dataclass
class App:
    """A served app: where it is, and its process."""

    url: str
    process: subprocess.Popen[str]
    log: list[str]  # lines that it has printed

    @property
    def base(self) -> str:
        """The address without a token."""
        return self.url.partition("/?")[0].rstrip("/")


def start_app(*words: str, **options: Any) -> App:
    """`fledge WORDS` in a process of its own, on a free port, once it is served."""
    command = [sys.executable, "-m", "fledge.cli", *words, "--no-browser"]
    command += [] if "--port" in words else ["--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if found := re.search(r"open (http\S+)", line):
            threading.Thread(target=told.extend, args=(process.stderr,), daemon=True).start()  # or the pipe would fill
            return App(found[1], process, told)
    raise AssertionError(f"it did not start: {''.join(told)}")


@pytest.fixture(scope="module")
def serve_app() -> Iterator[Callable[..., App]]:
    """Starts apps, `serve_app("watch", "runs")`; they end with the module."""
    started: list[App] = []

    def start(*words: str, **options: Any) -> App:
        started.append(start_app(*words, **options))
        return started[-1]

    yield start
    for app in started:
        app.process.terminate()
        app.process.wait(20)


class Browser:
    """Chromium by selenium, with what tests ask most often.

    `driver` is selenium's own; `errors()` are what the console has complained about since it was last asked.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.by_css = "css selector"

    def open(self, url: str) -> None:
        self.driver.get(url)

    def find(self, css: str) -> Any:
        return self.driver.find_element(self.by_css, css)

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements(self.by_css, css)

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def text(self, css: str = "body") -> str:
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", css)

    def until(self, condition: str | Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait for a JavaScript expression or a function to be true; returns its value."""
        ask = condition if callable(condition) else lambda: self.run(f"return {condition}")
        end = time.monotonic() + seconds
        while not (found := ask()):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}\n{self.text()[:2000]}\n{self.errors()}"
            time.sleep(0.05)
        return found

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def forget(self) -> None:
        """As if it had just been started."""
        self.open("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.size(*SIZES["wide"])
        self.dark(False)
        self.errors()

    def picture(self, whole: bool) -> bytes:
        """A PNG of what is seen, or of all of the page."""
        wanted = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            page = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            wanted["clip"] = {"x": 0, "y": 0, "width": page["width"], "height": min(page["height"], 4000), "scale": 1}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", wanted)["data"])

    def size(self, width: int, height: int) -> None:
        """The page's size, as a phone's or a screen's."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def dark(self, on: bool) -> None:
        """Set the colour scheme that the browser reports as preferred."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def make_driver(folder: Path, webgl: bool = True) -> Any:
    """Headless Chromium, with WebGL in software; what it keeps is in `folder`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = ["headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars", "window-size=1280,800"]
    flags += ["force-color-profile=srgb", "no-proxy-server", "disable-background-networking", f"user-data-dir={folder}"]
    flags += ["use-gl=angle", "use-angle=swiftshader", "enable-unsafe-swiftshader"] if webgl else ["disable-gpu"]
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


@pytest.fixture(scope="session")
def browsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool, int], Browser]]:
    """Browsers that all modules share, for they take seconds to start: with WebGL or without, by number."""
    if DRIVER is None or CHROMIUM is None:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    pytest.importorskip("selenium")
    pytest.importorskip("nicegui")
    started: dict[tuple[bool, int], Browser] = {}

    def get(webgl: bool, number: int) -> Browser:
        if (webgl, number) not in started:
            started[webgl, number] = Browser(make_driver(tmp_path_factory.mktemp("chromium"), webgl))
        return started[webgl, number]

    yield get
    for browser in started.values():
        browser.driver.quit()


@pytest.fixture(scope="module")
def new_browser(request: pytest.FixtureRequest, browsers: Callable[[bool, int], Browser]) -> Callable[[], Browser]:
    """Gives browsers, each with cookies of its own; most tests need only `browser`.

    A module that draws nothing in 3-D says WEBGL = False: its pages are drawn in half the time.
    """
    count = 0

    def start() -> Browser:
        nonlocal count
        found = browsers(getattr(request.module, "WEBGL", True), count)
        count += 1
        found.forget()
        return found

    return start


@pytest.fixture(scope="module")
def module_browser(new_browser: Callable[[], Browser]) -> Browser:
    return new_browser()


@pytest.fixture
def browser(module_browser: Browser) -> Iterator[Browser]:
    """One browser for a module's tests, 1280x800 and light; a complaint on its console fails the test.

    A test that provokes complaints asks for them by `browser.errors()`, which forgets them.
    """
    module_browser.size(*SIZES["wide"])
    module_browser.dark(False)
    module_browser.errors()
    yield module_browser
    complaints = module_browser.errors()
    module_browser.open("about:blank")  # its server may go now
    assert complaints == []


@pytest.fixture
def shoot(browser: Browser) -> Callable[..., None]:
    """`shoot("training")`: the page wide and on a phone, light and dark, into FLEDGE_SHOTS; `settle` s to draw.

    What is below the first screen of a phone is in `NAME_phone_whole.png`.
    """

    def take(name: str, settle: float = 0.6) -> None:
        folder = os.environ.get("FLEDGE_SHOTS")
        if folder is None:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for size, (width, height) in SIZES.items():
            for dark in (False, True):
                browser.size(width, height)
                browser.dark(dark)
                time.sleep(settle)
                path = Path(folder, f"{name}_{size}_{'dark' if dark else 'light'}.png")
                path.write_bytes(browser.picture(whole=False))
        browser.dark(False)
        Path(folder, f"{name}_phone_whole.png").write_bytes(browser.picture(whole=True))
        browser.size(*SIZES["wide"])
        browser.dark(False)

    return take
