"""The planner's interfaces: settings, refusals, memory, the library's file, C++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge.core.settings import flat_settings
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.kernel import PLAN_WIDTH
from fledge_runtime import native, planner, planner_settings
from fledge_runtime.cli import main
from fledge_runtime.errors import ContractError, InputError
from fledge_runtime.planner import NativePlanner, Planner, declare
from fledge_runtime.planner_settings import CHOICES, ELEVATIONS, NUMBERS, read_settings
from tests.runtime.planner.flights import record, replay, world

Rows = list[dict[str, np.ndarray]]
TILTED = {"lidar_tilts": True}


@pytest.fixture(scope="module")
def rows() -> Rows:
    return record(world(num_envs=1, **TILTED), 8)


def make(engine: str, library: Any, **settings: Any) -> Planner:
    return Planner({**TILTED, "decimation": 4, **settings}, engine, library if engine == "c" else None)


def test_defaults_are_those_of_the_simulator() -> None:
    env = flat_settings(NavigationConfig())
    read = read_settings({})
    assert planner.PLAN_WIDTH == PLAN_WIDTH
    assert {**{name: env[name] for name in (*NUMBERS, *CHOICES, ELEVATIONS)}, "world": False} == read
    assert {name for name in env if name.startswith("planner.")} <= {*read}


def test_the_library_has_the_same_settings_with_the_same_limits(library: ctypes.CDLL) -> None:
    declare(library)
    names, k = set(), 0
    while (name := library.fledge_settings_name(k)) is not None:
        names.add(name.decode())
        k += 1
    assert names == {*NUMBERS, *CHOICES, "world"}
    chosen = ctypes.create_string_buffer(library.fledge_settings_size())
    library.fledge_settings_default(chosen)
    for name, (kind, low, high, usual, _) in NUMBERS.items():
        for value in (low, high, low - 1e-3, high + 1e-3, usual, 0.5, float("nan"), float("inf")):
            refused = library.fledge_settings_set(chosen, name.encode(), float(value), None, 0) != 0
            try:
                planner_settings.number(name, kind(value) if kind is int and value == int(value) else value)
            except (ContractError, ValueError, OverflowError):
                assert refused, (name, value)
            else:
                assert not refused, (name, value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"planner.margin_m": 0.6}, "planner.margin_m is 0.6, but must be a number, above 0 and at most 0.5"),
        ({"planner.headings": 2.5}, "planner.headings is 2.5, but must be a whole number"),
        ({"planner.identify": 2}, "planner.identify is 2, but must be true or false"),
        ({"planner.depth_cost": -1.0}, "planner.depth_cost is -1.0, but must be a number, at least 0"),
        ({"planner.gain": 0.0}, "planner.gain is 0.0, but must be a number, above 0"),
        ({"planner.guard": "yes"}, "planner.guard is 'yes', but must be true or false"),
        ({"planner.fast": float("nan")}, "planner.fast is nan"),
        ({"planner.horizon_s": 20.0, "planner.step_s": 0.01}, "2 to 1000 times planner.step_s"),
        ({"planner.courage": 1.0}, "planner.courage is not a setting of this version's planner: update"),
        ({"collision": "cube"}, "collision is 'cube', but must be one of cylinder, sphere, beams"),
        ({"lidar_rows": 4}, "needs two lidar_elevations_deg"),
        ({"lidar_elevations_deg": [90.0]}, "each above -89 and below 89"),
        ({"lidar_jitter": True}, "lidar_jitter needs lidar_rows"),
        ({"lidar_min_range_m": 5.0}, "must be below lidar_range_m"),
        ({"dt_s": 0.1, "decimation": 31}, "dt_s times decimation, .* must be at most planner.horizon_s"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ContractError, match=text):
        Planner(settings, "numpy")


def test_the_library_refuses_what_the_binding_would_let_through(library: ctypes.CDLL) -> None:
    good = read_settings({})
    for name, value, text in (
        ("planner.skin_m", 0.6, "planner.skin_m is 0.6, but must be at least 0 and at most 0.5."),
        ("planner.headings", 1.5, "planner.headings is 1.5, but must be a whole number, at least 1 and at most 360."),
        ("planner.step_s", 0.001, "planner.horizon_s must be 2 to 1000 times planner.step_s."),
        (
            "decimation",
            10000,
            "dt_s times decimation, the time between two decisions, must be at most planner.horizon_s.",
        ),
        ("lidar_rows", 3, "lidar_rows above 0 needs two lidar_elevations_deg, the lowest and the highest."),
        ("collision", "cube", "collision is cube, but must be cylinder, sphere or beams."),
        ("lidar_elevations_deg", [], "lidar_elevations_deg must have 1 to 64 numbers, each above -89 and below 89."),
    ):
        with pytest.raises(ContractError) as error:
            NativePlanner({**good, name: value}, library)
        assert str(error.value) == text
    assert library.fledge_settings_set(None, b"planner.skin_m", 0.0, None, 0) == 1
    assert library.fledge_settings_set(ctypes.create_string_buffer(2000), b"planner.courage", 0.0, None, 0) == 5
    assert library.fledge_planner_create(None, None, None, 0) == 1
    assert library.fledge_planner_step(None, None, None) == 1
    library.fledge_planner_destroy(None)


@pytest.mark.parametrize("engine", ["c", "numpy"])
@pytest.mark.parametrize("name", ["state", "lidar", "dynamic_obstacle", "pose", "attitude", "flown"])
def test_a_reading_that_is_not_finite_is_refused_and_not_remembered(
    name: str, engine: str, rows: Rows, library: ctypes.CDLL
) -> None:
    disturbed, other = make(engine, library), make(engine, library)
    for row in rows:
        for wrong in (float("nan"), float("inf"), -float("inf"), 1e7):
            if name in row:
                bad = row[name].copy()
                bad.flat[-1] = wrong
                with pytest.raises(InputError, match=f"{name} must be finite"):
                    disturbed.step({**row, name: bad})
        np.testing.assert_array_equal(disturbed.step(row)["plan"], other.step(row)["plan"])


def test_the_library_itself_refuses_what_is_missing_not_finite_or_of_another_size(
    rows: Rows, library: ctypes.CDLL
) -> None:
    engine, other = make("c", library).engine, make("c", library).engine
    for row in rows:
        seen = {
            name: np.ascontiguousarray(row[name], np.float32).reshape(-1) for name in row if name in planner_inputs(row)
        }
        for bad, text in (
            ({**seen, "lidar": seen["lidar"][:-1]}, "lidar must have 144 numbers, got 143."),
            ({**seen, "pose": np.full(2, np.nan, np.float32)}, "pose must be finite and within"),
            ({name: value for name, value in seen.items() if name != "attitude"}, "attitude is missing."),
        ):
            with pytest.raises(InputError, match=text):
                engine.step(bad)
        np.testing.assert_array_equal(engine.step(seen)[0], other.step(seen)[0])


def planner_inputs(row: dict[str, np.ndarray]) -> set[str]:
    return {"state", "lidar", "dynamic_obstacle", "pose", "attitude", "flown"} & {*row}


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_missing_and_misshapen_observations_are_named(engine: str, rows: Rows, library: ctypes.CDLL) -> None:
    ours = make(engine, library)
    with pytest.raises(InputError, match="pose is missing: the planner needs 2 numbers"):
        ours.step({**rows[0], "pose": None})
    with pytest.raises(InputError, match="lidar must have 144 numbers, got 143"):
        ours.step({**rows[0], "lidar": np.zeros(143)})
    with pytest.raises(InputError, match="flown must have 3 numbers, got 2"):
        ours.step({**rows[0], "flown": np.zeros(2)})


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_a_reset_clears_all_memory_and_planners_are_independent(engine: str, rows: Rows, library: ctypes.CDLL) -> None:
    ours, other = make(engine, library), make(engine, library)
    plans = replay(ours, rows)
    other.step(rows[-1])
    again = replay(ours, rows)
    np.testing.assert_array_equal(plans, again)
    np.testing.assert_array_equal(replay(other, rows), plans)
    assert not np.array_equal(plans[-1], other.step(rows[-1])["plan"])


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_without_flown_the_planner_assumes_its_own_command(engine: str, rows: Rows, library: ctypes.CDLL) -> None:
    ours, other = make(engine, library), make(engine, library)
    last = None
    for row in rows:
        row = {name: value for name, value in row.items() if name != "flown"}
        expected = other.step({**row, "flown": last})["plan"]
        np.testing.assert_allclose(ours.step(row)["plan"], expected, atol=1e-4)
        np.testing.assert_allclose(np.clip(ours.command / 2.0, -1.0, 1.0), expected[:3], atol=1e-6)
        last = 0.5 * expected[:3] + 0.5


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_far_from_the_goal_the_tracker_works_as_near_it(engine: str, library: ctypes.CDLL) -> None:
    """Cells of the tracker are numbered in 15 bits: 3.2 km."""
    cfg = world(policy="fledge-scan", num_envs=1, moving_obstacles=0)
    rows = record(cfg, 25)
    settings, far = flat_settings(cfg), []
    for row in rows:
        state = row["state"].copy()
        state[3] += np.float32(8192.0)  # the goal's distance; a power of two, so that little is rounded
        far.append({**row, "state": state})
    plans = [replay(Planner(settings, engine, library if engine == "c" else None), each)[-1] for each in (rows, far)]
    blocked = [plan[7::4] < 1.0 for plan in plans]  # headings that lead to a collision
    assert blocked[0].sum() > 5
    assert blocked[1][blocked[0]].mean() > 0.5


def test_without_a_library_numpy_flies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    assert Planner({}).name == "numpy"
    with pytest.raises(ContractError, match="C library is missing"):
        Planner({}, "c")
    with pytest.raises(InputError, match="engine is 'gpu'"):
        Planner({}, "gpu")


def test_a_library_of_other_sources_is_not_loaded(
    tmp_path: Path, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(library._name)
    assert native.load(path) is not None
    assert native.load(tmp_path / "none.so") is None
    (tmp_path / "text.so").write_text("no library")
    native.checksum_of(tmp_path / "text.so").write_text(native.checksum(tmp_path / "text.so"))
    assert native.load(tmp_path / "text.so") is None
    monkeypatch.setattr(native, "digest", lambda: "0" * 16)
    assert native.load(path) is None


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_a_planner_tells_the_response_that_it_identified(engine: str, library: ctypes.CDLL) -> None:
    """A drone that follows its command at once, then one two decisions late."""
    names = {"gain", "damping", "lag_s", "climb_gain", "climb_lag_s", "delay_s"}
    rows_of = {"lidar": np.zeros(144), "dynamic_obstacle": np.zeros(50), "pose": [1.5, 0.0], "attitude": [0.0, 0.0]}
    found = []
    for late in (0, 2):
        plans, flown, velocity = make(engine, library, **{"planner.identify": True}), [np.zeros(3)] * 3, np.zeros(3)
        for k in range(60):
            state = [1.0, 0.0, 0.0, 20.0, 0.0, *velocity]
            action = np.full(3, 0.5) + 0.3 * np.sign(np.sin(0.4 * k)) * np.array([1.0, 0.5, 0.0])
            plans.step({**rows_of, "state": state, "flown": None if k == 0 else flown[-1]})
            flown.append(action)
            velocity = velocity + 0.1 * (2.0 * (2.0 * flown[-1 - late] - 1.0) - velocity)
        assert {*plans.response} == names
        found.append(plans.response["delay_s"])
    assert found == [0.0, pytest.approx(0.128)]
    assert make(engine, library).response is None


LOAD_CUT = """
import sys, warnings
from pathlib import Path
from fledge_runtime import native
path = Path(sys.argv[1])
path.write_bytes(path.read_bytes()[:5000])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert native.load(path) is None
print(said[0].message)
"""


def test_a_library_that_was_cut_off_is_not_loaded(tmp_path: Path, library: ctypes.CDLL) -> None:
    """In a process of its own, which a bus error would end."""
    built = Path(library._name)
    shutil.copy(built, tmp_path / "cut.so")
    shutil.copy(native.checksum_of(built), native.checksum_of(tmp_path / "cut.so"))
    words = [sys.executable, "-c", LOAD_CUT, str(tmp_path / "cut.so")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "cut.so is cut off" in done.stdout
    assert "run `fledge-runtime build`" in done.stdout


@pytest.mark.parametrize(("compiler", "text"), [("true", "true wrote no library"), ("false", "false: exit code 1")])
def test_a_compiler_that_builds_nothing_is_told_and_leaves_the_old_library(
    compiler: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / native.LIBRARY).write_text("old")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("CC", compiler)
    assert main(["build"]) == 1
    said = capsys.readouterr()
    assert "built" not in said.out
    assert text in said.err
    assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [native.LIBRARY]
    assert (tmp_path / native.LIBRARY).read_text() == "old"


BAD_INDICES = r"""
#include <math.h>
#include <stdio.h>
#include "planner.h"
static cost_grid grid;
int main(void) {
    grid.every = 1;
    for (int r = 0; r < POINTS; r++) for (int c = 0; c < POINTS; c++) grid.length[r][c] = 1.0f;
    printf("%d %d %d\n", isnan(fp_cost_from(&grid, NAN, 2.0f)), isnan(fp_cost_from(&grid, 2.0f, NAN)),
           to_cell(NAN) == FAR_CELL && to_cell(INFINITY) == FAR_CELL && to_cell(-1e30f) == FAR_CELL && to_cell(1.25f) == 12);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_places_that_are_not_finite_index_no_array(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(BAD_INDICES)
    words = [
        "gcc",
        "-std=c99",
        "-D_GNU_SOURCE",
        "-fsanitize=undefined",
        "-fno-sanitize-recover",
        "-I",
        str(native.FOLDER),
    ]
    words += [str(tmp_path / "main.c"), *map(str, native.sources()), "-lm", "-o", str(tmp_path / "main")]
    subprocess.run(words, check=True, capture_output=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "1", "1"]), done.stderr


FAR_TRACK = r"""
#include <stdio.h>
#include "tracker.c"
static tracker_data tracker;
int main(void) {
    own_state own = {0};
    tracker.tracks[0].moves = 1;
    tracker.tracks[0].pos = vec(1500.0f, 0.0f, 1.0f);
    write_rows(&tracker, &own, 0.0f);
    printf("%g\n", tracker.rows[3]);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_a_track_beyond_a_kilometre_has_a_row(tmp_path: Path) -> None:
    """As in NumPy, whose rows have no largest distance."""
    (tmp_path / "main.c").write_text(FAR_TRACK)
    others = [str(path) for path in native.sources() if path.name != "tracker.c"]
    words = ["gcc", "-std=c99", "-I", str(native.FOLDER), str(tmp_path / "main.c"), *others, "-lm"]
    subprocess.run([*words, "-o", str(tmp_path / "main")], check=True, capture_output=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, timeout=60)
    assert float(done.stdout) == 1500.0


PROGRAM = r"""
#include <cstdio>
#include "fledge_planner.hpp"
int main() {
    fledge::Settings settings;
    settings.set("planner.guard", 1).set("decimation", 4).choose("collision", "sphere").elevations({-10, 0, 10, 20});
    fledge::Planner planner(settings);
    std::vector<float> lidar(planner.rays()), plan(FLEDGE_PLAN);
    const float state[] = {1, 0, 0, 20, 0, 0, 0, 0}, pose[] = {1.5f, 0}, movers[50] = {0};
    lidar[1] = 2.5f;
    fledge_input input = {state, lidar.data(), lidar.size(), movers, pose, nullptr, nullptr};
    fledge_output output = {plan.data(), nullptr, nullptr};
    planner.step(input, output);
    for (float value : plan) std::printf("%a\n", value);
    try { settings.set("planner.margin_m", 2); } catch (const fledge::Error &error) { std::printf("%s\n", error.what()); }
    input.lidar_count = 1;
    try { planner.step(input, output); } catch (const fledge::Error &error) { std::printf("%s\n", error.what()); }
}
"""


@pytest.mark.skipif(shutil.which("g++") is None or shutil.which("gcc") is None, reason="no C++ compiler")
def test_a_cpp_program_gets_the_same_plan_and_exceptions(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(PROGRAM)
    objects = [str(path) for path in native.sources()]
    strict = ["-Wall", "-Wextra", "-Werror", f"-I{native.FOLDER}"]
    subprocess.run(["gcc", "-std=c99", "-O1", "-ffp-contract=off", "-c", *strict, *objects], cwd=tmp_path, check=True)
    parts = [str(path) for path in sorted(tmp_path.glob("*.o"))]
    subprocess.run(["g++", "-std=c++11", *strict, "main.cpp", *parts, "-o", "main"], cwd=tmp_path, check=True)
    lines = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.splitlines()
    ours = Planner({"planner.guard": True, "decimation": 4, "collision": "sphere"}, "numpy")
    lidar = np.zeros(144)
    lidar[1] = 2.5
    obs = {"state": [1, 0, 0, 20, 0, 0, 0, 0], "lidar": lidar, "pose": [1.5, 0], "dynamic_obstacle": np.zeros(50)}
    np.testing.assert_array_equal([np.float32(float.fromhex(line)) for line in lines[:135]], ours.step(obs)["plan"])
    assert lines[135] == "planner.margin_m is 2, but must be above 0 and at most 0.5."
    assert lines[136] == "lidar must have 144 numbers, got 1."
