"""Serve static files, and save pages as one HTML file.

The app's own files are served under /assets, the page folders of tasks (`TaskView.page`) under /tasks/NAME. A saved page has
modules, styles and data inside it, and a content security policy that allows nothing else. Its modules are joined by
removing their imports of each other and the word `export`, so names at their top level must differ.
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
from urllib.parse import quote

from fledge.core.errors import ConfigError
from fledge.core.extras import install_command

STATIC = Path(__file__).parents[1] / "static"
SUFFIXES = (".js", ".css", ".svg")  # other files are not served
CACHE = {"cache-control": "no-cache"}  # the browser asks each time, and gets the file if it has changed
DATA_ID = "fledge-data"  # id of the element that holds the data
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


class TaskPages(dict[str, Path]):
    """Page folders of the tasks that the app has loaded, by name of the task; a URL never makes the app load a task."""

    def urls(self, name: str, pattern: str) -> list[str]:
        """Return the sorted URLs of files in a task's page folder that match a pattern; empty if the task has no page."""
        files = sorted(self[name].glob(pattern)) if name in self else []
        return [f"/tasks/{quote(name, safe='')}/{path.name}" for path in files]


def serve_assets(api: Any, task_pages: TaskPages) -> None:
    """Add the routes of static files."""
    from starlette.responses import FileResponse, Response
    from starlette.staticfiles import StaticFiles

    class Assets(StaticFiles):
        async def get_response(self, path: str, scope: Any) -> Response:
            if Path(path).suffix not in SUFFIXES:
                return Response(status_code=404)
            response = await super().get_response(path, scope)
            response.headers.update(CACHE)
            return response

    api.mount("/assets", Assets(directory=STATIC))

    @api.get("/tasks/{name}/{file}")
    def task_file(name: str, file: str) -> Any:
        known = {path.name: path for path in task_pages[name].iterdir()} if name in task_pages else {}
        if file not in known or known[file].suffix not in SUFFIXES:
            return Response(status_code=404)
        return FileResponse(known[file], headers=CACHE)


def join_modules(entries: Iterable[Path]) -> str:
    """Return ES modules and all modules that they import as one script; imported modules come first."""
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
    """Return a value as JSON that is safe inside a script element: no text in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def make_page(title: str, body: str, data: Any, folder: str, modules: Iterable[Path], before: str = "") -> str:
    """Return the HTML of a saved page.

    Args:
        title: Title as plain text; it is escaped.
        body: HTML, inserted as it is.
        data: JSON-able data, which the page's script reads from the element `DATA_ID`.
        folder: Folder of static/ whose style sheets the page uses, in addition to static/style.css.
        modules: ES modules to run.
        before: Script that runs before the modules.
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
        raise ConfigError(f"Pages need NiceGUI, which is not installed. Install it: {install_command('ui')}")
    return path


def three_script() -> str:
    """Return three.js as a script that defines `globalThis.fledgeThree`: a saved page cannot import modules."""
    source = three_path().read_text(encoding="utf-8")
    found = THREE_EXPORTS.search(source)
    assert found is not None, "NiceGUI's three.js has changed its form"
    pairs = (name.split(" as ") for name in found[1].split(","))
    names = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs)
    return f"globalThis.fledgeThree = (() => {{\n{source[: found.start()]}\nreturn {{{names}}};\n}})();\n"
