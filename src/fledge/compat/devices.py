"""Device names such as "cuda" and "auto" in scripts that were written for a GPU."""

from __future__ import annotations

import torch


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device; if it is a CUDA device and PyTorch sees none, print a warning and return the CPU."""
    if str(device) == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        print(f"[Warning] device={wanted}, but PyTorch sees no CUDA device here: using the CPU.", flush=True)
        return torch.device("cpu")
    return wanted
