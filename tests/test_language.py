"""Plain language: words and names that stay out of the code and the pages.

Readers are strangers. A metaphor as a name, "nobody" for a program, or a docstring that begins with "What" makes them read a
line twice. The changelog may name what was renamed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("src", "benchmarks", "examples")
ENDINGS = {".py", ".pyi", ".js", ".css", ".yaml", ".ipynb", ".md"}

PHRASES = re.compile(
    r"\b(?:nobody|somebody|everybody|anybody)\b|\bprior[\s_]design|\basked[\s_]for[\s_]was\b|\bas[\s_]it[\s_]is[\s_]to[\s_]be\b",
    re.IGNORECASE,
)
OPENINGS = re.compile(r"\s*(?:What|Who)\b")
NAMES = {
    "Shown": "TaskView",
    "Gauge": "EpisodeMetrics",
    "gauge": "episode_metrics",
    "Umpire": "MatchStats",
    "umpire": "match_stats",
    "Defeat": "LossReason",
    "judged_in": "eval_preset",
    "telling": "key_metrics",
    "equip": "enable_observations",
    "world_of": "default_env_config",
    "Contest": "SimBenchmark",
    "Lane": "EnvSlice",
    "lagged": "stale_policy",
    "RewardedEnv": "RewardWrapper",
    "WatchedEnv": "RecordingWrapper",
    "VersusEnv": "OpponentWrapper",
    "Mirror": "SelfPlayOpponent",
    "haste": "speed_bias",
    "footage": "frame_capture",
    "Shelf": "FileIndex",
    "invitation": "play_args",
    "outlook": "plan_observation",
}


def code_files() -> list[Path]:
    return [file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py"))]


def test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


test_files.__test__ = False  # type: ignore[attr-defined]


def texts() -> Iterator[Path]:
    """Yield every file whose whole text is read: code, pages and readmes."""
    for folder in (*CODE, "docs"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in ENDINGS and "_build" not in file.parts:
                yield file
    yield from [*sorted(ROOT.glob("README*.md")), ROOT / "CONTRIBUTING.md"]


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, also of those under fields."""
    for node in ast.walk(tree(file)):
        body = getattr(node, "body", None)
        for line in body if isinstance(body, list) else []:
            if (
                isinstance(line, ast.Expr)
                and isinstance(line.value, ast.Constant)
                and isinstance(line.value.value, str)
            ):
                yield line.lineno, line.value.value


def names(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of every identifier."""
    for node in ast.walk(tree(file)):
        line = getattr(node, "lineno", 0)
        for field in ("name", "id", "attr", "arg", "asname"):
            if isinstance(found := getattr(node, field, None), str):
                yield line, found


def where(file: Path, line: int, text: str) -> str:
    return f"{file.relative_to(ROOT)}:{line}: {text}"


def report(hits: list[str]) -> None:
    assert not hits, f"{len(hits)} lines to rewrite:\n" + "\n".join(hits)


def test_no_banned_phrase_in_code_and_pages() -> None:
    hits = []
    for file in texts():
        text = file.read_text(encoding="utf-8")
        for found in PHRASES.finditer(text):
            hits.append(where(file, text[: found.start()].count("\n") + 1, found[0]))
    report(hits)


def test_no_banned_phrase_in_docstrings_and_names_of_tests() -> None:
    hits = []
    for file in test_files():
        if file == Path(__file__):
            continue
        for line, text in (*docstrings(file), *((n, name.replace("_", " ")) for n, name in names(file))):
            hits += [where(file, line, found[0]) for found in PHRASES.finditer(text)]
    report(hits)


@pytest.mark.parametrize("kind", ["code", "tests"])
def test_no_docstring_begins_with_what_or_who(kind: str) -> None:
    files = code_files() if kind == "code" else test_files()
    found = [(file, line, text) for file in files for line, text in docstrings(file) if OPENINGS.match(text)]
    report([where(file, line, text.strip().splitlines()[0]) for file, line, text in found])


def test_no_metaphor_as_a_name() -> None:
    hits = {
        where(file, line, f"{name}; use {NAMES[name]}")
        for file in (*code_files(), *test_files())
        for line, name in names(file)
        if name in NAMES
    }
    report(sorted(hits))


def test_a_banned_phrase_is_noticed() -> None:
    for line in ("is known to Nobody", "as it is to be", "the prior\ndesign", "test_nobody_waits".replace("_", " ")):
        assert PHRASES.search(line)
    assert not PHRASES.search("any body of the drone, and everyone's design")
    assert OPENINGS.match("What it does")
    assert not OPENINGS.match("Whatever comes")
