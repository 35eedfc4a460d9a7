"""`fledge envelope`: one geometry, in numbers and as a picture; or the table's errors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.core.settings import check_settings, setting
from fledge.core.terminal import counting, make_console
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


def read_words(words: Sequence[str]) -> EnvelopeConfig:
    """What `key=value` words ask for."""
    if bare := [word for word in words if "=" not in word]:
        raise ConfigError(f"{bare[0]!r} is not understood: write key=value, for example own_speed=300.")
    try:
        cfg = build_config(EnvelopeConfig, [], words, ALIASES)
    except ConfigError as error:
        where = "`fledge envelope --help` and, of env., `fledge train aircombat --help-config` list"
        raise ConfigError(str(error).replace("`--help-config` lists", where)) from None
    check_settings(cfg)
    return cfg


def query(cfg: EnvelopeConfig) -> dict[str, Any]:
    """The answer for one geometry, by fly-outs: no table is needed, whatever the physics."""
    from fledge.tasks.aircombat.spacetime.envelope import Envelope
    from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre

    names = ("own_speed", "target_speed", "off_boresight_deg", "aspect_deg")
    geometry: dict[str, Any] = {name: getattr(cfg, name) for name in names}
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
    return answer


def render(answer: dict[str, Any]) -> Table:
    """The answer as a table."""
    title = (
        f"shooter {answer['own_speed']:g} m/s, target {answer['target_speed']:g} m/s, {answer['off_boresight_deg']:g}° off "
        f"boresight, aspect {answer['aspect_deg']:g}°"
    )
    shown = Table("", "", "", title=title, show_header=False)
    rows = (
        ("R_max", "r_max_m", "reaches a target that holds its course"),
        ("R_tr", "r_tr_m", "kills one that turns away and runs"),
        ("R_ne", "r_ne_m", "kills, whatever it does"),
    )
    for label, key, meaning in rows:
        shown.add_row(label, f"{answer[key] / 1000:.1f} km", meaning)
    seconds = answer["time_to_decide_s"]
    told = "never" if seconds is None else "too late" if seconds == 0 else f"{seconds:.1f} s"
    away = f"at {answer['range_m'] / 1000:g} km"
    shown.add_row("time to decide", told, f"{away}, until turning away no longer saves the target")
    for name, what in (("hold", "holds its course"), ("turn_away", "turns away")):
        hit = f"hit after {answer[f'flight_{name}_s']:.0f} s"
        miss = f"missed by {answer[f'miss_{name}_m'] / 1000:.1f} km"
        shown.add_row(f"shot {away}", hit if answer[f"kills_{name}"] else miss, f"if the target {what}")
    return shown


def run(words: Sequence[str], picture: Path | None, check: int | None, as_json: bool) -> None:
    """What the command line calls."""
    cfg = read_words(words)
    if check is not None:
        return run_check(cfg, check, as_json)
    answer = query(cfg)
    if picture is not None:
        from fledge.tasks.aircombat.spacetime.picture import save_picture

        save_picture(cfg, answer, picture)
        answer["picture"] = str(picture)
    if as_json:
        print(json.dumps(answer))
    else:
        make_console().print(render(answer))


def run_check(cfg: EnvelopeConfig, count: int, as_json: bool) -> None:
    from fledge.tasks.aircombat.spacetime import check
    from fledge.tasks.aircombat.spacetime.envelope import Envelope

    with Envelope(cfg.env) as envelope, counting(make_console(stderr=True), "brute force", count) as on_progress:
        found = check.check_table(envelope, count, on_progress=on_progress)
    if as_json:
        print(json.dumps(found))
    else:
        make_console().print(check.render(found))
