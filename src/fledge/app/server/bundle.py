"""A page as one HTML file: modules, styles and data inside it, and a content policy that allows nothing else.

Modules are joined by removing their imports of each other and the word `export`, so names at their top level must differ.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fledge.app.server.assets import STATIC
from fledge.core.errors import ConfigError

DATA_ID = "fledge-data"  # of the element that holds the data
IMPORT = re.compile(r'^import\s+(?:[^;]*?\s+from\s+)?"(\.\.?/[^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
THREE_EXPORTS = re.compile(r"export\{([^{}]*)\};\s*(?://# sourceMappingURL=\S*\s*)?$")
POLICY = "default-src 'none'; script-src {hash}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
POLICY += "form-action 'none'"
THEME = """
// a saved page follows the system
const dusk = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.body.classList.toggle("body--dark", dusk.matches);
dusk.addEventListener("change", follow);
follow();
"""


def join_modules(entries: Iterable[Path]) -> str:
    """Join ES modules and all that they import into one script, imported modules first."""
    seen: set[Path] = set()

    def sources(path: Path) -> Iterator[str]:
        if path not in seen:
            seen.add(path)
            source = path.read_text(encoding="utf-8")
            for imported in IMPORT.findall(source):
                yield from sources((path.parent / imported).resolve())
            yield EXPORT.sub("", IMPORT.sub("", source))

    return "\n".join([THEME, *(source for entry in entries for source in sources(entry.resolve()))])


def as_data(value: Any) -> str:
    """Return JSON that is safe inside a script element: no text in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def make_page(title: str, body: str, data: Any, folder: str, modules: Iterable[Path], before: str = "") -> str:
    """Return the HTML of a saved page.

    Args:
        title: Escaped, so it may come from a file.
        body: Markup, inserted as it is.
        data: JSON-able; the page's script finds it in the element `DATA_ID`.
        folder: Folder of static/ whose style sheets the page uses, besides the common one.
        modules: ES modules to run.
        before: Script that runs ahead of the modules.
    """
    script = before + join_modules(modules)
    assert "</script" not in script.lower()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sheets = [STATIC / "style.css", *sorted((STATIC / folder).glob("*.css"))]
    style = "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    policy = POLICY.format(hash=f"'sha256-{digest}'")
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>\n{style}</style></head>\n"
        f'<body><main class="fl-main"><h1 class="fl-saved">{html.escape(title)}</h1>{body}</main>\n'
        f'<script type="application/json" id="{DATA_ID}">{as_data(data)}</script>\n'
        f'<script type="module">{script}</script></body></html>\n'
    )


def three_path() -> Path:
    """Return the path of three.js with its controls, which NiceGUI ships.

    Raises:
        ConfigError: NiceGUI is not installed.
    """
    spec = find_spec("nicegui")
    path = Path(spec.origin).parent / "elements" / "scene" / "dist" / "index.js" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError("A page needs the extra ui: pip install 'fledge[ui]'.")
    return path


def three_script() -> str:
    """Return three.js as a script that defines `globalThis.fledgeThree`: a saved page cannot import modules."""
    source = three_path().read_text(encoding="utf-8")
    found = THREE_EXPORTS.search(source)
    assert found is not None, "NiceGUI's three.js has changed its form"
    pairs = (name.split(" as ") for name in found[1].split(","))
    names = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs)
    return f"globalThis.fledgeThree = (() => {{\n{source[: found.start()]}\nreturn {{{names}}};\n}})();\n"
