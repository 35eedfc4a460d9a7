"""Dumps of the NaN guard: files with everything that is needed to repeat one step, as plain arrays and JSON, without code."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.core.errors import FormatError
from fledge.core.overrides import from_plain, to_plain
from fledge.envs.base import Action


def save_dump(path: Path, cfg: Any, state: Mapping[str, Any], action: Action) -> None:
    """Write a dump, from which one step can be repeated: the config, the state before the step, and the action."""
    arrays: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    for name, value in state.items():
        if not isinstance(value, Mapping):
            scalars[name] = value
            continue
        scalars[name] = {k: v for k, v in value.items() if not isinstance(v, torch.Tensor)}
        arrays |= {f"{name}.{k}": v.cpu().numpy() for k, v in value.items() if isinstance(v, torch.Tensor)}
    parts = {"": action} if isinstance(action, torch.Tensor) else dict(action.items())
    arrays |= {f"action.{k}": v.cpu().numpy() for k, v in parts.items()}
    meta = json.dumps({"config": to_plain(cfg), "state": scalars}).encode()
    arrays["meta"] = np.frombuffer(meta, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def load_dump(path: str | Path, kind: type) -> tuple[Any, dict[str, Any], Action]:
    """Return the config (of class `kind`), the state before the step, and the action of a dump."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {k: file[k] for k in file.files}
        meta = json.loads(bytes(arrays.pop("meta")))
        cfg: Any = from_plain(kind, meta["config"])
        state: dict[str, Any] = dict(meta["state"])
        action: dict[str, torch.Tensor] = {}
        for name, array in arrays.items():
            part, key = name.split(".", 1)
            (action if part == "action" else state[part])[key] = torch.as_tensor(array)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(
            f"{path} is not a dump of the NaN guard, or is damaged ({error}): use another file."
        ) from error
    return cfg, state, action[""] if set(action) == {""} else action
