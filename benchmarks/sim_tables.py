"""Tables of `python -m benchmarks sim`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.tables import machine_line, shown, table, three_digits

Result = Mapping[str, Any]


def render(result: Result) -> list[RenderableType]:
    """Return the figures of `sim.run` as rich renderables: machine, parity, comparison, sizes."""
    machine = result["machine"]
    versions = f"Python {machine['python']}, torch {machine['torch']}, Warp {machine['warp']}, NumPy {machine['numpy']}"
    title = f"{machine_line(machine, 'start')} · {versions}"
    figures = "".join(f"; {name.replace('_', ' ')} {value:g}" for name, value in result["figures"].items())
    flown = result["settings"]["described"] + figures
    return [title, flown, _parity_table(result), _comparison_table(result), _sizes_table(result)]


def _parity_table(result: Result) -> Table:
    parity, many = result["parity"], result["settings"]["many"]
    one, names = parity["one"], ("numpy", "torch")
    title = f"Same flight: {one[many]:,} {many}, {one['steps']} steps from the same moment"
    view = table(title, "largest difference", *names, "tolerance", "allowed", "outside")
    for key, limits in one["numpy"].items():
        rows = {name: [found[k][key] for found in parity.values() for k in found if k.startswith(name)]
                for name in names}  # fmt: skip
        largest = [f"{max(row['max_difference'] for row in rows[name]):.1e}" for name in names]
        outside = max(row["share_outside"] for found in rows.values() for row in found)
        view.add_row(key, *largest, f"{limits['tolerance']:g}", f"{limits['allowed_share']:.1%}", f"{outside:.3%}")
    return view


def _comparison_table(result: Result) -> Table:
    settings = result["settings"]
    view = table(
        f"{settings['num_envs']:,} {settings['many']}, ms a {settings['call']}, in turns (quartiles)",
        "",
        "threads",
        "cores",
        "CPU ms",
        "ms",
        "steps/s",
        "Fledge faster by",
    )
    for group in result["comparison"].values():
        for name, row in group.items():
            faster = "" if name == "fledge" else shown(row["fledge_faster_by"])
            figures = [f"{row['cores_used']:.2f}", *(three_digits(row[key]) for key in ("cpu_ms", "median_ms"))]
            figures.append(f"{row['env_steps_per_second']:,}")
            view.add_row(name, str(row["threads"]), *figures, faster)
        view.add_section()
    return view


def _sizes_table(result: Result) -> Table:
    settings = result["settings"]
    one, many = settings["one"], settings["many"]
    parts = [key for key in result["sizes"][0]["memory_bytes"] if key not in ("rss_delta", f"per_{one}")]
    columns = (
        "ms",
        "p10-p90",
        f"µs/{one}",
        "steps/s",
        *(f"of {part}" for part in parts),
        "RSS +",
    )
    view = table(f"Fledge alone, {settings['threads']} threads, ms a {settings['call']}; memory in MiB", many, *columns)
    for row in result["sizes"]:
        memory = [f"{row['memory_bytes'][key] / 2**20:.1f}" for key in (*parts, "rss_delta")]
        times = [three_digits(row[key]) for key in ("median_ms", "p10_ms", "p90_ms", f"us_per_{one}_step")]
        speed = f"{row['env_steps_per_second']:,}"
        view.add_row(f"{row['num_envs']:,}", times[0], f"{times[1]}-{times[2]}", times[3], speed, *memory)
    return view
