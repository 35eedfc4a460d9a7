"""Names of the presets that come with Fledge, for `--help`: read from their folders, so that no task is loaded."""

from __future__ import annotations

from pathlib import Path

TASKS = Path(__file__).parent.parent / "tasks"


def preset_list(group: str) -> str:
    """Return the names of all tasks' presets of a group ("train", "env" or "hardware"), as text."""
    found: dict[str, list[str]] = {}
    for path in sorted(TASKS.glob(f"*/presets/{group}/*.yaml")):
        found.setdefault(path.relative_to(TASKS).parts[0], []).append(path.stem)
    return "; ".join(f"for {task} {', '.join(names)}" for task, names in found.items())
