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
    """Return the measured figures and the decisions that follow from them, as a JSON-able dict.

    Args:
        cfg: The training run to advise on (PPO).
        budget: Share of training time that checkpoints may cost; archived rollouts may cost the same share again.
        seconds: Time to spend on comparing the ways to collect; all measurements take about twice as long.
        on_progress: Called with a line of text before each measurement.
    """
    if not 0 < budget < 1:
        raise ConfigError(
            f"budget is {budget}, but must be between 0 and 1: it is the share of time that saving may cost."
        )
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}, but must be greater than 0 s.")
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
    """Advise on the run that `fledge train` would start with the same task, preset and overrides; return the result.

    Print it unless `quiet`, and draw it to the file `picture` if given.
    """
    if len(tasks) > 1:
        raise ConfigError(f"{' and '.join(tasks)} were given, but the advice is for one task: name one.")
    cfg = make_config(tasks[0] if tasks else "navigation", preset, overrides)
    if picture and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise ConfigError(f"{picture} cannot be written: pass the path of a .png file in a folder that exists.")
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
