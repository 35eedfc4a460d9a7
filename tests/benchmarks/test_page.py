"""Frame rates and memory of the browser app: the figures' own arithmetic; the slow one is the real thing, for a moment."""

from __future__ import annotations

import math
import os
import shutil

import pytest

from benchmarks import page, served
from fledge.core.errors import ConfigError


def test_growth_is_that_of_the_second_half() -> None:
    rows = [{"minutes": k / 2, "server_mb": 100.0 + (50 - 10 * k if k < 5 else 2 * k)} for k in range(10)]
    assert page.growth(rows, "server_mb") == pytest.approx(4.0)
    assert page.growth(rows[:4], "server_mb") is None


def test_a_process_has_memory_and_one_that_is_gone_has_none() -> None:
    assert served.memory_mb(os.getpid()) > 5
    assert math.isnan(served.memory_mb(2**22 + 1))


def test_a_machine_without_chromium_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="chromium-driver"), served.chromium():
        pass


def test_an_app_that_does_not_start_says_why() -> None:
    with pytest.raises(ConfigError, match=r"There is no nothing\.frec"):
        served.Served("replay", "nothing.frec")


def test_figures_are_lines_for_people() -> None:
    found = {"frames_per_second": 31.0, "longest_ms": 90.0, "drawn_per_second": 30.0}
    crowd = {**found, "drones": 64, "obstacles": 500, "pixels": [900, 600]}
    row = {"minutes": 0.5, "server_mb": 500.0, "page_mb": 20.0, "elements": 300, "frames_per_second": 12.0}
    memory = {"rows": [row], "growth_mb_per_minute": {"server_mb": None, "page_mb": 0.1}}
    result = {"machine": {"load_average": 0.1}, "crowd": crowd, "fight": {**found, "graphs_per_second": 5.0}}
    lines = "\n".join(page.render({**result, "memory": memory}))
    assert "500 obstacles and 64 drones in 900 x 600 pixels" in lines
    assert "500.0" in lines


@pytest.mark.slow
def test_pages_move_and_memory_is_followed() -> None:
    pytest.importorskip("nicegui")
    pytest.importorskip("selenium")
    if shutil.which("chromedriver") is None:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    result = page.run(lambda text: None, seconds=1.0, minutes=0.1, every=2.0)
    assert result["crowd"]["drones"] == 64
    assert result["fight"]["frames_per_second"] > 1
    assert result["memory"]["rows"][0]["page_mb"] > 1
