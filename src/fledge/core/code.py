"""Objects that a user names: `package.module:object`, or `path/file.py:object`.

Loading one runs code, so a reference is only ever taken from someone's own words (a command line, a call), never from a
file that may be another person's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fledge.core.errors import ConfigError


def find_object(reference: str) -> Any:
    """The object that a reference means.

    Raises:
        ConfigError: when there is none, or its code cannot be run.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{reference!r} names no object: write module:object or file.py:object.")
    if place.endswith(".py"):
        module = module_from_file(Path(place).resolve())
        if not hasattr(module, name):
            raise ConfigError(f"There is no {name} in {place}.")
        return getattr(module, name)
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` would find it
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(place))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"There is no {reference}: {error}.") from error


def is_reference(text: str) -> bool:
    """Whether a text names an object: module:object, or file.py:object."""
    place, _, name = text.rpartition(":")
    dotted = place.endswith(".py") or (place != "" and all(part.isidentifier() for part in place.split(".")))
    return dotted and all(part.isidentifier() for part in name.split("."))


def absolute(reference: str) -> str:
    """The same reference from any folder."""
    place, sign, name = reference.rpartition(":")
    return f"{Path(place).resolve()}{sign}{name}" if place.endswith(".py") else reference


def module_from_file(path: Path) -> ModuleType:
    """Run a Python file as a module."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    name = f"fledge_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}.") from error
    return module
