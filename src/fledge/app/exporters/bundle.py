"""A page as one HTML file: our modules, styles and data in it, and a policy that lets nothing else in.

Modules are joined by taking their imports of each other and the word `export` out, so names at their top level must differ.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "static"
DATA_ID = "fledge-data"  # of the element that holds the data
IMPORT = re.compile(r'^import\s+(?:[^;]*?\s+from\s+)?"\.\.?/[^"]+";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
POLICY = "default-src 'none'; script-src {hash}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
POLICY += "form-action 'none'"
THEME = """
// a saved page follows the system
const dusk = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.body.classList.toggle("body--dark", dusk.matches);
dusk.addEventListener("change", follow);
follow();
"""


def join_modules(parts: Sequence[str]) -> str:
    """Our modules as one script, in this order: what is imported stands before who imports it."""
    joined = [EXPORT.sub("", IMPORT.sub("", (HERE / part).read_text(encoding="utf-8"))) for part in parts]
    return "\n".join([THEME, *joined])


def as_data(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page(title: str, body: str, data: Any, parts: Sequence[str], styles: Sequence[str], before: str = "") -> str:
    """The file. `body` is markup of our own; everything of others is in `title`, which is escaped, and in `data`.

    Args:
        before: Script that runs ahead of our modules.
    """
    script = before + join_modules(parts)
    assert "</script" not in script.lower()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = "\n".join((HERE / name).read_text(encoding="utf-8") for name in styles)
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
