"""The shape of the repository: who may import whom, and what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "fledge"

# room -> rooms it may import (DESIGN.md, with what those rooms may use themselves)
ALLOWED: dict[str, set[str]] = {"core": set(), "sim": {"core"}, "storage": {"core"}, "monitor": {"core"}}
ALLOWED["envs"] = {"core", "sim"}
ALLOWED["agents"] = ALLOWED["envs"] | {"envs", "storage"}
ALLOWED["replay"] = {"core", "storage"}
ALLOWED["tasks"] = ALLOWED["agents"] | {"agents"}
ALLOWED["collect"] = ALLOWED["agents"] | {"agents"}
ALLOWED["learn"] = ALLOWED["agents"] | {"agents", "replay"}
ALLOWED["evaluate"] = ALLOWED["tasks"] | {"tasks", "monitor"}
ALLOWED["train"] = ALLOWED["evaluate"] | {"evaluate", "collect", "learn", "replay"}
ALLOWED["bench"] = ALLOWED["advise"] = ALLOWED["train"] | {"train"}
ALLOWED["demo"] = ALLOWED["cli"] = ALLOWED["bench"] | {"bench", "advise"}
FILES = sorted(SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    return parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("fledge.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    wrong = imported_rooms(path) - ALLOWED[room] - {room}
    assert not wrong, f"{room} must not import {sorted(wrong)}"


def test_the_arrow_check_sees_a_wrong_edge(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from fledge.train.loop import train\n")
    assert imported_rooms(bad) == {"train"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_fledge_loads_neither_torch_nor_warp_nor_a_ui() -> None:
    assert not loaded_by("import fledge") & {"torch", "warp", "numpy", "nicegui", "matplotlib", "rich"}


def test_importing_storage_does_not_load_the_simulator() -> None:
    assert not loaded_by("import fledge.storage") & {"warp", "fledge.sim", "torchrl"}


def test_the_command_line_starts_without_torch() -> None:
    assert not loaded_by("import fledge.cli") & {"torch", "warp"}


def test_every_lazy_name_resolves() -> None:
    import fledge

    for name in fledge.__all__:
        if name != "TorchRLEnv":  # needs the torchrl extra
            assert getattr(fledge, name) is not None


def test_no_source_file_is_longer_than_630_lines() -> None:
    too_long = {str(p.relative_to(SRC)): n for p in FILES if (n := len(p.read_text().splitlines())) > 630}
    assert not too_long
