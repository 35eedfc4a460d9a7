"""Warp on torch's stream: a GPU then runs the kernels of both in the order in which they were issued."""

from __future__ import annotations

import contextlib

import torch
import warp as wp


def on_torch_stream(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Send Warp's launches, copies and allocations of a block to torch's current stream; on the CPU, do nothing.

    Without it they go to the stream that Warp itself uses, which does not wait for streams made by torch.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    return wp.ScopedStream(wp.stream_from_torch(torch.cuda.current_stream(device)), sync_enter=False)
