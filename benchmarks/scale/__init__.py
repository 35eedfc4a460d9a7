"""`python -m benchmarks scale`: time and memory as the work grows, and where each cost per item bends.

drones         navigation drones in one batch           duels      air-combat duels in one batch
replay         transitions in the replay buffer         browser    runs in the browser's list
checkpoints    MB of the saved state

Every section runs in a process of its own, so that a failure of one leaves the others. Each size is verified before its
figures count; sizes that do not fit into the free memory or disk are skipped, with the reason. A cost is given by the clock
and in CPU time, which other load on the machine changes less. The bend of a cost is the largest size at which it is within
1.25 times of the best, in CPU time if it has one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scale.rows import bends_of, cells_of, lines_of
from benchmarks.scale.section import SLACK, costs_of, find_bend
from benchmarks.scale.worker import SECTIONS
from benchmarks.tables import machine_line, table
from fledge.core.errors import ConfigError
from fledge.core.machine import machine_info

SECONDS, QUICK_SECONDS = 3.0, 0.05


def run(
    on_progress: Callable[[str], None], only: Sequence[str] = (), quick: bool = False, page: str | None = None
) -> dict[str, Any]:
    """Measure all sections, or those of `only`, and return rows and bends; JSON-able.

    Args:
        quick: Measure small sizes for a moment: a check that it runs, not a measurement.
        page: Markdown file whose tables and pictures are replaced, after each section; None: none.

    Raises:
        ConfigError: if `only` names an unknown section.
    """
    if unknown := [name for name in only if name not in SECTIONS]:
        raise ConfigError(f"Section {unknown[0]!r} does not exist; choose from {', '.join(SECTIONS)}.")
    result: dict[str, Any] = {"machine": machine_info(), "quick": quick, "sections": {}}
    for name in only or SECTIONS:
        begun, load_before = time.monotonic(), os.getloadavg()[0]
        found = measure(name, quick, lambda text, name=name: on_progress(f"{name}: {text}"))  # type: ignore[misc]
        found |= {"minutes": round((time.monotonic() - begun) / 60, 2)}
        found["load_average"] = [round(load, 1) for load in (load_before, os.getloadavg()[0])]
        result["sections"][name] = found
        if page is not None:
            from benchmarks.scale.page import update_page

            update_page(Path(page), result["machine"], {name: found})
    result["passed"] = not any(found["failed"] for found in result["sections"].values())
    return result


def measure(name: str, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure one section in another process; return its rows, bends, and sizes that were skipped or failed."""
    found: dict[str, Any] = {"title": name, "figures": [], "rows": [], "skipped": [], "failed": []}
    command = [sys.executable, "-m", "benchmarks.scale.worker", name, str(QUICK_SECONDS if quick else SECONDS)]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    last = ""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, *(["quick"] if quick else [])],
            stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                told = json.loads(line)
                if "progress" in told:
                    last = told["progress"]
                    say(last)
                elif "section" in told:
                    found |= told["section"]
                elif "row" in told:
                    found["rows"].append(told["row"])
                else:
                    kind = "skipped" if "skipped" in told else "failed"
                    found[kind].append({"size": told[kind], "why": told["why"]})
                    say(f"{told[kind]:,} {kind}: {told['why']}")
        finally:
            if process.poll() is None and sys.exc_info()[0]:
                process.terminate()
            ended = process.wait()
        if ended:
            errors.seek(0)
            text = (errors.read().strip().splitlines() or ["no message"])[-1]
            found["failed"].append(
                {"size": None, "why": f"ended with exit code {ended} at {last or 'its start'}: {text}"}
            )
            say(found["failed"][-1]["why"])
    found["bends"] = {key: find_bend(found["rows"], key) for key in costs_of(found["figures"])}
    return found


def render(result: dict[str, Any]) -> Iterator[Any]:
    """Yield the figures as tables: one of each section, and the bends of all."""
    yield machine_line(result["machine"], "start")
    for found in result["sections"].values():
        if found["rows"]:
            heads, rows = cells_of(found)
            view = table(f"{found['title']}, per {found['per']}: the clock, and (CPU time)", *heads)
            for row in rows:
                view.add_row(*row)
            yield view
        yield from lines_of(found)
    yield table_of_bends(result)


def table_of_bends(result: dict[str, Any]) -> Any:
    """Return the table of the bends of all costs."""
    heads, rows = bends_of(result)
    view = table(f"Flat: within {SLACK} times of the best cost per item", *heads)
    for row in rows:
        view.add_row(*row)
    return view
