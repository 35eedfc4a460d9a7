"""Sizes of models, and names of their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def format_checkpoint_name(
    iteration: int | str, prefix: str = "checkpoint", extension: str = ".pt", width: int = 0
) -> str:
    """Return a file name such as `checkpoint_1000.pt` or `checkpoint_final.pt`.

    Args:
        iteration: A number, or a word such as "final".
        width: Number of digits to which zeros pad the number, so that file names sort by number.
    """
    label = f"{iteration:0{width}d}" if isinstance(iteration, int) else str(iteration)
    if not label or "/" in label or "\\" in label or (isinstance(iteration, int) and iteration < 0):
        raise InputError(
            f"iteration is {iteration!r}, but must be a whole number of at least 0, or a word without / and \\, such as "
            "final: it becomes part of a file name."
        )
    return f"{prefix}_{label}{extension}"


def get_model_size(model: nn.Module) -> dict[str, float]:
    """Return the numbers of parameters, trainable parameters and buffer values, and the size of all in bytes and MB."""
    parameters, buffers = list(model.parameters()), list(model.buffers())
    size = sum(tensor.nbytes for tensor in (*parameters, *buffers))
    return {
        "parameters": sum(tensor.numel() for tensor in parameters),
        "trainable": sum(tensor.numel() for tensor in parameters if tensor.requires_grad),
        "buffers": sum(tensor.numel() for tensor in buffers),
        "bytes": size,
        "megabytes": size / 1e6,
    }


def print_model_info(model: nn.Module, name: str | None = None) -> str:
    """Print the size of a model and of each of its direct children; return the text."""
    size = get_model_size(model)
    lines = [
        f"{name or type(model).__name__}: {size['parameters']:,} parameters ({size['trainable']:,} trainable), "
        f"{size['buffers']:,} buffer values, {size['megabytes']:.2f} MB"
    ]
    for child_name, child in model.named_children():
        part = get_model_size(child)
        lines.append(f"  {child_name} ({type(child).__name__}): {part['parameters']:,}, {part['megabytes']:.2f} MB")
    text = "\n".join(lines)
    print(text)
    return text
