"""The picture of a soak test: memory, handles, threads and disk over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.soak.sampling import WARM_UP

COLOURS = ("#d1495b", "#1b9e5a", "#4a6fa5", "#e08e1b", "#6b4fa0", "#526070")
PANELS = {"memory_mb": "memory, MB", "handles": "open files", "threads": "threads"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the picture of a result of `run`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 10.5), layout="constrained")
    axes = figure.subplots(len(PANELS) + 2, 1, sharex=True, height_ratios=(1.2, 2.4, 1.3, 1.3, 1.3))
    rows = result["samples"]
    names = sorted((name for name in rows if name != "files"), key=lambda name: (name != "browser server", name))
    colour = dict(zip(names, COLOURS, strict=False))
    if "browser server" in rows:
        server = rows["browser server"]
        axes[0].plot(server["minute"], server["memory_mb"], color=colour["browser server"], lw=1.2)
    axes[0].set_ylabel("browser server\nalone, MB")
    for axis, (key, label) in zip(axes[1:], PANELS.items(), strict=False):
        for name in names:
            dots = {"ls": "", "marker": ".", "ms": 2} if name.startswith("killed") else {"lw": 1.2}
            axis.plot(rows[name]["minute"], rows[name][key], color=colour[name], label=name, **dots)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    if "files" in rows:
        axes[-1].plot(
            rows["files"]["minute"], rows["files"]["disk_mb"], color=COLOURS[0], lw=1.2, label="must not grow"
        )
        axes[-1].plot(rows["files"]["minute"], rows["files"]["total_mb"], color=COLOURS[5], lw=1.2,
                      label="with metrics and old weights, kept for good")  # fmt: skip
    axes[-1].set_ylabel("files, MB")
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_xlabel("minutes; grey: warm-up, not judged; red: the disk of one training is full")
    mark_phases(axes, result)
    figure.legend(*axes[1].get_legend_handles_labels(), fontsize=8, ncols=6, loc="outside lower center")
    axes[-1].legend(fontsize=8, loc="upper left")
    word = "passed" if result["passed"] else "FAILED"
    figure.suptitle(f"soak test, {result['minutes']:.1f} minutes: {word}, {sum(result['faults'].values())} faults")
    figure.savefig(path, dpi=110)


def mark_phases(axes: Any, result: dict[str, Any]) -> None:
    """Shade the warm-up, and the times at which a disk was full."""
    full = None
    spans = []
    for minute, workload, what in result["events"]:
        if workload == "full disk" and what == "full":
            full = minute
        elif workload == "full disk" and what == "free" and full is not None:
            spans.append((full, minute))
            full = None
    for axis in axes:
        axis.axvspan(0, WARM_UP * result["minutes"], color="#888888", alpha=0.13, lw=0)
        axis.grid(alpha=0.25)
        axis.margins(x=0.01)
        for begin, end in spans:
            axis.axvspan(begin, end, color="#d1495b", alpha=0.10, lw=0)
