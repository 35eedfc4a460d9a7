"""`run.json` in a run's folder: the command that started it, its preset, its machine, and its changed settings.

Nothing depends on this file: if it is missing or damaged, the run still works, and its report says less.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError, did_you_mean
from fledge.core.json_file import read_json
from fledge.core.machine import machine_info
from fledge.core.terminal import strict_json

RUN_INFO = "run.json"
KINDS: dict[str, Any] = dict.fromkeys(("command", "started", "device"), str)
KINDS |= {"preset": (str, type(None)), **dict.fromkeys(("machine", "changed", "defaults"), dict)}


def train_command(task: str, preset: str | None, overrides: Sequence[str], folder: Path) -> str:
    """Return the `fledge train` command that starts this run."""
    words = ["fledge", "train", task, *(["--preset", preset] if preset else []), *overrides, "--folder", str(folder)]
    return shlex.join(words)


def write_run_info(
    folder: Path,
    command: str,
    preset: str | None,
    changed: Mapping[str, Any],
    defaults: Mapping[str, Any],
    device: str,
) -> None:
    """Write `run.json` of a new run.

    Args:
        changed: Settings that differ from the defaults, by key.
        defaults: The defaults of those settings.
    """
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    found = {"command": command, "preset": preset, "started": started, "device": device_name(device)}
    _write(
        folder / RUN_INFO, {**found, "machine": machine_info(), "changed": dict(changed), "defaults": dict(defaults)}
    )


def update_run_info(folder: Path, changed: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Update the changed settings in `run.json` of a resumed run; its other entries still describe the start."""
    if found := read_run_info(folder):
        _write(folder / RUN_INFO, {**found, "changed": dict(changed), "defaults": dict(defaults)})


def _write(path: Path, found: Mapping[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(strict_json(found) + "\n", encoding="utf-8")
    new.replace(path)


def read_run_info(folder: Path) -> dict[str, Any]:
    """Return the entries of `run.json` that have the right type; empty if the file is missing or damaged."""
    found = read_json(folder / RUN_INFO)
    entries = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in entries if isinstance(value, KINDS.get(key, object))}


def device_name(device: str) -> str:
    """Return "cpu", or the name of the GPU."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device}, {torch.cuda.get_device_name(device)}"


def machine_text(info: Mapping[str, Any]) -> str:
    """Return one line about the machine of a run; "" if it is not known."""
    machine = info.get("machine")
    if not isinstance(machine, Mapping):
        return ""
    parts = [str(machine.get("cpu", "")), f"{machine.get('cores', '?')} cores", f"{machine.get('memory_gib', '?')} GiB"]
    parts += [str(info["device"])] if str(info.get("device", "cpu")) != "cpu" else []
    parts += [f"{name} {machine[name]}" for name in ("torch", "warp") if machine.get(name)]
    return ", ".join(part for part in parts if part)


def config_file(run: Path) -> Path:
    """Return the config.yaml of a run; raise ConfigError if the folder is missing or is not a run."""
    path = run / "config.yaml"
    if path.is_file():
        return path
    if run.exists():
        raise ConfigError(
            f"{run} is not a run: it has no config.yaml. Give the folder that training printed at its start."
        )
    near = [str(run.parent / path.parent.name) for path in run.absolute().parent.glob("*/config.yaml")]
    hint = did_you_mean(str(run), near) or " Give the folder that training printed at its start."
    raise ConfigError(f"{run} is not a run: there is no such folder.{hint}")
