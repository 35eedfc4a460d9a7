"""Load objects by reference: `package.module:object`, or `path/file.py:object`.

Loading an object runs code, so take references only from the user's command line or call, never from a file, which may
come from someone else.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fledge.core.errors import ConfigError, did_you_mean
from fledge.core.paths import path_hint

_FOLDERS: set[Path] = set()  # folders of the files that were run in this process

FILE_MODULES = "fledge_task_"  # prefix of the names of modules that were loaded from a file


def find_object(reference: str) -> Any:
    """Return the object that a reference names; raise ConfigError if it does not exist, or its code fails."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{reference!r} is not a reference: write module:object or file.py:object.")
    is_file = place.endswith(".py")
    if not is_file and "" not in sys.path:
        sys.path.insert(0, "")  # find modules as `python -m` does
    try:
        found: Any = module_from_file(Path(place).resolve()) if is_file else importlib.import_module(place)
    except ConfigError:
        raise
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{reference} cannot be imported: {error}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            own = [each for each in vars(found) if not each.startswith("_")] if hasattr(found, "__dict__") else []
            raise ConfigError(f"There is no {reference}: {place} has no {name}.{did_you_mean(part, own)}")
        found = getattr(found, part)
    return found


def is_reference(text: str) -> bool:
    """Return True if a text has the form module:object or file.py:object."""
    place, _, name = text.rpartition(":")
    dotted = place.endswith(".py") or (place != "" and all(part.isidentifier() for part in place.split(".")))
    return dotted and all(part.isidentifier() for part in name.split("."))


def absolute(reference: str) -> str:
    """Return a reference that is valid from any working directory."""
    place, sign, name = reference.rpartition(":")
    return f"{Path(place).resolve()}{sign}{name}" if place.endswith(".py") else reference


def is_gone(place: str) -> bool:
    """Return whether `place`, a module name or a file path, is the path of a Python file that does not exist."""
    return place.endswith(".py") and not Path(place).is_file()


def module_from_file(path: Path) -> ModuleType:
    """Run a Python file as a module, which can import other modules from its folder, and return the module."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.{path_hint(path)}")
    # files of the same name in different folders are different modules
    name = f"{FILE_MODULES}{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        with importable(path.parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{path} failed while it was loaded: {type(error).__name__}: {error}.") from error
    return module


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the code in the `with` block import modules from a folder, before modules of the same name elsewhere.

    Afterwards the folder stays at the end of the module search path, for imports that functions make when they are called.
    If a file in another folder has already imported a module of the same name, that module is forgotten, so that each file
    imports the modules in its own folder.
    """
    for name, module in list(sys.modules.items()):
        home = Path(getattr(module, "__file__", None) or "/").parent
        if home in _FOLDERS - {folder} and (folder / f"{name}.py").is_file():
            del sys.modules[name]
    _FOLDERS.add(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # a neighbour may have been written just now
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
