"""three.js, as NiceGUI ships it: for the app's pages as a module, for a page that was saved as an object in it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from fledge.core.errors import ConfigError

EXPORTS = re.compile(r"export\{([^{}]*)\};\s*(?://# sourceMappingURL=\S*\s*)?$")


def three_path() -> Path:
    """three.js with its controls, as NiceGUI ships it; ConfigError without NiceGUI."""
    spec = find_spec("nicegui")
    path = Path(spec.origin).parent / "elements" / "scene" / "dist" / "index.js" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError("A page needs the extra ui: pip install 'fledge[ui]'.")
    return path


def three_script() -> str:
    """three.js as an object of the page, where the player finds it: a page that was saved imports nothing."""
    source = three_path().read_text(encoding="utf-8")
    found = EXPORTS.search(source)
    assert found is not None, "NiceGUI's three.js has changed its form"
    pairs = (name.split(" as ") for name in found[1].split(","))
    names = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs)
    return f"globalThis.fledgeThree = (() => {{\n{source[: found.start()]}\nreturn {{{names}}};\n}})();\n"
