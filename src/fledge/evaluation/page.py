"""A self-contained HTML page: style, tables and pictures are inside. Follows the light or dark theme of the system."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#526070;--paper:#fff;--card:#f5f7fa;--line:#e3e8ee;--ours:#f1f8f3}
@media (prefers-color-scheme:dark){
:root{--ink:#e4e9ef;--soft:#a3b0bf;--paper:#14191f;--card:#1f2730;--line:#33404d;--ours:#1c2f25}}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
body{max-width:1060px;margin:2.5rem auto;padding:0 1.2rem}
h1{font-size:1.7rem;margin-bottom:.2rem} h2{font-size:1.15rem;margin-top:2.2rem} h3{font-size:1rem;margin:1.4rem 0 .2rem}
p.lead{color:var(--soft);margin-top:0} table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.45rem .6rem;border-bottom:1px solid var(--line);text-align:right} th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:var(--soft);font-size:.88rem} tr.ours td{font-weight:650;background:var(--ours)}
td{white-space:nowrap} td.text{text-align:left;white-space:normal}
td small{display:block;font-weight:400;color:var(--soft)} td.best{font-weight:700}
td small{font-size:.78rem;line-height:1.35} table.tight td,table.tight th{padding:.35rem .45rem}
.note{color:var(--soft);font-size:.88rem} .wide{overflow-x:auto}
img{max-width:100%;height:auto;background:#fff;border-radius:8px}
.figures{display:flex;gap:1rem;flex-wrap:wrap} .figure b{display:block;font-size:1.5rem}
.figure{flex:1 1 7.4rem;background:var(--card);border-radius:10px;padding:.8rem 1rem}
.figure span{color:var(--soft);font-size:.86rem} figure{margin:1.1rem 0 1.8rem} figcaption{margin:.2rem 0 .4rem}
pre{background:var(--card);padding:.8rem 1rem;border-radius:8px;overflow:auto}
"""


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page whose body consists of these HTML parts."""
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def heading(title: str, lead: str, figures: Sequence[tuple[str, str]]) -> list[str]:
    """Return the top of a page as HTML parts: title, a sentence `lead`, and key results as pairs (value, meaning)."""
    tiles = [f"<div class='figure'><b>{html.escape(v)}</b><span>{html.escape(m)}</span></div>" for v, m in figures]
    return [
        f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>",
        f"<div class='figures'>{''.join(tiles)}</div>",
    ]


def note(text: str) -> str:
    return f"<p class='note'>{html.escape(text)}</p>"


def cell(text: str, small: str = "", style: str = "", best: bool = False) -> str:
    """Return a table cell as HTML, with the lines of `small` in small print below the text; `best` makes it stand out."""
    below = "".join(f"<small>{html.escape(line)}</small>" for line in small.splitlines())
    look = (f" style='{style}'" if style else "") + (" class='best'" if best else "")
    return f"<td{look}>{html.escape(text)}{below}</td>"


def tint(score: float) -> str:
    """Return the background style of a score: red at 0, none at 0.5, green at 1."""
    colour = "27,158,90" if score >= 0.5 else "209,73,91"
    return f"background:rgba({colour},{0.5 * abs(2 * score - 1):.2f})"


def table_row(cells: Iterable[str], ours: bool = False) -> str:
    """Return a table row of these HTML cells; `ours` highlights it."""
    return f"<tr{' class=ours' if ours else ''}>{''.join(cells)}</tr>"


def html_table(names: Sequence[str], body: Sequence[str], tight: bool = False) -> str:
    """Return a table of these HTML rows, with `names` as headings; `tight` saves space if there are many columns."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    kind = " class='tight'" if tight else ""
    return f"<div class='wide'><table{kind}><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"


def image(figure: Any, text: str) -> str:
    """Return a matplotlib figure as an <img> with its data inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='{html.escape(text)}' src='data:image/png;base64,{data}'>"
