"""Values that the commands refuse: one sentence and exit code 2, before anything is opened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime.cli import main

ROOT = Path(__file__).parents[2]
FLY = ["fly", "FOLDER", "--mavlink", "udpin:127.0.0.1:0", "--goal", "5,0,1.5"]
SIMULATE = ["simulate", "FOLDER", "--flights", "1"]
REFUSED: dict[str, tuple[list[str], str]] = {
    **{f"a speed of {v}": ([*FLY, "--speed", v], "not a number above 0") for v in ("0", "-1", "nan", "inf", "fast")},
    **{f"a duration of {v}": ([*FLY, "--duration", v], "not a number above 0") for v in ("nan", "0", "-3")},
    "system 0": ([*FLY, "--system", "0"], "from 1 to 255"),
    "a goal outside of the fence": ([*FLY, "--fence", "box:-1,-1,0,1,1,2"], "outside of the geofence"),
    "a goal under the ground": ([*FLY, "--fence", "radius:0,0,9,2,3"], "outside of the geofence"),
    "corners in the other order": ([*FLY, "--fence", "box:9,9,3,-9,-9,0"], "lowest corner first"),
    "heights in the other order": ([*FLY, "--fence", "radius:0,0,9,3,0"], "lower height first"),
    "a port out of range": ([*FLY[:3], "udpin:127.0.0.1:99999", *FLY[4:]], "cannot be opened"),
    "a device that is missing": ([*FLY[:3], "/dev/fledge-none", *FLY[4:]], "cannot be opened|needs pyserial"),
    "a log in no folder": ([*FLY, "--log", "nowhere/a.flog"], "its folder does not"),
    "points of a missing module": ([*FLY, "--points", "nowhere:f"], "No module named"),
    "points that are no function": ([*FLY, "--points", "os:sep"], "cannot be called"),
    "no flights": ([*SIMULATE[:2], "--flights", "0"], "of at least 1"),
    "a negative seed": ([*SIMULATE, "--seed", "-1"], "of at least 0"),
    "a negative density": ([*SIMULATE, "--density", "-3"], "of at least 0"),
    "a distance of NaN": ([*SIMULATE, "--distance", "nan"], "above 0"),
    "a negative distance": ([*SIMULATE, "--distance", "-5"], "above 0"),
    "a loss of 2": ([*SIMULATE, "--loss", "2"], "at most 1"),
    "a drawing in no folder": ([*SIMULATE, "--png", "nowhere/a.png"], "does not exist|needs matplotlib"),
    "physics that are a function": ([*SIMULATE, "--physics", "os:getcwd"], "interface of Quadrotor"),
    "a fake controller on no port": (["fake-controller", "--port", "70000"], "from 1 to 65535"),
}


def run(words: list[str], folder: Path) -> int:
    try:
        return main([str(folder) if word == "FOLDER" else word for word in words])
    except SystemExit as error:
        return int(str(error.code))


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_makes_no_sense_is_one_sentence(
    name: str, reflex: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "fly" in REFUSED[name][0]:
        pytest.importorskip("pymavlink")
    monkeypatch.chdir(tmp_path)
    words, pattern = REFUSED[name]
    assert run(words, reflex) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(pattern, last), last
    assert not list(tmp_path.iterdir())


def test_points_and_physics_of_the_working_directory_are_found(
    reflex: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "stuck_here.py").write_text(
        "from fledge_runtime.quadrotor import Quadrotor\n"
        "class Stuck(Quadrotor):\n    def step(self, *given):\n        pass\n"
    )
    assert run([*SIMULATE, "--distance", "2", "--own-rays", "--json", "--physics", "stuck_here:Stuck"], reflex) == 0
    assert '"length_m": 0.0' in capsys.readouterr().out


def test_a_reader_that_is_gone_ends_a_command_without_a_traceback(reflex: Path) -> None:
    words = [sys.executable, "-m", "fledge_runtime", *SIMULATE, "--distance", "2", "--own-rays"]
    words[words.index("FOLDER")] = str(reflex)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "runtime" / "src")}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""


def dead_points() -> Any:
    return {"points_w": np.zeros((0, 3))}, time.time()  # on the wrong clock


def failing_points() -> Any:
    raise RuntimeError("the driver died")


@pytest.mark.parametrize(
    ("function", "code", "told"), [("dead_points", 0, "clock_jump"), ("failing_points", 2, "the driver died")]
)
def test_points_on_the_wrong_clock_or_that_fail_do_not_fly(
    function: str, code: int, told: str, reflex: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pymavlink")
    from fledge_runtime.bridges.fake_flight_controller import FakeFlightController
    from tests.runtime.test_simulate import free_port

    port = free_port()
    words = ["fly", "FOLDER", "--mavlink", f"udpin:127.0.0.1:{port}", "--goal", "5,0,1.5", "--speed", "9"]
    words += ["--duration", "6", "--points", f"tests.runtime.test_commands:{function}", "--log", str(tmp_path / "a")]
    with FakeFlightController(port, (0.0, 0.0, 1.5)):
        assert run(words, reflex) == code
    out, err = capsys.readouterr()
    assert told in out + err
    assert "Traceback" not in err
    assert "above the policy's limit" in out
