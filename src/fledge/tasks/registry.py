"""Tasks by name.

    navigation                     registered: the entry-point group `fledge.tasks` of any installed package
    gym:CartPole-v1                any Gymnasium env
    package.module:object          a Task, or a subclass of it
    examples/hover.py              a Python file with one such object in it

Code (a file or a module) runs only if the user names it, never because a checkpoint does: `find_named_task` refuses it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fledge.core.code import FILE_MODULES, find_object, is_gone, module_from_file
from fledge.core.errors import ConfigError, did_you_mean
from fledge.tasks.base import Task

GROUP = "fledge.tasks"
LOCAL = "__main__:"  # how a reference to code of the calling program begins: other processes cannot import it
FOLDERS = sorted({path.parent.name for path in Path(__file__).parent.glob("*/task.py")} - {"gym"})


def task_names() -> list[str]:
    """Return the names of the registered tasks."""
    return sorted({*FOLDERS, *(point.name for point in entry_points(group=GROUP))})


@functools.cache
def registered_tasks() -> tuple[Task, ...]:
    """Return the registered tasks; warn about each plugin that cannot be loaded, and leave it out."""
    found = []
    for name in task_names():
        try:
            found.append(find_named_task(name))
        except ConfigError as error:
            warnings.warn(f"The task {name!r} of a plugin is left out: {error}", RuntimeWarning, stacklevel=2)
    return tuple(found)


def find_task(task: str | Task | type[Task]) -> Task:
    """Return the task of a reference (a name, gym:ID, a Python file or module:object), of a Task object or a Task class.

    Raises:
        ConfigError: if there is no such task, or its code cannot be loaded.
    """
    if isinstance(task, str):
        return _task_by_reference(task)
    if isinstance(task, type) and issubclass(task, Task):
        return with_reference(_task_of_class(task))  # type: ignore[arg-type]
    if isinstance(task, Task):
        return with_reference(task)
    raise ConfigError(
        f"task is {task!r}, but must be a name ({', '.join(task_names())}), gym:ID, a Python file, module:object, or a Task."
    )


def _task_by_reference(reference: str) -> Task:
    if not is_code(reference):
        return find_named_task(reference)
    if reference.startswith("gym:"):
        return _gym_task(reference)
    file, _, name = reference.rpartition(":") if not reference.endswith(".py") else (reference, "", "")
    if not file.endswith(".py"):
        return _task_of_code(reference, 0)
    path = Path(file).resolve()
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    return _task_of_code(f"{path}:{name}" if name else str(path), changed)


@functools.cache
def _task_of_code(reference: str, changed: int) -> Task:
    """Load a task from code. `changed` is the file's time of change, so that the cache loads a changed file again."""
    if reference.endswith(".py"):
        return _task_in(_only_task(module_from_file(Path(reference)), reference), reference)
    return _task_in(find_object(reference), reference)


@functools.cache
def _task_of_class(kind: type[Task]) -> Task:
    return kind()


def with_reference(task: Task) -> Task:
    """Set the task's reference so that it can be found again, also by other processes, and return the task.

    Return the registered task instead if it equals this one. A task that no importable module holds, for example one that
    a notebook cell defines, gets a reference that begins with `LOCAL`.
    """
    if task.reference != task.name or task.name.startswith("gym:"):
        return task
    known = _named_task(task.name) if task.name in task_names() else None
    if known is not None and _same(known, task):
        return known
    is_default = type(task) is not Task and _is_default(task)
    for module in list(sys.modules.values()):
        if getattr(module, "__spec__", None) is None or module.__name__.startswith(("__main__", FILE_MODULES)):
            continue
        for name, value in list(vars(module).items()):
            if value is task or (is_default and value is type(task) and module.__name__ == value.__module__):
                task.reference = f"{module.__name__}:{name}"
                return task
    task.reference = f"{LOCAL}{type(task).__name__}"
    return task


def _same(task: Task, other: Task) -> bool:
    """Return whether two tasks are equal in everything but their reference."""
    parts, others = ({k: v for k, v in vars(each).items() if k != "reference"} for each in (task, other))
    return type(task) is type(other) and parts == others


def _is_default(task: Task) -> bool:
    """Return whether a task equals the one that its class makes without arguments."""
    try:
        return _same(task, _task_of_class(type(task)))  # type: ignore[arg-type]
    except (TypeError, ConfigError):
        return False


def is_code(reference: str) -> bool:
    """Return whether a reference names code to run: a file, an object in a module, or a Gymnasium ID with its module."""
    return reference.endswith(".py") or ":" in reference.removeprefix("gym:")


def find_named_task(reference: str, asked_by: str = "This") -> Task:
    """Return a registered or Gymnasium task; raise ConfigError if there is none, or if the reference names code to run.

    Args:
        asked_by: File or run that names the task, for the error.
    """
    if (task := _named_task(reference)) is not None:
        return task
    if is_code(reference):
        fix = f"add --task {reference} (in Python, task={reference!r})"
        if is_gone(reference):
            fix = f"that file is no longer there, so add --task PATH/{Path(reference).name} with its new place"
        raise ConfigError(
            f"{asked_by} belongs to the task {reference}, which is code and is not run unless you name it: {fix}."
        )
    known = ", ".join(task_names())
    hint = did_you_mean(reference, task_names())
    raise ConfigError(
        f"There is no task {reference!r}.{hint} Choose one of {known}, or give gym:ID, a Python file, or module:object. "
        "A setting must be written key=value."
    )


@functools.cache
def _named_task(reference: str) -> Task | None:
    """Return a registered or Gymnasium task, or None. Cached, because config classes belong to one task object."""
    if reference.startswith("gym:") and not is_code(reference):
        return _gym_task(reference)
    if reference in FOLDERS:  # Fledge's own first: a plugin cannot replace them
        module = importlib.import_module(f"{__package__}.{reference}.task")
        return _task_in(_only_task(module, module.__name__), reference)
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if reference not in points:
        return None
    try:
        return _task_in(find_object(points[reference]), reference)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"The plugin {points[reference]} of the task {reference!r} failed while it was loaded: "
            f"{type(error).__name__}: {error}. Update or uninstall the plugin."
        ) from error


def _gym_task(reference: str) -> Task:
    from fledge.tasks.gym.task import GymTask

    return GymTask(reference.removeprefix("gym:"))


def _only_task(module: ModuleType, where: str) -> Any:
    """Return the task that a module defines: its variable `task`, else its only Task object or subclass of Task."""
    found: dict[int, Any] = {id(t): t for t in vars(module).values() if isinstance(t, Task)}
    if not found:
        kinds = [k for k in vars(module).values() if isinstance(k, type) and issubclass(k, Task)]
        found = {id(k): k for k in kinds if k.__module__ == module.__name__}
    chosen = getattr(module, "task", None) or (next(iter(found.values())) if len(found) == 1 else None)
    if chosen is None:
        raise ConfigError(f"{where} defines {len(found)} tasks, but must define one: write task = Task(...).")
    return chosen


def _task_in(found: Any, reference: str) -> Task:
    task = found() if isinstance(found, type) and issubclass(found, Task) else found
    if not isinstance(task, Task):
        raise ConfigError(f"{reference} is a {type(task).__name__}, but must be a fledge Task.")
    task.reference = reference
    return task
