"""The shape of the repository: who may import whom, and what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fledge
from fledge.tasks.base import Task
from fledge.tasks.navigation.config import NavigationConfig

SRC = Path(__file__).parent.parent / "src" / "fledge"

# room -> rooms it may import, with what those may import themselves
ALLOWED: dict[str, set[str]] = {"core": set(), "envs": {"core"}, "storage": {"core"}, "monitor": {"core"}}
ALLOWED["agents"] = {"core", "envs", "storage"}
ALLOWED["replay"] = {"core", "storage"}
ALLOWED["tasks"] = ALLOWED["agents"] | {"agents"}
ALLOWED["gym"] = ALLOWED["tasks"] | {"tasks"}
ALLOWED["pettingzoo"] = ALLOWED["gym"] | {"gym"}
ALLOWED["collect"] = ALLOWED["agents"] | {"agents"}
ALLOWED["learn"] = ALLOWED["agents"] | {"agents", "replay"}
ALLOWED["league"] = ALLOWED["agents"] | {"agents"}
ALLOWED["evaluation"] = ALLOWED["tasks"] | {"tasks", "monitor", "league"}
ALLOWED["deployment"] = ALLOWED["evaluation"] | {"evaluation"}
ALLOWED["training"] = ALLOWED["evaluation"] | {"evaluation", "collect", "learn", "replay"}
ALLOWED["tuning"] = ALLOWED["training"] | {"training"}
ALLOWED["advise"] = ALLOWED["training"] | {"training"}
ALLOWED["compat"] = ALLOWED["advise"] | {"advise"}
ALLOWED["app"] = ALLOWED["compat"] | {"compat", "tuning"}
ALLOWED["cli"] = ALLOWED["app"] | {"app", "deployment"}
ALLOWED["__main__"] = {"cli"}
FILES = sorted(SRC.rglob("*.py"))
WORLDS = sorted(f.parent.name for f in (SRC / "tasks").glob("*/task.py") if f.parent.name != "gym")
# where a world may stand as a string: the package's lazy names, and its own registration
TABLES = {"__init__.py", "tasks/registry.py"}


def room_of(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    return parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """Dotted names of ours that a file imports, anywhere in it; lazy names of the package count as where they lead."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name for name in names if name.startswith("fledge.")}
    return {f"{fledge._HOMES[name[7:]]}.{name[7:]}" if name[7:] in fledge._HOMES else name for name in found}


def imported_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(path)}


def named_worlds(path: Path) -> set[str]:
    """Worlds that a file imports, or names in a string as `importlib` and entry points would."""
    names = imported_names(path)
    if not path.is_relative_to(SRC) or str(path.relative_to(SRC)) not in TABLES:
        tree = ast.walk(ast.parse(path.read_text()))
        strings = [node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        names |= {text.replace(":", ".") for text in strings}
    return {world for world in WORLDS for name in names if f"{name}.".startswith(f"fledge.tasks.{world}.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    wrong = imported_rooms(path) - ALLOWED[room] - {room}
    assert not wrong, f"{room} must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_only_a_world_itself_imports_from_its_folder(path: Path) -> None:
    if path.is_relative_to(SRC / "compat"):
        return
    wrong = {world for world in named_worlds(path) if not path.is_relative_to(SRC / "tasks" / world)}
    assert not wrong, f"{path.relative_to(SRC)} must ask {sorted(wrong)} through the Task contract, by name"


@pytest.mark.parametrize(
    "line",
    [
        "from fledge.training.loop import train",
        "from fledge.training import loop",
        "from fledge import training",
        "import fledge.training.loop as loop",
    ],
)
def test_the_arrow_check_sees_a_wrong_edge(tmp_path: Path, line: str) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(f"def f():\n    {line}\n")
    assert imported_rooms(bad) == {"training"}


@pytest.mark.parametrize(
    "line",
    [
        "from fledge.tasks.navigation.env import NavigationEnv",
        "from fledge.tasks.navigation import env",
        "from fledge.tasks import navigation",
        "import fledge.tasks.navigation",
        "from fledge import NavigationEnv",
        "env = importlib.import_module('fledge.tasks.navigation.env')",
        "task = find_task('fledge.tasks.navigation.task:NavigationTask')",
    ],
)
def test_the_world_check_sees_a_wrong_edge(tmp_path: Path, line: str) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(f"def f():\n    {line}\n")
    assert named_worlds(bad) == {"navigation"}


def test_the_world_check_lets_through_what_is_no_edge(tmp_path: Path) -> None:
    good = tmp_path / "good.py"
    good.write_text("from fledge.tasks.base import Task\nfrom fledge import Task\ntask = find_task('navigation')\n")
    assert "navigation" in WORLDS
    assert named_worlds(good) == set()


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_fledge_loads_neither_torch_nor_warp_nor_a_ui() -> None:
    assert not loaded_by("import fledge") & {"torch", "warp", "numpy", "nicegui", "matplotlib", "rich"}


def test_importing_storage_does_not_load_the_simulator() -> None:
    assert not loaded_by("import fledge.storage") & {"warp", "fledge.envs", "torchrl"}


def test_the_command_line_starts_without_torch() -> None:
    assert not loaded_by("import fledge.cli") & {"torch", "warp", "nicegui", "fastapi"}


def test_the_app_starts_without_torch(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    code = "from pathlib import Path; from fledge.app.server.server import AppConfig, build; "
    assert not loaded_by(f"{code}build(AppConfig(folders=[Path({str(tmp_path)!r})]))") & {"torch", "warp", "tensordict"}


def test_every_lazy_name_resolves() -> None:
    for name in fledge.__all__:
        if name not in ("PettingZooEnv", "TorchRLEnv", "StableBaselinesVecEnv"):  # need an extra
            assert getattr(fledge, name) is not None


def test_no_source_file_is_longer_than_330_lines() -> None:
    sources = [path for ending in ("py", "js", "css") for path in SRC.rglob(f"*.{ending}")]
    too_long = {str(p.relative_to(SRC)): n for p in sources if (n := len(p.read_text().splitlines())) > 330}
    assert not too_long


def test_a_task_has_at_most_15_members() -> None:
    class Any(Task):
        name, config = "any", NavigationConfig

    members = {name for name in (*dir(Any()), *Task.__annotations__) if not name.startswith("_")}
    assert len(members) <= 15, sorted(members)
