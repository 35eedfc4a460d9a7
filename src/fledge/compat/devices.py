"""Resolve device names such as "cuda" and "auto" in scripts that were written for a GPU."""

from __future__ import annotations

from typing import Any

import torch


def usable_device(device: str | torch.device | None) -> Any:
    """Return the `torch.device`, or None for None; if it is CUDA and there is no GPU, print a warning and return the CPU."""
    if device is None:
        return None
    wanted = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if str(device) == "auto" else device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        print(f"[Warning] device={wanted}, but PyTorch sees no CUDA device here: using the CPU.", flush=True)
        return torch.device("cpu")
    return wanted
