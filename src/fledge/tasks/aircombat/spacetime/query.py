"""Ranges, time to decide and predicted misses of one geometry, from `key=value` overrides: what `fledge envelope` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.core.settings import check_settings, setting
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.spacetime.build import OWN, TARGET

ALIASES = {"load_limits": "env.load_limits", "dt_s": "env.dt_s"}


@dataclass
class EnvelopeConfig:
    """A shooter and a target."""

    own_speed: float = setting(300.0, at_least=OWN[0], at_most=OWN[-1])
    """Speed of the shooter, m/s."""
    target_speed: float = setting(300.0, at_least=TARGET[0], at_most=TARGET[-1])
    """Speed of the target, m/s."""
    aspect_deg: float = setting(0.0, at_least=-360, at_most=360)
    """Angle from the target's nose to the shooter, left positive: 0 comes nose-on, 180 is a tail chase."""
    off_boresight_deg: float = setting(0.0, at_least=-360, at_most=360)
    """Angle from the shooter's nose to the target, left positive."""
    range_m: float = setting(30_000.0, above=0, at_most=1_000_000)
    """Distance, m, for the time to decide, the predicted misses, and the picture of time over ground."""
    env: AircombatConfig = field(default_factory=AircombatConfig)

    @property
    def geometry(self) -> dict[str, Any]:
        """Speeds and angles, as `Envelope` takes them."""
        names = ("own_speed", "target_speed", "off_boresight_deg", "aspect_deg")
        return {name: getattr(self, name) for name in names}


def read_overrides(overrides: Sequence[str]) -> EnvelopeConfig:
    """Return the settings of `key=value` overrides."""
    if bare := [word for word in overrides if "=" not in word]:
        raise ConfigError(f"{bare[0]!r} is not understood: write key=value, for example own_speed=300.")
    try:
        cfg = build_config(EnvelopeConfig, [], overrides, ALIASES)
    except ConfigError as error:
        where = "`fledge envelope --help` and, of env., `fledge train aircombat --help-config` list"
        raise ConfigError(str(error).replace("`--help-config` lists", where)) from None
    check_settings(cfg)
    return cfg


def query_envelope(overrides: Sequence[str], picture: Path | None = None) -> dict[str, Any]:
    """Return the figures of one geometry, by fly-outs (no table is needed), and draw it to `picture`."""
    from fledge.tasks.aircombat.spacetime.envelope import Envelope
    from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre

    cfg = read_overrides(overrides)
    geometry = cfg.geometry
    with Envelope(cfg.env) as envelope:
        found = {name: float(value) for name, value in envelope.solve(**geometry).items()}
        seconds = float(envelope.time_to_decide(cfg.range_m, **geometry))
        answer: dict[str, Any] = {**geometry, "range_m": cfg.range_m, "load_limits": cfg.env.load_limits, **found}
        answer["time_to_decide_s"] = seconds if math.isfinite(seconds) else None
        for name, manoeuvre in (("hold", Manoeuvre.HOLD), ("turn_away", Manoeuvre.AWAY)):
            shot = envelope.fly(cfg.range_m, manoeuvre, **geometry)
            answer[f"miss_{name}_m"] = float(shot["miss_m"])
            answer[f"kills_{name}"] = bool(shot["killed"])
            answer[f"flight_{name}_s"] = float(shot["time_s"])
        if picture is not None:
            from fledge.tasks.aircombat.spacetime.picture import save_picture

            save_picture(cfg, envelope, answer, picture)
            answer["picture"] = str(picture)
    return answer


def check_envelope(overrides: Sequence[str], count: int, on_progress: Callable[[int], None]) -> dict[str, Any]:
    """Return the errors of the table over `count` random geometries."""
    from fledge.tasks.aircombat.spacetime.check import check_table
    from fledge.tasks.aircombat.spacetime.envelope import Envelope

    with Envelope(read_overrides(overrides).env) as envelope:
        return check_table(envelope, count, on_progress=on_progress)
