"""Descriptions for `fledge inspect`: a run, a checkpoint, a policy, a rollout archive or a recording, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.core.config_help import written
from fledge.core.errors import ConfigError, FledgeError, FormatError
from fledge.core.settings import flat_settings
from fledge.core.terminal import duration
from fledge.evaluation.recordings import describe_recording, means_recording, render_recording
from fledge.evaluation.run_info import machine_text, read_run_info
from fledge.storage import CheckpointHistory, inspect_checkpoint, load_checkpoint
from fledge.storage.checkpoint import NUMBERED
from fledge.storage.contents import complete_members
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import find_policy_file
from fledge.tasks.registry import find_named_task
from fledge.training.config import TrainConfig, config_class

# entries of our checkpoints; other files may have anything under these names
FACTS: dict[str, Any] = {"task": str, "iteration": int, "frames": int, "seconds": (int, float)}
FACTS |= dict.fromkeys(("policy", "world", "config"), dict)
PARTS = ("env", "policy", "curriculum", "algo_config")  # settings whose defaults only the task's code knows
FEW, LONGEST = 40, 100  # rows that are listed without --all, and characters of a value


def inspect_target(name: str, task: Task | None = None, verify: bool = False) -> dict[str, Any]:
    """Return a JSON-able description of a file, a recording, a shipped policy, a run, or a folder of checkpoints.

    Args:
        name: Path of a file or folder, or name of a shipped policy.
        task: The task. Pass it if it is your own code, so that settings can be compared with its defaults.
        verify: Read every tensor of the file, or of a folder's newest checkpoint, and list the damaged ones.

    Raises:
        ConfigError: The folder holds no checkpoints.
    """
    path = find_policy_file(name) or Path(name)
    if means_recording(path):
        return describe_recording(path)
    if not path.is_dir():
        return describe_file(path, task, verify)
    if not (path / "checkpoints").is_dir() and path.name == "checkpoints" and (path.parent / "config.yaml").is_file():
        path = path.parent
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    names = [NUMBERED.fullmatch(file.name) for file in folder.glob("*.fledge")]
    histories = [
        CheckpointHistory(folder, prefix=prefix) for prefix in sorted({found["prefix"] for found in names if found})
    ]
    entries = [entry for history in histories for entry in history.entries()]
    damaged = [row for history in histories for row in history.unreadable()]
    if not entries and not damaged:
        raise ConfigError(f"{path} holds no checkpoints: pass a run, a checkpoint, or a shipped policy's name.")
    rows: list[dict[str, Any]] = [
        {"file": e.path.name, "step": e.step, "metric": e.metric, "whole": not e.weights_only, "bytes": e.bytes}
        for e in entries
    ]
    listed = {"run": str(path), "checkpoints": rows, "unreadable": dict(damaged)}
    if not entries:
        return listed
    started, found = read_run_info(path), describe_file(entries[-1].path, task, verify)
    if isinstance(started.get("changed"), dict) and found.pop("unknown", None):
        found["changed"] = started["changed"]  # compared by the run itself, which knew its code
    return {**listed, "started": started, **found}


def describe_file(path: Path, task: Task | None = None, verify: bool = False) -> dict[str, Any]:
    """Return a description of a checkpoint file: its entries and its metadata.

    If the file is truncated, return the error and the entries that are complete.
    """
    try:
        found = inspect_checkpoint(path, verify)
    except FormatError as error:
        whole = complete_members(path) if path.suffix == ".fledge" and path.is_file() else []
        if not whole:
            raise
        return {"path": str(path), "unreadable": {path.name: str(error)}, "complete": whole}
    state = {} if found["damaged"] else load_checkpoint(path, keys=[f"{fact}?" for fact in FACTS])
    note: Any = found["metadata"].get("history") or {}
    told = {key: note[key] for key in ("step", "metric") if note.get(key) is not None}
    told |= {k: state[k] for k, kind in FACTS.items() if isinstance(state.get(k), kind)}
    return {**told, **changed_from_defaults(told, task), **found}


def changed_from_defaults(found: Mapping[str, Any], task: Task | None = None) -> dict[str, Any]:
    """Return {"changed": the settings of a run, or of a policy's env, that differ from the defaults}.

    If the task is a user's code that was not passed, it is not run: the settings whose defaults are in that code are
    then returned under "unknown".
    """
    world = {f"env.{key}": value for key, value in (found.get("world") or {}).get("env", {}).items()}
    settings = dict(found.get("config") or world)
    if not settings:
        return {}
    try:
        task = task or find_named_task(str(found.get("task")))
    except FledgeError:
        task = None
    defaults = flat_settings(TrainConfig() if task is None else config_class(task)())
    defaults |= {"task": settings.get("task"), "device": settings.get("device")}  # printed elsewhere; auto is resolved
    own = [key for key in settings if task is None and key.partition(".")[0] in PARTS]
    changed = {k: v for k, v in settings.items() if k not in own and (k not in defaults or defaults[k] != v)}
    return {"changed": changed, **({"unknown": {key: settings[key] for key in own}} if own else {})}


# ---- as text ---------------------------------------------------------------------------------------------------------


def render(found: Mapping[str, Any], everything: bool = False) -> Iterator[str]:
    """Yield a description as lines of text, about one screen.

    Args:
        everything: List every tensor and plain value, however many there are.
    """
    if "recording" in found:
        yield from render_recording(found)
        return
    if "metadata" in found:
        yield from headlines(found)
    for title, key in (
        ("settings that differ from the defaults:", "changed"),
        (
            f"settings of the task, whose defaults are in its code (--task {found.get('task')} compares them):",
            "unknown",
        ),
    ):
        if found.get(key):
            yield ""
            yield title
            yield from wrapped(f"{name}={written(value)}" for name, value in found[key].items())
    if found.get("checkpoints"):
        rows = [(c["file"], str(c["step"]), number(c["metric"]), "everything" if c["whole"] else "weights", f"{c['bytes']:,}")
                for c in found["checkpoints"]]  # fmt: skip
        yield ""
        yield from columns([("checkpoint", "step", "metric", "holds", "bytes"), *rows])
    for name, reason in found.get("unreadable", {}).items():
        yield f"{name} cannot be read: {reason}"
    for row in found.get("complete", ()):
        yield f"  {row['name']}: {row['stored']:,} bytes, complete, but not loadable without the end of the file"
    if "metadata" not in found:
        return
    yield from contents(found, everything)
    yield ""
    if found["damaged"] is None:
        yield "The tensors were not read and may be damaged: --verify checks them."
    for name, reason in (found["damaged"] or {}).items():
        yield f"damaged tensor {name}: {reason}"


def headlines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first lines: what the file is, how long it was trained, how the run was started, and its policy."""
    if "run" in found:
        what = f"run of the task {found['task']}" if "task" in found else "folder of checkpoints"
        yield f"{found['run']}: {what}; its newest checkpoint is {Path(found['path']).name}"
    else:
        yield f"{found['path']}: {kind_of(found)}, {found['format']} format, {found['file_bytes']:,} bytes"
    if "frames" in found:
        step = f" ({found['step']} iterations)" if "step" in found else ""
        metric = f", primary metric in training {found['metric']:.3f}" if "metric" in found else ""
        yield f"trained: {found['frames']:,} decisions in {duration(found.get('seconds', 0.0))}{step}{metric}"
    started = found.get("started") or {}
    if started.get("command"):
        named = not started.get("preset") or "--preset" in started["command"]
        preset = "" if named else f" (preset {started['preset']})"
        yield f"command: {started['command']}{preset}"
        yield f"machine: {machine_text(started)}, started {started.get('started', '?')}"
    if "policy" in found:
        yield f"policy: {policy_text(found['policy'])}"


def kind_of(found: Mapping[str, Any]) -> str:
    """Return what a file is: a rollout, a policy, a checkpoint of a task, or a checkpoint of another program."""
    of_task = f" of the task {found['task']}" if "task" in found else ""
    if "rollout" in found["metadata"]:
        shape = "x".join(map(str, found["values"].get("batch", ())))
        return f"rollout of iteration {found['metadata']['rollout'].get('iteration')}, {shape} (steps x envs)"
    return ("checkpoint" if "frames" in found or not of_task else "policy") + of_task


def policy_text(policy: Mapping[str, Any]) -> str:
    """Return a policy's description on one line; tensor specs are shown as their shapes."""
    return ", ".join(f"{key}={spec_text(value)}" for key, value in policy.items())


def spec_text(value: Any) -> str:
    if isinstance(value, Mapping) and isinstance(value.get("entries"), Mapping):
        return " ".join(f"{name}{spec_text(part)}" for name, part in value["entries"].items())
    if isinstance(value, Mapping) and "shape" in value:
        return str(value["shape"])
    return written(value) if not isinstance(value, Mapping) else "{" + policy_text(value) + "}"


def contents(found: Mapping[str, Any], everything: bool) -> Iterator[str]:
    """Yield lines on the metadata, plain values and tensors.

    Many entries are grouped by the first part of their names, one line per group, unless `everything` is set.
    """
    metadata = {key: value for key, value in found["metadata"].items() if key not in ("history", "rollout") and value}
    plain = {k: v for k, v in found["values"].items() if k.split("/")[0] not in FACTS}
    if "rollout" in found["metadata"]:  # the shape is in the first line
        plain = {k: v for k, v in plain.items() if k.split("/")[-1] not in ("batch", "names")}
    few = everything or len(metadata) + len(plain) + len(found["tensors"]) <= FEW
    yield from values("metadata", metadata)
    if not few:
        yield ""
        yield from columns([("holds", "tensors", "values", "bytes", "stored"), *groups(found["tensors"], plain)])
        yield "--all lists every tensor and value."
        return
    yield from values("values", plain)
    tensors = [
        (row["name"], row["dtype"], "x".join(map(str, row["shape"])) or "scalar", number(row["bytes"]),
         number(row["stored"]), row["codec"])
        for row in found["tensors"]
    ]  # fmt: skip
    yield ""
    yield from columns([("tensor", "type", "shape", "bytes", "stored", "codec"), *tensors])


def groups(tensors: Sequence[Mapping[str, Any]], plain: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each group of entries whose names begin alike: name, tensors, plain values, bytes, stored bytes."""
    first = [row["name"].split("/")[0] for row in tensors]
    for name in dict.fromkeys([*first, *(key.split("/")[0] for key in plain)]):
        mine = [row for row, group in zip(tensors, first, strict=True) if group == name]
        count = sum(key.split("/")[0] == name for key in plain)
        yield (
            name,
            str(len(mine)),
            str(count),
            number(sum(r["bytes"] for r in mine)),
            number(sum(r["stored"] for r in mine)),
        )


def wrapped(words: Iterator[str], width: int = 78) -> Iterator[str]:
    """Yield words in indented lines of about `width` characters; no word is broken."""
    line = ""
    for word in words:
        if line and len(line) + len(word) + 2 > width:
            yield line
            line = ""
        line = f"{line}  {word}"
    yield line


def values(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a title and one line for each plain value, which is shortened if it is long."""
    if found:
        yield f"{title}:"
    for key, value in found.items():
        text = repr(value)
        yield f"  {key} = {text if len(text) <= LONGEST else f'{text[:LONGEST]}... ({len(text)} characters)'}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows of text in aligned columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
