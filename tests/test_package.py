"""The package as it is installed: what its wheel holds and needs, and that it flies without the repository."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
OPTIONAL = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
PINNED = {}
for line in (ROOT / "requirements.txt").read_text().split():
    name, _, version = line.partition("==")
    PINNED[name.lower().replace("_", "-")] = Version(version)


def test_the_package_tells_its_version() -> None:
    import fledge

    assert fledge.__version__ == importlib.metadata.version("fledge")


# ---- metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *OPTIONAL])
def test_dependencies_are_ranges_that_the_tested_version_is_in(line: str) -> None:
    needed = Requirement(line)
    assert all(part.operator != "==" for part in needed.specifier)
    assert any(part.operator == ">=" for part in needed.specifier)
    tested = PINNED.get(needed.name.lower())
    assert tested is None or tested in needed.specifier
    assert tested is not None or needed.name == "wandb"  # the one extra that no test installs


def test_the_changelog_has_the_version_at_its_head_and_versions_in_order() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    version = Version(PROJECT["version"])
    released = [Version(found) for found in re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)]
    assert released == sorted(released, reverse=True)
    upcoming = re.search(r"^## \[Unreleased\] \((.*)\)$", text, re.MULTILINE)
    assert upcoming is not None
    assert version.base_version in (upcoming[1], str(released[0]))


def test_the_citation_file_has_what_cff_asks_for() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "date-released", "license"} <= set(found)
    assert found["license"] == PROJECT["license"]
    assert f"## [{found['version']}] - {found['date-released']}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_page_on_dependencies_names_what_the_package_needs() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "design" / "dependencies.md").read_text(), re.MULTILINE)
    told = [name.strip() for row in rows for name in row.split(",") if set(row) != {"-"} and row.strip() != "package"]
    needed = [Requirement(line) for line in [*PROJECT["dependencies"], *OPTIONAL]]
    names = [next(iter(line.extras), line.name) for line in needed]  # gymnasium[mujoco] brings mujoco
    assert sorted(told) == sorted(names)


# ---- Makefile ----------------------------------------------------------------------------------------------------------


def make(*words: str) -> subprocess.CompletedProcess[str]:
    # Not a child of the make that runs these tests, or it would call itself make[1].
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)


def test_make_lists_every_target_with_a_line() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    lines = make().stdout.splitlines()
    assert [line.split()[0] for line in lines] == phony[1].split()
    assert all(len(line.split()) > 2 for line in lines)


def test_make_without_a_suitable_python_says_so_in_one_sentence(tmp_path: Path) -> None:
    done = make("setup", "PYTHON=/nowhere/python3 false", f"VENV={tmp_path / 'venv'}")
    assert done.returncode == 2
    assert "needs Python 3.11 or later, but there is none among: /nowhere/python3 false" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_make_takes_the_first_suitable_python_and_setup_is_instant_afterwards(tmp_path: Path) -> None:
    place = tmp_path / "venv"
    words = [f"PYTHON=false {sys.executable}", f"VENV={place}"]
    planned = make("--dry-run", "setup", *words).stdout
    assert "-m venv" in planned
    assert "pip install" in planned
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    (place / ".stamp").touch()
    assert make("setup", *words).stdout == "make: Nothing to be done for 'setup'.\n"


# ---- the wheel -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that nothing is left in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "runtime/src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "out", "."]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return next((folder / "out").glob("fledge-*.whl"))


def test_the_wheel_takes_packages_from_src_and_the_runtime_and_these_do_not_need_the_benchmarks() -> None:
    assert PYPROJECT["tool"]["setuptools"]["packages"]["find"]["where"] == ["src", "runtime/src"]
    assert {path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"} == {"fledge"}
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    assert not [
        text
        for text in sources
        if re.search(r"^\s*(from|import) benchmarks\b|import_module\(f?.benchmarks\b", text, re.M)
    ]


def test_every_data_file_of_the_package_is_named_in_its_metadata() -> None:
    source = ROOT / "src" / "fledge"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["fledge"]
    named = {path for pattern in patterns for path in source.glob(pattern)}
    others = {path for path in source.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others <= named
    assert {source / "py.typed", source / "tasks/navigation/policies/fledge-nav.fledge"} <= named


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fledge/")}
    files = [
        path for path in (ROOT / "src" / "fledge").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert held == {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {path.suffix for path in files} == {
        ".py",
        ".typed",
        ".yaml",
        ".json",
        ".fledge",
        ".npz",
        ".js",
        ".css",
        ".svg",
    }
    runtime = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fledge_runtime/")}
    package = ROOT / "runtime" / "src" / "fledge_runtime"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert runtime == {path.relative_to(package.parent).as_posix() for path in files if path.suffix != ".so"}
    others = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()} - {"fledge", "fledge_runtime"}
    assert all(name.endswith(".dist-info") for name in others)  # no benchmarks, no tests


@pytest.mark.slow
def test_the_wheel_flies_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """In a virtualenv of its own, that sees this one's dependencies but not this one's Fledge."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    with zipfile.ZipFile(wheel) as archive:  # what pip does with a wheel of Python alone
        archive.extractall(own)
    # a plain .pth adds a folder behind our own, and does not run the .pth files in it, which an editable install is
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = str(place / "bin" / "python")
    where = "import fledge, fledge.cli; print(fledge.__file__)"
    found = subprocess.run([python, "-c", where], cwd="/", env=env, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(place)
    words = ["eval", "fledge-nav", "--episodes", "64", "--json"]
    done = subprocess.run([python, "-m", "fledge.cli", *words], cwd="/", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["episodes"] >= 64
    assert row["success"] > 0.5
