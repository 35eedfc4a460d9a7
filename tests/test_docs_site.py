"""The pages of the documentation: every page is in a table of contents, and every link leads somewhere.

`make docs` builds the site and checks the built pages; these tests read the Markdown alone and are quick.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fledge

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
GENERATED = {"cli.md", "settings.md", "api.md", "changelog.md", "contributing.md"}  # with headings that Sphinx adds


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def prose(page: Path) -> str:
    """Return the text of a page without fenced code and inline code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", lambda found: "x" * len(found[0]), text)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as MyST makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading.strip().lower()).replace(" ", "-") for heading in found}


def listed(page: Path) -> list[Path]:
    """Return the pages in the tables of contents of a page."""
    blocks = re.findall(r"^:::\{toctree\}\n(.*?)^:::$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    entries = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [(page.parent / f"{entry}.md").resolve() for entry in entries]


def test_every_page_is_reached_from_the_index_by_tables_of_contents() -> None:
    reached, new = set(), [(DOCS / "index.md").resolve()]
    while new:
        page = new.pop()
        assert page.is_file(), f"a table of contents lists {page.relative_to(DOCS.resolve())}, which does not exist"
        assert page not in reached, f"{name(page)} is listed twice"
        reached.add(page)
        new += listed(page)
    missing = [name(page) for page in PAGES if page.resolve() not in reached]
    assert not missing, f"in no table of contents: {missing}; add them to the index.md of their folder"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_to_a_file_and_an_anchor(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            assert re.fullmatch(r"https?://[\w.-]+\.\w+(/[^\s]*)?", target), target
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page.resolve()
        assert file.is_file(), f"{name(page)} links to {target}"
        if anchor and file.name not in GENERATED:
            assert anchor in anchors(file), f"{name(page)} links to {target}; anchors there: {sorted(anchors(file))}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_begins_with_its_title_and_what_it_is_for(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if text.startswith(":::{include}"):
        return
    title, _, rest = text.partition("\n")
    assert re.match(r"# \S", title)
    assert len(rest.split("\n## ")[0].strip()) >= 40, (
        "say what the reader can do with this page before the first section"
    )
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_lines_of_code_blocks_fit_a_page_of_1280_pixels(page: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    wide = [line for block in blocks for line in block.splitlines() if len(line) > 88]
    assert not wide, f"break these lines, at most 88 characters fit: {wide}"


@pytest.mark.parametrize("page", [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_of_included_files_lead_into_the_docs(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page)):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_every_public_name_is_once_in_the_api_reference() -> None:
    found = re.findall(r"<!-- api: (.*?) -->", (DOCS / "reference" / "api.md").read_text())
    names = [word for line in found for word in line.split()]
    assert sorted(names) == sorted(fledge.__all__), "docs/reference/api.md and fledge.__all__ differ"


def test_the_settings_page_has_every_group_of_settings() -> None:
    from fledge.core.config_help import field_help
    from fledge.training.config import make_config

    found = [
        line.split() for line in re.findall(r"<!-- settings: (.*?) -->", (DOCS / "reference/settings.md").read_text())
    ]
    shown = {(task.partition(":")[0], group) for task, *groups in found for group in groups}
    shared = {group for task, group in shown if group not in ("env", "policy")}
    for task in ("navigation", "aircombat", "gym:CartPole-v1"):
        keys = field_help(type(make_config(task)))
        groups = {key.partition(".")[0] if "." in key else "run" for key in keys}
        assert groups - shared <= {group for each, group in shown if each == task.partition(":")[0]}


@pytest.fixture(scope="module")
def extension() -> Any:
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "_ext" / "generated_pages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_page_has_every_command_and_option(extension: Any) -> None:
    from fledge.cli import main

    text = extension.commands("")
    for command in main.commands:
        assert f"## fledge {command}\n" in text
    assert "`--preset TEXT`" in text
    assert "`--checkpoints`" in text


def test_docstrings_become_valid_restructuredtext(extension: Any) -> None:
    lines = ["Return `x`s of *all* envs.", "", "    code *here*", "", "Args:", "    a_: Text."]
    extension.plain_to_rst(None, "", "", None, None, lines)
    assert lines[0] == "Return ``x``\\ s of \\*all\\* envs."
    assert lines[2:5] == ["::", "", "    code *here*"]
    assert lines[-1] == "    a\\_: Text."


def test_the_link_check_finds_what_is_wrong(tmp_path: Path) -> None:
    pages = {
        "good.html": '<h1 id="a">x</h1><a href="#a">x</a><a href="https://example.org/">x</a>',
        "bad.html": '<a href="none.html">x</a><a href="good.html#b">x</a><script src="https://cdn.example.org/a.js"></script>',
    }
    for file, text in pages.items():
        (tmp_path / file).write_text(text)
    command = [sys.executable, str(DOCS / "_ext" / "check_links.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "2 pages, 4 links, 3 problems"


@pytest.mark.slow
def test_the_site_builds_without_warnings_dead_links_or_wide_pages(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(tmp_path / "trees"), str(DOCS)]
    done = subprocess.run([*build, str(tmp_path / "html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for script in ("check_links.py", "check_widths.py"):  # widths only where chromium is installed
        check = [sys.executable, str(DOCS / "_ext" / script), str(tmp_path / "html")]
        done = subprocess.run(check, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
