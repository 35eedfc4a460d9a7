"""`fledge envelope`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fledge.cli import main
from fledge.tasks.registry import find_task

KEYS = {
    "own_speed",
    "target_speed",
    "aspect_deg",
    "off_boresight_deg",
    "r_max_m",
    "r_tr_m",
    "r_ne_m",
    "time_to_decide_s",
}


def ask(*words: str) -> dict[str, float]:
    done = CliRunner().invoke(main, ["envelope", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_known_values_without_load_limits() -> None:
    head_on = ask("own_speed=300", "target_speed=300", "aspect_deg=0", "off_boresight_deg=0", "load_limits=false")
    assert set(head_on) >= KEYS
    assert head_on["r_max_m"] == pytest.approx(73_900, rel=0.005)
    assert head_on["r_tr_m"] == pytest.approx(17_380, rel=0.005)
    assert 0 < head_on["r_ne_m"] <= head_on["r_tr_m"]
    assert ask("aspect_deg=180", "load_limits=false")["r_max_m"] == pytest.approx(12_240, rel=0.005)


def test_ideal_guidance_is_a_setting() -> None:
    ideal = ask("load_limits=false", "env.missile.navigation=60", "env.dt_s=0.004")
    assert ideal["r_tr_m"] == pytest.approx(16_900, rel=0.005)


def test_time_to_decide_is_zero_when_it_is_too_late_and_null_if_it_never_is() -> None:
    assert ask("range_m=12000")["time_to_decide_s"] == 0
    assert ask("aspect_deg=180", "range_m=30000")["time_to_decide_s"] is None
    assert 10 < ask("range_m=30000")["time_to_decide_s"] < 25


def test_it_prints_and_plots(tmp_path: Path) -> None:
    picture = tmp_path / "envelope.png"
    done = CliRunner().invoke(main, ["envelope", "--picture", str(picture)], catch_exceptions=False)
    assert done.exit_code == 0
    for words in ("R_max", "74.1 km", "R_tr", "17.4 km", "R_ne", "time to decide"):
        assert words in done.output
    assert picture.stat().st_size > 20_000


def test_the_command_finds_its_functions_through_the_task() -> None:
    assert set(find_task("aircombat").metrics.queries()) == {"envelope", "envelope_check"}
    assert set(find_task("navigation").metrics.queries()) == {"world"}


def test_the_check_prints_figures() -> None:
    found = ask("--check", "50")
    assert found["geometries"] == 50
    assert found["false_safe_hold"] <= 0.04
    assert found["r_tr_m"]["error_p50"] < 0.02  # type: ignore[index]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("own_speed=900", "own_speed is 900.0, but must be 150 to 550."),
        ("own_speed=fast", "own_speed=fast does not fit: own_speed takes a number."),
        ("own_sped=300", "There is no setting own_sped. Did you mean own_speed?"),
        ("range_m=-1", "range_m is -1.0, but must be at most 1000000 and greater than 0."),
        ("aspect_deg=nan", "aspect_deg is nan, but must be finite and -360 to 360."),
        ("300", "'300' is not understood: write key=value, for example own_speed=300."),
        ("env.missile.burn_s=-1", "env.missile.burn_s is -1.0, but must be 0 to 1000."),
    ],
)
def test_wrong_input_is_told_in_one_sentence(word: str, sentence: str) -> None:
    done = CliRunner().invoke(main, ["envelope", word])
    assert done.exit_code == 2
    assert done.output.startswith(f"fledge: {sentence}")
    assert len(done.output.splitlines()) == 1
