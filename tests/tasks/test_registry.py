"""Tasks by name, by file, by module; and code that only runs when someone names it."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fledge.core.errors import ConfigError
from fledge.tasks import registry
from fledge.tasks.base import Task
from fledge.tasks.policy_factory import env_specs
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_named_task, find_task, is_code, task_names

TOY = str(Path(__file__).parents[1] / "reference" / "toy_worlds.py")


def test_navigation_is_registered() -> None:
    assert "navigation" in task_names()
    assert find_task("navigation").name == "navigation"


def test_a_python_file_is_a_task_and_is_found_again_by_its_absolute_path() -> None:
    task = find_task(TOY)
    assert (task.name, task.reference) == ("gunnery", TOY)


def test_an_object_or_a_class_in_a_module_is_a_task() -> None:
    assert find_task("tests.reference.toy_worlds:task").name == "gunnery"
    assert find_task("tests.reference.toy_worlds:GunneryTask").name == "gunnery"


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("chess", r"There is no task 'chess'. Choose one of .*navigation.*"),
        ("missing.py", r"There is no file .*missing\.py"),
        ("json:dumps", r"json:dumps is a function, but must be a fledge Task"),
        ("json:nothing", r"There is no json:nothing"),
        ("no_such_module:task", r"no_such_module:task cannot be imported"),
        ("gym:Nothing-v9", r"gym:Nothing-v9 cannot be made"),
    ],
)
def test_what_is_no_task_gets_one_sentence(reference: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        specs_of(reference)


def specs_of(reference: str) -> object:
    task = find_task(reference)
    return env_specs(task, task.config())  # of a Gymnasium env, making one tells


def test_a_file_without_a_task_and_one_that_fails_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="defines 0 tasks, but must define one"):
        find_task(str(tmp_path / "empty.py"))
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        find_task(str(tmp_path / "broken.py"))


def test_a_file_alone_never_runs_code(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    for reference in (str(trap), "os:getcwd", "gym:some_module:Env-v0"):
        assert is_code(reference)
        with pytest.raises(ConfigError, match="is code and is not run unless you name it: add --task"):
            find_named_task(reference, asked_by="policy.fledge")
    assert not (tmp_path / "sprung").exists()


def test_a_config_without_num_envs_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a dataclass with a field num_envs"):
        Task("nothing", dict)


@pytest.mark.parametrize(
    "failure", ["raise RuntimeError('broken inside')", "import no_such_module", "raise SystemExit(3)"]
)
def test_a_broken_plugin_is_left_out_with_one_warning(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text(failure)
    points = [
        EntryPoint("broken", "broken_plugin:Task", registry.GROUP),
        EntryPoint("navigation", "broken_plugin:Task", ""),
    ]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)
    registry.registered_tasks.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"The task 'broken' of a plugin is left out: .*broken_plugin") as told:
            policies = [load_policy(name) for name in ("fledge-nav", "fledge-reflex")]
        assert len(told) == 1
        assert policies[0].task.name == "navigation"
        with pytest.raises(ConfigError, match="broken_plugin"):
            find_task("broken")
    finally:
        registry.registered_tasks.cache_clear()
