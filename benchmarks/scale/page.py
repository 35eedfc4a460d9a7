"""The page of the scale benchmark: replace its tables, and draw its pictures.

A table stands between the lines `<!-- scale: NAME -->` and `<!-- end -->`; the rest of the page is written by hand. NAME is a
section. Pictures are `../images/scale_NAME.png`, seen from the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scale.rows import Rows, bends_of, cells_of, lines_of
from benchmarks.scale.section import CPU, SLACK
from fledge.core.errors import ConfigError

COLOURS = ("#d1495b", "#1b9e5a", "#4a6fa5", "#e08e1b", "#6b4fa0")
PANELS = ("time", "space")
WIDTH = 150  # characters of a line


def update_page(page: Path, machine: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
    """Replace the tables and pictures of some sections.

    Raises:
        ConfigError: if the page has no place for a table.
    """
    text = page.read_text(encoding="utf-8")
    for name, found in sections.items():
        content = [said_of(found, machine), ""]
        if found["rows"]:
            content += [
                markdown(*cells_of(found)),
                "",
                f"![{found['title']}: cost by size](../images/scale_{name}.png)",
            ]
            draw(found, page.parent.parent / "images" / f"scale_{name}.png")
        content += [f"\n{line}." for line in lines_of(found)]
        bends = bends_of({"sections": {name: found}})
        content += ["", markdown(*bends)] if bends[1] else []
        text = replaced(text, name, "\n".join(content))
    page.write_text(text, encoding="utf-8")


def said_of(found: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """Return the line above a table: what was verified, the item of the costs, and the load."""
    before, after = found["load_average"]
    clock = " by the clock, and (CPU time)" if any(figure["cpu"] for figure in found["figures"]) else ""
    said = (
        f"Verified at each size: {found.get('verified', 'nothing')}. Costs are per {found.get('per', 'item')}{clock}. "
        f"{machine['cores']} cores, load average {before} before and {after} after; {found['minutes']:g} minutes."
    )
    return textwrap.fill(said, WIDTH, break_long_words=False)


def markdown(heads: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, ["---"] * len(heads), *rows])


def replaced(text: str, name: str, content: str) -> str:
    """Return a page with new content between the marks of `name`."""
    mark = re.compile(rf"(<!-- scale: {name} -->\n).*?(^<!-- end -->$)", re.DOTALL | re.MULTILINE)
    if not mark.search(text):
        raise ConfigError(f"The page has no lines `<!-- scale: {name} -->` and `<!-- end -->`: add them.")
    return mark.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw costs per item against size, log-log, with a ring at each bend."""
    from matplotlib.figure import Figure

    panels = [name for name in PANELS if any(figure["panel"] == name for figure in found["figures"])]
    picture = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    axes = picture.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        chosen = [figure for figure in found["figures"] if figure["panel"] == panel]
        for colour, figure in zip(COLOURS, chosen, strict=False):
            plot(axis, found, figure["key"], figure["label"], colour, "-")
            if figure["cpu"]:
                plot(axis, found, figure["key"] + CPU, f"{figure['label']}, CPU time", colour, ":")
        axis.set(xscale="log", yscale="log", xlabel=found["items"])
        units = " or ".join(dict.fromkeys(figure["unit"] for figure in chosen))
        axis.set_ylabel(f"{units} per {found['per']}" if panel == "time" else units)
        axis.grid(which="both", alpha=0.2)
        axis.legend(fontsize=7)
    picture.suptitle(f"{found['title']}; ring: the largest size within {SLACK} times of the best", fontsize=9)
    picture.savefig(path, dpi=110)


def plot(axis: Any, found: Mapping[str, Any], key: str, label: str, colour: str, line: str) -> None:
    """Plot one cost, and mark its bend if it counts."""
    rows = [row for row in found["rows"] if row[key] > 0]
    axis.plot([row["size"] for row in rows], [row[key] for row in rows], line, marker=".", color=colour, label=label)
    if bend := found["bends"].get(key):
        cost = next(row[key] for row in rows if row["size"] == bend["to"])
        axis.plot(bend["to"], cost, "o", ms=10, mfc="none", mec=colour, mew=1.5)
