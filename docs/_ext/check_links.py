"""Check the links of a built site: `python docs/_ext/check_links.py docs/_build/html`.

Every link inside the site must lead to a file and, with #anchor, to an element of it. Addresses elsewhere are only checked
for their form, since nothing is downloaded. Scripts, styles and images must come from the site itself: it works offline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links, loaded files and anchors of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in (
            "canonical",
            "index",
            "search",
            "next",
            "prev",
        ):
            self.loads.append(given.get("href", ""))
        elif tag in ("script", "img", "source", "video", "iframe") and "src" in given:
            self.loads.append(given["src"])


def problems(page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    """Yield a sentence for each link or file of a page that does not exist."""
    for address in [*page.links, *page.loads]:
        parts = urlsplit(address)
        if parts.scheme in ("mailto", "data", "javascript"):
            continue
        if parts.scheme or parts.netloc:
            if address in page.loads:
                yield f"loads {address} from the network"
            elif (
                parts.scheme not in ("http", "https")
                or "." not in parts.netloc
                or " " in address
            ):
                yield f"links to {address}, which is not a valid address"
            continue
        target = (
            (page.path.parent / unquote(parts.path)).resolve()
            if parts.path
            else page.path
        )
        if not target.is_file():
            yield f"links to {address}, which does not exist"
        elif (
            parts.fragment
            and target in pages
            and unquote(parts.fragment) not in pages[target].anchors
        ):
            yield f"links to {address}, but {target.name} has no such anchor"


def main(folder: Path) -> int:
    pages = {path.resolve(): Page(path.resolve()) for path in folder.rglob("*.html")}
    found = [
        f"{path.relative_to(folder.resolve())} {text}"
        for path, page in pages.items()
        for text in problems(page, pages)
    ]
    links = sum(len(page.links) for page in pages.values())
    print(
        "\n".join(
            [
                *sorted(set(found)),
                f"{len(pages)} pages, {links} links, {len(set(found))} problems",
            ]
        )
    )
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
