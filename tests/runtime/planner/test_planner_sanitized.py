"""The C code under address and undefined-behaviour sanitizers: flights, wild readings and extreme settings."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge.core.settings import flat_settings
from fledge_runtime import native
from fledge_runtime.planner import Planner
from fledge_runtime.planner_settings import CHOICES, ELEVATIONS, NUMBERS, read_settings
from tests.runtime.planner.flights import record, replay, world

Rows = list[dict[str, np.ndarray]]
CHECKS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
SHAPES = {"dynamic_obstacle": 50, "pose": 2, "attitude": 2, "flown": 3}
EXTREMES: list[dict[str, Any]] = [
    {
        "planner.headings": 1,
        "lidar_azimuths": 1,
        "lidar_elevations_deg": [0.0],
        "planner.climb": 0.0,
        "decimation": 187,
    },
    {
        "planner.headings": 360,
        "planner.step_s": 0.02,
        "planner.horizon_s": 20.0,
        "planner.guard": True,
        "planner.lag_s": 1.0,
    },
    {
        "planner.identify": True,
        "planner.hasten": True,
        "planner.depth_cost": 1e6,
        "planner.guard": True,
        "planner.gain": 100.0,
        "planner.damping": 10.0,
        "planner.lag_s": 1.0,
        "planner.delay_s": 1.0,
    },
    {"planner.delay_s": 1.0, "dt_s": 0.0001, "planner.guard": True, "planner.climb_gain": 0.1},
    {"lidar_range_m": 100.0, "lidar_azimuths": 720, "planner.standing": False, "planner.brief_s": 20.0},
    {"movers_from": "lidar", "lidar_range_m": 100.0, "lidar_azimuths": 2, "lidar_tilts": True, "planner.guard": True},
    {"movers_from": "lidar", "lidar_rows": 256, "lidar_elevations_deg": [-88.9, 88.9], "lidar_jitter": True},
    {
        "lidar_pinhole": True,
        "lidar_view_deg": 179.0,
        "lidar_tilts": True,
        "planner.memory": False,
        "collision": "beams",
    },
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    if subprocess.run(["cc", *CHECKS, "empty.c", "-o", "empty"], cwd=folder, capture_output=True).returncode:
        pytest.skip("the C compiler has no sanitizers")
    flags = [flag for flag in native.FLAGS if flag not in ("-shared", "-O2", "-fvisibility=hidden")]
    files = [*map(str, native.sources()), str(Path(__file__).with_name("replay.c"))]
    command = ["cc", *flags, *CHECKS, f"-I{native.FOLDER}", *files, "-o", str(folder / "replay"), "-lm"]
    subprocess.run(command, check=True)
    return folder / "replay"


def script(settings: dict[str, Any]) -> list[str]:
    full = read_settings(settings)
    lines = [f"set {name} {float(full[name]).hex()}" for name in (*NUMBERS, "world")]
    lines += [f"choose {name} {full[name]}" for name in CHOICES]
    rows = full[ELEVATIONS]
    return [*lines, f"elevations {len(rows)} " + " ".join(map(str, rows)), "create"]


def step(row: dict[str, Any]) -> str:
    values = [row["state"], row["lidar"], *(row.get(name, np.zeros(size)) for name, size in SHAPES.items())]
    numbers = np.concatenate([np.ravel(value).astype(np.float64) for value in values])
    return f"step {np.size(row['lidar'])} " + " ".join(float(n).hex() if np.isfinite(n) else str(n) for n in numbers)


def run(program: Path, lines: list[str]) -> list[tuple[int, np.ndarray]]:
    """Return status and plan of each step; fail on anything that a sanitizer reports."""
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    words = [line.split() for line in done.stdout.splitlines()]
    return [(int(first), np.array([float.fromhex(n) for n in rest], np.float32)) for first, *rest in words]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fledge-nav", "fledge-scan"])
def test_flights_leave_no_report_and_give_the_same_plans(policy: str, program: Path) -> None:
    cfg = world(policy=policy, num_envs=1)
    rows = record(cfg, 120)
    found = run(program, [*script(flat_settings(cfg)), *map(step, rows), "reset", *map(step, rows)])
    expected = replay(Planner(flat_settings(cfg), "numpy"), rows)
    assert {status for status, _ in found} == {0}
    np.testing.assert_array_equal([plan for _, plan in found], [*expected, *expected])


@pytest.mark.slow
@pytest.mark.parametrize("settings", EXTREMES, ids=range(len(EXTREMES)))
def test_wild_readings_and_extreme_settings_leave_no_report_and_give_the_plans_of_numpy(
    settings: dict[str, Any], program: Path
) -> None:
    rng, ours = np.random.default_rng(1), Planner(settings, "numpy")
    rows: Rows = []
    for k in range(24):
        size = float(rng.choice([1.0, 30.0, 1e6]))
        row = {name: np.clip(rng.normal(0, size, n), -1e6, 1e6) for name, n in {**SHAPES, "state": 8}.items()}
        lidar = rng.uniform(-0.1, 1.1, ours.sizes["lidar"]) * 4.0 * float(rng.choice([1.0, 1.0, 20.0, 1e5]))
        rows.append({**row, "lidar": np.where(rng.random(len(lidar)) < 0.5, 0.0, lidar)})
        if k % 6 == 5:
            rows[-1]["state"][k % 8] = rng.choice([np.nan, np.inf, -np.inf])
    found = run(program, [*script(settings), *map(step, rows)])
    for k, (status, plan) in enumerate(found):
        assert status == (3 if k % 6 == 5 else 0)
        if status == 0:
            assert (np.abs(plan) <= 1.0).all()
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(plan, ours.step(rows[k])["plan"])
