"""Checks of learners: what they can train, and what they return, as a user's own may break the contract of `learn/base.py`."""

from __future__ import annotations

import math
import sysconfig
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fledge
from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError, InputError, NumericsError
from fledge.learn.base import Learner
from fledge.learn.registry import ALGORITHMS

SHOW_ALL = "On the command line, --debug shows the traceback."

# number of the rounding that this version trains with, part of a saved state; states of versions before have none
ROUNDING = 2
OTHER_ROUNDING = (
    "An earlier version saved it: losses, linear layers, NavRL's LiDAR encoder and the LiDAR of env.world round differently "
    "since then, so the continuation is not bit for bit what that version would have computed."
)


def check_recurrent(policy: BaseAgent, learner: type[Learner], algo: str, is_compiled: bool) -> None:
    """Raise ConfigError if a policy is recurrent, and the learner cannot train that or the policy is to be compiled."""
    if policy.hidden_size and not learner.supports_recurrent:
        raise ConfigError(
            f"algo={algo} does not train recurrent policies (its Learner.supports_recurrent is False): set "
            "policy.gru_size=0, or use algo=ppo."
        )
    if policy.hidden_size and is_compiled:
        raise ConfigError(
            f"compile=true does not work with a recurrent policy: leave it out, or set policy.gru_size=0 (it is "
            f"{policy.hidden_size})."
        )


def check_auto(auto: Collection[str], algo: str, off_policy: bool, final_scale: float) -> None:
    """Raise ConfigError if a size is auto that the algorithm, or ppo.minibatch_final_scale, does not allow to change."""
    if "ppo.minibatch" in auto and algo != "ppo":
        raise ConfigError(f"ppo.minibatch=auto works only with algo=ppo, but algo={algo}: leave it out.")
    if "ppo.minibatch" in auto and final_scale != 1.0:
        raise ConfigError(
            f"ppo.minibatch_final_scale={final_scale:g} and ppo.minibatch=auto both change the minibatch: "
            "leave one of them out."
        )
    if off_policy and auto:
        raise ConfigError(
            "env.num_envs=auto works only with on-policy algorithms such as ppo, as a replay buffer keeps the order of each "
            f"env: with algo={algo}, set a number."
        )


def check_state(state: Any, what: str, reserved: Collection[str] = ()) -> dict[str, Any]:
    """Return a learner's state; raise InputError if it is not a dict, or has an entry with a reserved name.

    Args:
        what: Method that returned the state, for the error.
        reserved: Names that the run uses itself.
    """
    if not isinstance(state, dict) or (taken := [name for name in reserved if name in state]):
        got = (
            f"has the entries {', '.join(taken)}, whose names the run uses itself: rename them"
            if isinstance(state, dict)
            else f"returned a {type(state).__name__}, but must return a dict"
        )
        raise InputError(f"{what} {got}.")
    return state


def check_weights(policy: nn.Module, algo: str, iteration: int) -> None:
    """Raise NumericsError if a policy has NaN or infinite weights, which must not replace a good checkpoint."""
    if bad := [name for name, weight in policy.named_parameters() if not bool(torch.isfinite(weight).all())]:
        raise NumericsError(
            f"NaN or infinity in the weights {', '.join(bad[:3])} after iteration {iteration} with algo={algo}. They were "
            "not saved; resume from the newest checkpoint, with a smaller learning rate or corrected code."
        )


def learner_error(algo: str, error: Exception) -> Exception:
    """Return the error to raise if a learner fails: an InputError for a user's algorithm, `error` itself for Fledge's."""
    if algo in ALGORITHMS:
        return error
    return InputError(f"algo={algo} failed{place_of(error)}: {type(error).__name__}: {error}. {SHOW_ALL}")


def place_of(error: Exception) -> str:
    """Return " in FILE, line N" for the last line of the user's code in an error's traceback; "" if there is none."""
    ours = (str(Path(fledge.__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith((*ours, "<"))]
    return f" in {lines[-1].filename}, line {lines[-1].lineno}" if lines else ""


def check_report(losses: Any, algo: str, reserved: set[str]) -> dict[str, float]:
    """Return a learner's metrics as floats; raise InputError or NumericsError if they break `Learner.update`'s contract."""
    if not isinstance(losses, Mapping) or not all(isinstance(name, str) for name in losses):
        got = "a dict with other keys" if isinstance(losses, Mapping) else f"a {type(losses).__name__}"
        raise InputError(f"update() of algo={algo} must return a dict of numbers by name (str), but returned {got}.")
    if taken := reserved & set(losses):
        raise InputError(
            f"update() of algo={algo} returned the metrics {', '.join(sorted(taken))}, which the run logs itself: rename them."
        )
    try:
        report = {name: float(value) for name, value in losses.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"update() of algo={algo} must return one number for each name: {error}.") from error
    if bad := [name for name, value in report.items() if not math.isfinite(value)]:
        raise NumericsError(
            f"NaN or infinity in the metrics {', '.join(bad)} while learning with algo={algo}: lower the learning "
            "rate, or look for very large rewards and observations."
        )
    return report
