"""Devices by the names that users of a GPU have in their scripts."""

from __future__ import annotations

import torch


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device; the CPU, with a printed sentence, if it is a CUDA device and PyTorch sees none."""
    if str(device) == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        print(f"[Warning] device={wanted}, but PyTorch sees no CUDA device here: using the CPU.", flush=True)
        return torch.device("cpu")
    return wanted
