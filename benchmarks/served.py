"""The browser app in a process of its own, and a headless Chromium to look at it with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError

FLAGS = ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1280,800", "no-proxy-server",
         "disable-background-networking", "use-gl=angle", "use-angle=swiftshader", "enable-unsafe-swiftshader")  # fmt: skip


class Served:
    """`fledge ARGUMENTS` on a free port: `link` is the page that it says to open, `base` the address without a page.

    Raises:
        ConfigError: when it does not start.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "fledge.cli", *arguments, "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        told, found = "", None
        while found is None and (line := self.process.stderr.readline()):
            told, found = line.strip() or told, re.search(r"open (http://[^/\s]+)(\S*) ", line)
        if found is None:
            self.close()
            raise ConfigError(f"`fledge {arguments[0]}` did not start: {told.removeprefix('fledge: ')}")
        self.base, self.link = found[1], found[1] + found[2]

    def memory_mb(self) -> float:
        """Return the resident memory of the server."""
        return memory_mb(self.process.pid)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def memory_mb(process: int) -> float:
    """Return the resident memory of a process; NaN if the system does not report it."""
    try:
        told = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return float("nan")
    found = re.search(r"VmRSS:\s+(\d+) kB", told)
    return round(int(found[1]) / 1000, 1) if found else float("nan")


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless Chromium by selenium, which draws on the CPU, 3-D included.

    Raises:
        ConfigError: when there is none on this machine.
    """
    driver, binary = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or binary is None:
        raise ConfigError("Chromium or its driver is missing: install Debian's packages chromium and chromium-driver.")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ModuleNotFoundError as error:
        raise ConfigError("selenium is missing: pip install 'fledge[dev]'.") from error
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_script_timeout(120)
    try:
        yield browser
    finally:
        browser.quit()
