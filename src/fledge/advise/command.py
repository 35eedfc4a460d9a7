"""`fledge advise`: measure, decide, print and draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fledge.advise.decide import decide
from fledge.advise.measure import measure
from fledge.advise.render import render, save_plot, settings_line
from fledge.core.errors import ConfigError
from fledge.core.terminal import doing, make_console, say
from fledge.training.config import TrainConfig, make_config


def advise(
    cfg: TrainConfig, budget: float = 0.02, seconds: float = 60.0, on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Return the measured figures and the decisions that follow from them; JSON-able.

    Args:
        cfg: The training run to advise on (PPO).
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


def run_advise(
    tasks: Sequence[str],
    preset: str | None,
    overrides: Sequence[str],
    budget: float,
    seconds: float,
    picture: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Advise on the training that `fledge train` with the same arguments runs; print (unless quiet) and draw the result."""
    if len(tasks) > 1:
        raise ConfigError(f"Name one task to advise on, not {' and '.join(tasks)}.")
    cfg = make_config(tasks[0] if tasks else "navigation", preset, overrides)
    if picture and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise ConfigError(f"{picture} cannot be written: give a .png in a folder that exists.")
    errors, console = make_console(stderr=True), make_console()
    with doing(errors, "advise") as on_progress:
        result = advise(cfg, budget, seconds, on_progress)
    if picture:
        save_plot(result, picture)
        say(errors, f"picture: {picture}")
    if not quiet:
        console.print(*render(result), sep="\n")
        console.print(settings_line(result), soft_wrap=True)
    return result
