"""Load objects by reference: `package.module:object`, or `path/file.py:object`.

Loading one runs code, so take references only from the user's command line or call, never from a file, which may come
from someone else.
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

FILE_MODULES = "fledge_task_"  # how names of modules begin that were loaded from a file


def find_object(reference: str) -> Any:
    """Return the object that a reference names; raise ConfigError if it does not exist, or its code fails."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{reference!r} is not a reference: write module:object or file.py:object.")
    is_file = place.endswith(".py")
    if not is_file and "" not in sys.path:
        sys.path.insert(0, "")  # find modules as `python -m` does
    try:
        module = module_from_file(Path(place).resolve()) if is_file else importlib.import_module(place)
        return functools.reduce(getattr, name.split("."), module)
    except ConfigError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"There is no {reference}: {error}.") from error


def is_reference(text: str) -> bool:
    """Return True if a text has the form module:object or file.py:object."""
    place, _, name = text.rpartition(":")
    dotted = place.endswith(".py") or (place != "" and all(part.isidentifier() for part in place.split(".")))
    return dotted and all(part.isidentifier() for part in name.split("."))


def absolute(reference: str) -> str:
    """Return a reference that is valid from any working directory."""
    place, sign, name = reference.rpartition(":")
    return f"{Path(place).resolve()}{sign}{name}" if place.endswith(".py") else reference


def module_from_file(path: Path) -> ModuleType:
    """Run a Python file as a module."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    name = f"{FILE_MODULES}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}.") from error
    return module
