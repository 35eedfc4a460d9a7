"""The command fledge-runtime, as the person with the robot runs it: in the folder, without Fledge and torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime.cli import main
from fledge_runtime.goldens import pack_points, unpack_points
from tests.runtime.folders import change, copy_of

BARE = "import sys; sys.modules.update(dict.fromkeys(('fledge', 'torch', 'warp')));"


def run_bare(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a folder, where neither Fledge nor torch can be imported, nor another fledge_runtime than the folder's."""
    words = [sys.executable, "-E", "-c", BARE + "sys.path.insert(0, '');" + code]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=200)


@pytest.mark.parametrize("name", ["reflex", "nav", "memory"])
def test_the_folder_verifies_itself_without_fledge(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    done = run_bare(folder, "from fledge_runtime.cli import main; sys.exit(main(['verify', '.', '--json']))")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["sequences"] >= 64
    assert facts["decisions"] >= 4 * 64
    assert max(facts["largest_difference"].values()) < 2e-5
    assert 0 < facts["ms"]["p50"] <= facts["ms"]["p99"] <= facts["ms"]["worst"]
    stages = {"observe", "network", "command"} | ({"plan"} if name == "nav" else set())
    assert {*facts["largest_difference"]} == stages


def test_importing_the_runtime_loads_neither_numpy_nor_onnxruntime(reflex: Path) -> None:
    done = run_bare(reflex, "import fledge_runtime; print([m for m in ('numpy', 'onnxruntime') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_verify_prints_what_was_checked(reflex: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(reflex)]) == 0
    said = capsys.readouterr().out
    assert "fledge-reflex: fledge_runtime" in said
    assert "golden sequences" in said
    assert "ms per decision: p50" in said


def test_verify_names_what_is_wrong_and_fails(reflex: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_of(reflex, tmp_path)
    change(folder, lambda contract: contract["sensor"]["azimuths_deg"].reverse())
    assert main(["verify", str(folder)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("fledge-runtime: Golden sequence 0")
    assert not said.out


def test_a_machine_that_is_too_slow_is_told(
    reflex: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(deployment: Any, goldens: Any, decisions: int = 0) -> dict[str, float]:
        return {"p50": 50.0, "p99": 90.0, "worst": 99.0, "decisions": 10}

    monkeypatch.setattr("fledge_runtime.verify.timing", slow)
    assert main(["verify", str(reflex)]) == 1
    assert "This machine is too slow" in capsys.readouterr().err


def test_info_tells_rates_limits_and_evaluation(nav: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(nav)]) == 0
    said = capsys.readouterr().out
    assert "15.6 decisions per second" in said
    assert "speed_m_s: 2.0" in said
    assert "largest age of points: 0.128 s" in said
    assert "not evaluated" in said
    assert main(["info", str(nav), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "fledge-nav"


def test_the_command_says_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "verify" in capsys.readouterr().out


def test_points_survive_packing() -> None:
    points = np.random.default_rng(0).integers(-32768, 32767, (1000, 3)).astype(np.int16)
    np.testing.assert_array_equal(unpack_points(pack_points(points)), points)
    assert unpack_points(pack_points(points[:0])).shape == (0, 3)
