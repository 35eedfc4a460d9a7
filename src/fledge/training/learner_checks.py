"""Checks of what a learner returns: a user's own may break the contract of `learn/base.py`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from fledge.core.errors import InputError, NumericsError
from fledge.learn.registry import ALGORITHMS


def check_state(state: Any, what: str, reserved: Collection[str] = ()) -> dict[str, Any]:
    """Return a learner's state; raise InputError unless it is a dict without names that the run uses itself."""
    if not isinstance(state, dict) or (taken := [name for name in reserved if name in state]):
        got = (
            f"has {', '.join(taken)}, which the run uses itself"
            if isinstance(state, dict)
            else f"is {type(state).__name__}"
        )
        raise InputError(f"{what} {got}: return a dict with other names.")
    return state


def check_weights(policy: nn.Module, algo: str, iteration: int) -> None:
    """Raise NumericsError if a policy has weights that are not finite: they must not replace a checkpoint that is."""
    if bad := [name for name, weight in policy.named_parameters() if not bool(torch.isfinite(weight).all())]:
        raise NumericsError(
            f"NaN or infinity in the weights {', '.join(bad[:3])} after iteration {iteration} with algo={algo}. They were "
            "not saved; resume from the newest checkpoint, with a smaller learning rate or corrected code."
        )


def learner_error(algo: str, error: Exception) -> Exception:
    """Return the error to raise where a learner failed: one sentence for a user's own, the error itself for ours."""
    if algo in ALGORITHMS:
        return error
    where = [line for line in traceback.extract_tb(error.__traceback__) if line.filename in algo]
    at = f" in {where[-1].filename}, line {where[-1].lineno}" if where else ""
    return InputError(f"algo={algo} failed{at}: {type(error).__name__}: {error}. `fledge --debug` shows all.")


def check_report(losses: Any, algo: str, reserved: set[str]) -> dict[str, float]:
    """Return a learner's metrics as floats; raise where they break the contract of `Learner.update`."""
    if not isinstance(losses, Mapping) or not all(isinstance(name, str) for name in losses):
        raise InputError(f"update() of algo={algo} must return metrics by name, but returned {type(losses).__name__}.")
    if taken := reserved & set(losses):
        raise InputError(
            f"update() of algo={algo} returned {', '.join(sorted(taken))}, which the run logs itself: rename."
        )
    try:
        report = {name: float(value) for name, value in losses.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"update() of algo={algo} must return one number per name: {error}.") from error
    if bad := [name for name, value in report.items() if not math.isfinite(value)]:
        raise NumericsError(f"NaN or infinity in {', '.join(bad)} while learning with algo={algo}.")
    return report
