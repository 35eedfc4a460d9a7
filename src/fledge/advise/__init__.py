"""`fledge advise`: should I compress, archive, pipeline, and how often save? Measured on this machine, with this config.

    measured = measure(cfg, ...)          what each thing costs and gains here
    decided = decide(measured, budget)    a pure function of those numbers

The three schemes for rollouts: A, none, training is untouched; B, chosen ones are archived on disk; C, their LiDAR lives
compressed in memory. Checkpoints are compressed or not beside each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fledge.advise.decide import decide
from fledge.advise.measure import measure
from fledge.advise.plot import save_plot
from fledge.advise.render import config_line, render, settings_line
from fledge.core.errors import ConfigError
from fledge.train.config import TrainConfig

__all__ = ["advise", "config_line", "decide", "measure", "render", "save_plot", "settings_line"]


def advise(
    cfg: TrainConfig,
    budget: float = 0.02,
    seconds: float = 60.0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return what was measured and what follows from it; JSON-able.

    Args:
        cfg: The training to advise on (PPO).
        budget: Share of training time that saving may cost, for checkpoints and for archives each.
        seconds: Time to spend on comparing the ways to collect; the whole takes about twice as long.
        on_progress: Called with a line before each part.
    """
    if not 0 < budget < 1:
        raise ConfigError(f"budget is {budget}, but must lie between 0 and 1: the share of time that saving may cost.")
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}, but must be greater than 0.")
    measured = measure(cfg, seconds, on_progress or (lambda line: None))
    return {"budget": budget, "measured": measured, **decide(measured, budget)}
