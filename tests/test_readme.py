"""The README is short, and its Chinese version says the same: headings, figures, code and links."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))
OWN_START = {"docs/start/install.md": "docs/zh/install.md", "docs/start/first_flight.md": "docs/zh/first_flight.md"}


def code_of(text: str) -> list[str]:
    """Lines of all blocks, without comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line.split("#")[0].rstrip() for block in blocks for line in block.splitlines()]


def links_of(text: str) -> Counter[str]:
    return Counter(re.findall(r"\]\(([^)]+)\)", text))


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_it_is_short_and_has_one_table_and_a_picture_that_moves(text: str) -> None:
    assert len(text.splitlines()) <= 110
    assert len(re.findall(r"^ *\|---", text, re.MULTILINE)) == 1
    assert "docs/images/crossing.webp" in text


def test_both_languages_have_the_same_headings_code_and_figures() -> None:
    assert len(re.findall(r"^#+ ", ENGLISH, re.MULTILINE)) == len(re.findall(r"^#+ ", CHINESE, re.MULTILINE))
    assert code_of(ENGLISH) == code_of(CHINESE)
    figures = [sorted(re.findall(r"(?<![\w])\.\d{3}\b", text)) for text in (ENGLISH, CHINESE)]
    assert len(figures[0]) == 12
    assert figures[0] == figures[1]


def test_both_languages_link_to_the_same_pages() -> None:
    english = Counter({OWN_START.get(link, link): count for link, count in links_of(ENGLISH).items()})
    chinese = links_of(CHINESE)
    assert set(english) - {"README.zh.md"} <= set(chinese)
    assert set(chinese) - set(english) == {"README.md", "docs/zh/index.md"}


@pytest.mark.parametrize("link", sorted(set(links_of(ENGLISH)) | set(links_of(CHINESE))))
def test_every_link_has_a_target(link: str) -> None:
    if not link.startswith("https://"):
        assert (ROOT / link.partition("#")[0]).exists()
