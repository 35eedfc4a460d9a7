"""What `fledge inspect` shows: a checkpoint or a policy by path or name, a run by its folder, or a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fledge.core.config_help import written
from fledge.core.errors import ConfigError, FledgeError
from fledge.core.settings import flat_settings
from fledge.evaluation.recordings import describe_recording, means_recording, render_recording
from fledge.storage import CheckpointHistory, inspect_checkpoint, load_checkpoint
from fledge.tasks.policy_loader import find_policy_file
from fledge.tasks.registry import find_named_task
from fledge.training.config import config_class

# entries of our checkpoints; other files may have anything under these names
FACTS: dict[str, Any] = {"task": str, "iteration": int, "frames": int, "seconds": (int, float)}
FACTS |= dict.fromkeys(("policy", "world", "config"), dict)
MOST_VALUES, LONGEST = 40, 100  # lines, and characters of one


def inspect_target(name: str) -> dict[str, Any]:
    """Describe a file, recording, shipped policy or run's newest checkpoint, JSON-able; ConfigError if a folder is no run."""
    path = find_policy_file(name) or Path(name)
    if means_recording(path):
        return describe_recording(path)
    if not path.is_dir():
        return describe_file(path)
    entries = CheckpointHistory(path / "checkpoints").entries() if (path / "checkpoints").is_dir() else []
    if not entries:
        raise ConfigError(f"{path} holds no checkpoints: give a run, a checkpoint, or a shipped policy's name.")
    rows = [
        {"file": e.path.name, "step": e.step, "metric": e.metric, "whole": not e.weights_only, "bytes": e.bytes}
        for e in entries
    ]
    return {"run": str(path), "checkpoints": rows, **describe_file(entries[-1].path)}


def describe_file(path: Path) -> dict[str, Any]:
    """Describe a checkpoint: its entries and its metadata."""
    found = inspect_checkpoint(path)
    state = load_checkpoint(path, keys=[f"{fact}?" for fact in FACTS])
    note: Any = found["metadata"].get("history") or {}
    told = {key: note[key] for key in ("step", "metric") if note.get(key) is not None}
    return {**told, **{k: state[k] for k, kind in FACTS.items() if isinstance(state.get(k), kind)}, **found}


def render(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of text. Names are never shortened."""
    if "recording" in found:
        yield from render_recording(found)
        return
    head = [f"{found['path']}: {found['format']}, {found['file_bytes']:,} bytes"]
    head += [f"{key} {found[key]}" for key in ("task", "step") if key in found]
    head += [f"metric {found['metric']:.4g}"] if "metric" in found else []
    if "frames" in found:
        head.append(f"{found['frames']:,} decisions in {found.get('seconds', 0.0) / 60:.1f} minutes")
    yield ", ".join(head)
    if "policy" in found:
        yield f"policy: {', '.join(f'{key}={value}' for key, value in found['policy'].items())}"
    if settings := changed_from_defaults(found):
        yield "settings that are not the defaults:"
        yield from (f"  {key}={written(value)}" for key, value in settings.items())
    if "checkpoints" in found:
        rows = [(c["file"], str(c["step"]), number(c["metric"]), "whole" if c["whole"] else "weights", f"{c['bytes']:,}")
                for c in found["checkpoints"]]  # fmt: skip
        yield ""
        yield from columns([("checkpoint", "step", "metric", "holds", "bytes"), *rows])
    yield from values("metadata", {key: value for key, value in found["metadata"].items() if key != "history"})
    yield from values("values", {k: v for k, v in found["values"].items() if k.split("/")[0] not in FACTS})
    tensors = [
        (row["name"], row["dtype"], "x".join(map(str, row["shape"])) or "scalar", number(row["bytes"]),
         number(row["stored"]), row["codec"])
        for row in found["tensors"]
    ]  # fmt: skip
    yield ""
    yield from columns([("tensor", "type", "shape", "bytes", "stored", "codec"), *tensors])


def values(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield plain values, one per line; shorten long ones, and leave out the last of many."""
    if found:
        yield f"{title}:"
    for key, value in list(found.items())[:MOST_VALUES]:
        text = repr(value)
        yield f"  {key} = {text if len(text) <= LONGEST else f'{text[:LONGEST]}... ({len(text)} characters)'}"
    if len(found) > MOST_VALUES:
        yield f"  ... and {len(found) - MOST_VALUES} more: --json shows all"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows of text in aligned columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def changed_from_defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run or a policy's env that differ from the task's defaults; all if the task is code."""
    world = {f"env.{key}": value for key, value in (found.get("world") or {}).get("env", {}).items()}
    settings = dict(found.get("config") or world)
    try:
        task = find_named_task(str(found.get("task")))
    except FledgeError:
        return settings
    defaults = flat_settings(config_class(task)())
    return {key: value for key, value in settings.items() if key not in defaults or defaults[key] != value}
