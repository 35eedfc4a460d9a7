"""Check that no page of a built site is wider than the screen: `python docs/_ext/check_widths.py docs/_build/html`.

Opens every page in headless chromium, 1280 and 390 pixels wide. At both widths a page must not scroll sideways, and a cell
of a table with a sentence in it must be at least 88 pixels wide; at 1280 pixels no code block and no table may scroll
either. Needs selenium, chromium and chromedriver (`make browser`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTHS = (1280, 390)
MEASURE = """
const root = document.documentElement, found = [];
if (root.scrollWidth > root.clientWidth + 1) found.push(`the page is ${root.scrollWidth} pixels wide`);
for (const pre of document.querySelectorAll("article pre"))
  if (root.clientWidth > 1000 && pre.scrollWidth > pre.clientWidth + 1)
    found.push(`a code block is ${pre.scrollWidth - pre.clientWidth} pixels too wide: ${pre.innerText.slice(0, 60)}`);
for (const table of document.querySelectorAll("article table.docutils")) {
  const hidden = table.clientWidth - table.parentElement.clientWidth;
  for (const cell of table.querySelectorAll("td"))
    if (cell.innerText.length > 60 && cell.clientWidth < 88)
      found.push(`a cell of a table is only ${cell.clientWidth} pixels wide: ${cell.innerText.slice(0, 60)}`);
  if (root.clientWidth > 1000 && hidden > 1)
    found.push(`a table is ${hidden} pixels too wide: ${table.innerText.slice(0, 60)}`);
}
return found;
"""


def open_browser() -> Any:
    """Return selenium's driver of a headless chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
    ):
        options.add_argument(word)
    return webdriver.Chrome(
        options, webdriver.ChromeService(shutil.which("chromedriver"))
    )


def problems(driver: Any, folder: Path) -> Iterator[str]:
    """Yield a sentence for each page, code block or table that is too wide."""
    for width in WIDTHS:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for page in sorted(folder.rglob("*.html")):
            driver.get(page.resolve().as_uri())
            for text in driver.execute_script(MEASURE):
                yield f"{page.relative_to(folder)} at {width} pixels: {' '.join(text.split())}"


def main(folder: Path) -> int:
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        print(
            "chromium and chromedriver are missing, so widths are not checked: `make browser` installs them"
        )
        return 0
    driver = open_browser()
    try:
        found = list(problems(driver, folder))
    finally:
        driver.quit()
    print(
        "\n".join(
            [
                *found,
                f"{len(list(folder.rglob('*.html')))} pages at {len(WIDTHS)} widths, {len(found)} problems",
            ]
        )
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
