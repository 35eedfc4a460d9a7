"""The plain quadrotor, the columns, and the commands that fly a folder in them."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime.arguments import numbers, read_fence
from fledge_runtime.bridges.frames import rotate, yaw_of
from fledge_runtime.cli import main
from fledge_runtime.columns import Columns
from fledge_runtime.limits import Box, Cylinder
from fledge_runtime.log import read_log
from fledge_runtime.quadrotor import Quadrotor


def test_the_quadrotor_follows_a_velocity_as_px4_does_and_holds_a_place() -> None:
    drone = Quadrotor((0.0, 0.0, 2.0), yaw=0.5)
    speeds = []
    for _ in range(600):
        drone.step([1.0, -0.5, 0.2])
        speeds.append(drone.velocity[0])
    assert 0.1 < speeds[60] < 0.4  # it must tilt first
    assert 0.7 < speeds[200] < 0.95  # after a second
    assert np.allclose(drone.velocity, [1.0, -0.5, 0.2], atol=0.05)
    assert np.allclose(rotate(drone.quaternion, [0.0, 0.0, 1.0]), drone.axis)
    assert yaw_of(drone.quaternion) == pytest.approx(0.5, abs=0.02)
    place = drone.position.copy()
    for _ in range(1600):
        drone.hold(place)
    assert np.linalg.norm(drone.position - place) < 0.05


def test_the_quadrotor_tilts_at_most_45_degrees() -> None:
    drone, lowest = Quadrotor((0.0, 0.0, 50.0)), 1.0
    for k in range(1000):
        drone.step([30.0 if k % 400 < 200 else -30.0, 0.0, 0.0])
        lowest = min(lowest, drone.axis[2])
    assert 0.68 < lowest < 0.75


def test_ranges_are_those_of_marching_along_the_rays() -> None:
    world, rng = Columns(3, (0.0, 0.0), (12.0, 3.0), count=10.0), np.random.default_rng(0)
    rays = rng.normal(size=(300, 3)) * [1.0, 1.0, 0.3]
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    origin = np.array([6.0, 1.5, 1.5])
    assert world.clearance(origin) > 0.0
    found, hits = world.ranges(origin, rays, 6.0), 0
    for ray, distance in zip(rays, found, strict=True):
        for step in np.arange(0.0, 6.0, 0.01):
            if world.clearance(origin + step * ray) <= 0.0:
                assert abs(step - distance) < 0.02
                hits += 1
                break
        else:
            assert distance > 5.98
    assert 50 < hits < 290


def test_points_lie_on_columns_or_the_ground() -> None:
    world, place = Columns(3, (0.0, 0.0), (12.0, 3.0)), np.array([4.0, 1.0, 1.5])
    tilted = [math.cos(0.1), 0.0, math.sin(0.1), 0.0]
    for sensor in (
        None,
        {"azimuths_deg": range(0, 360, 10), "elevations_deg": [-10, 0, 10], "range_m": 4.0, "frame": "yaw"},
    ):
        points = world.points(place, tilted, sensor)
        assert len(points) > 3
        assert max(abs(world.clearance(point)) for point in points) < 1e-6


def test_columns_leave_start_and_goal_free_and_are_the_same_for_a_seed() -> None:
    for seed in range(20):
        world = Columns(seed, (0.0, 0.0), (10.0, 0.0), count=30.0)
        assert min(world.clearance((x, 0.0, 9.0)) for x in (0.0, 10.0)) > 1.4
        assert np.array_equal(world.centre, Columns(seed, (0.0, 0.0), (10.0, 0.0), count=30.0).centre)


# ---- commands ------------------------------------------------------------------------------------------------------------


def test_a_folder_flies_among_columns_and_its_log_replays_bit_for_bit(
    reflex: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.flog"
    words = ["simulate", str(reflex), "--flights", "1", "--distance", "8", "--own-rays", "--log", str(log)]
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["success"]
    assert told["reason"] == "goal_reached"
    assert 0.0 < told["closest_m"] < 3.0
    assert main(["replay", str(log), str(reflex)]) == 0
    text = capsys.readouterr().out
    assert "all equal bit for bit (this folder flew)" in text
    assert sum(record.kind == "command" for record in read_log(log)) == int(text.split(": ")[1].split()[0])


def test_replay_compares_another_folder(
    reflex: Path, memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.flog"
    main(["simulate", str(reflex), "--flights", "1", "--distance", "4", "--own-rays", "--log", str(log)])
    capsys.readouterr()
    assert main(["replay", str(log), str(reflex), str(memory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told[str(reflex)]["largest_m_s"] == 0.0
    assert told[str(memory)]["mean_m_s"] > 0.1


def test_another_drone_can_be_named(reflex: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", str(reflex), "--flights", "1", "--distance", "4", "--own-rays", "--json"]
    assert main([*words, "--physics", "tests.runtime.test_simulate:StuckDrone"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["length_m"] == 0.0
    assert main([*words, "--physics", "nowhere:Drone"]) == 2
    assert "MODULE:CLASS" in capsys.readouterr().err


class StuckDrone(Quadrotor):
    """Does not move."""

    def step(self, velocity_setpoint: Any, dt: float = 0.005) -> None:
        self.velocity = np.zeros(3)


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("box:-1,-2,0,3,4,5", Box((-1.0, -2.0, 0.0), (3.0, 4.0, 5.0))),
        ("radius:1,2,9,0.5,3", Cylinder((1.0, 2.0), 9.0, 0.5, 3.0)),
    ],
)
def test_fences_are_read_from_the_command_line(text: str, fence: Any) -> None:
    assert read_fence(text) == fence


@pytest.mark.parametrize("text", ["box:1,2,3", "circle:1,2,3", "radius:1,2,3,4,nan", "5"])
def test_fences_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"not 6 numbers|not 5 numbers|neither box"):
        read_fence(text)
    assert numbers(3)("1,2,-3") == (1.0, 2.0, -3.0)


def free_port() -> int:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_fly_is_a_dry_run_on_the_fake_flight_controller(
    reflex: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pymavlink")
    port, log = free_port(), tmp_path / "a.flog"
    words = ["fake-controller", "--port", str(port), "--duration", "12", "--goal", "8,0,1.5"]
    fake = threading.Thread(target=main, args=(words,), daemon=True)
    fake.start()
    link = ["--mavlink", f"udpin:127.0.0.1:{port}", "--goal", "8,0,1.5", "--duration", "3", "--log", str(log)]
    assert main(["fly", str(reflex), *link]) == 0
    text = capsys.readouterr().out
    assert "Dry run: no setpoint is sent." in text
    assert "flying" in text
    assert "(not sent)" in text
    kinds = [record.kind for record in read_log(log)]
    assert kinds.count("command") > 2
    assert not any(record.facts["sent"] for record in read_log(log) if record.kind == "output")
    assert main(["replay", str(log), str(reflex)]) == 0
    fake.join(30.0)
    assert "mode position" in text + capsys.readouterr().out


@pytest.mark.slow
def test_simulate_flies_through_mavlink_with_loss_and_jitter(reflex: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pymavlink")
    link = ["--mavlink", "--loss", "0.01", "--jitter", "0.05", "--json"]
    assert main(["simulate", str(reflex), "--flights", "1", "--distance", "8", *link]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["success"]
    assert told["mode"] == "hold"
