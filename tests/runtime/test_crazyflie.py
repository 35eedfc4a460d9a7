"""The Crazyflie example, with a fake Crazyflie that follows velocities at once."""

from __future__ import annotations

import argparse
import importlib.util
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime.log import read_log

SCRIPT = Path(__file__).parents[2] / "runtime" / "examples" / "crazyflie.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("crazyflie_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeBlock:
    """A LogConfig: its callbacks are called at 50 Hz after start."""

    def __init__(self, name: str, period_in_ms: int) -> None:
        self.name, self.fields, self.callback, self.bytes = name, [], None, 0  # type: str, list[str], Any, int
        self.data_received_cb = argparse.Namespace(add_callback=lambda call: setattr(self, "callback", call))

    def add_variable(self, name: str, kind: str) -> None:
        self.fields.append(name)
        self.bytes += {"float": 4, "uint16_t": 2}[kind]


class FakeCrazyflie:
    """Takes commands as cflib's Crazyflie does."""

    def __init__(self) -> None:
        self.place, self.velocity, self.calls = np.array([0.0, 0.0, 0.0]), np.zeros(3), []  # type: Any, Any, list[str]
        self.blocks: list[FakeBlock] = []
        self.log = argparse.Namespace(add_config=self.blocks.append)
        self.commander = argparse.Namespace(
            send_velocity_world_setpoint=self.fly, send_notify_setpoint_stop=lambda: self.calls.append("stop")
        )
        self.high_level_commander = argparse.Namespace(takeoff=self.take_off, land=lambda *_: self.calls.append("land"))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def make_block(self, name: str, period_in_ms: int) -> FakeBlock:
        block = FakeBlock(name, period_in_ms)
        block.start = lambda: None  # type: ignore[attr-defined]
        return block

    def fly(self, vx: float, vy: float, vz: float, yaw_rate: float) -> None:
        self.calls.append("velocity")
        self.velocity = np.array([vx, vy, vz])

    def take_off(self, height: float, seconds: float) -> None:
        self.calls.append("takeoff")
        self.place = np.array([0.0, 0.0, height])

    def run(self) -> None:
        begun = time.monotonic()
        while not self.ended.wait(0.02):
            self.place = self.place + 0.02 * self.velocity
            values = dict(zip(("x", "y", "z", "vx", "vy", "vz"), [*self.place, *self.velocity], strict=True))
            data = {
                f"stateEstimate.{name}": value
                for name, value in {**values, "qw": 1.0, "qx": 0.0, "qy": 0.0, "qz": 0.0}.items()
            }
            data.update({f"range.{name}": 32766 for name in ("front", "back", "left", "right", "up")})
            for block in self.blocks:
                block.callback(
                    int(1e3 * (time.monotonic() - begun)), {name: data[name] for name in block.fields}, block
                )


def settings(folder: Path, log: Path, send: bool, duration: float) -> argparse.Namespace:
    words = {"speed": 0.5, "radius": 3.0, "takeoff_s": 0.2, "goal": (1.2, 0.0, 0.5)}
    return argparse.Namespace(folder=folder, log=log, send=send, duration=duration, **words)


def test_a_dry_run_sends_nothing_at_all(example: Any, reflex: Path, tmp_path: Path, capsys: Any) -> None:
    fake = FakeCrazyflie()
    fake.thread.start()
    told = example.run(fake, fake.make_block, settings(reflex, tmp_path / "a.flog", False, 2.5))
    fake.ended.set()
    assert told["decisions"] > 2
    assert fake.calls == []
    assert [block.bytes for block in fake.blocks] == [24, 26]  # a packet has room for 26
    assert "not sent" in capsys.readouterr().out


def test_nothing_takes_off_before_fly_is_typed(example: Any, reflex: Path, tmp_path: Path) -> None:
    fake = FakeCrazyflie()
    example.run(fake, fake.make_block, settings(reflex, tmp_path / "a.flog", True, 1.0), ask=lambda text: "no")
    assert fake.calls == []


def test_a_flight_takes_off_flies_to_its_goal_and_lands(example: Any, reflex: Path, tmp_path: Path) -> None:
    fake = FakeCrazyflie()
    fake.thread.start()
    told = example.run(fake, fake.make_block, settings(reflex, tmp_path / "a.flog", True, 20.0), ask=lambda text: "fly")
    fake.ended.set()
    assert told["reason"] == "goal_reached"
    assert fake.calls[0] == "takeoff"
    assert fake.calls[-2:] == ["stop", "land"]
    assert np.linalg.norm(fake.place[:2] - [1.2, 0.0]) < 0.6
    assert sum(record.kind == "command" for record in read_log(tmp_path / "a.flog")) > 10


def test_beams_are_patches_in_their_directions(example: Any) -> None:
    none = {f"range.{name}": 32766 for name in ("front", "back", "left", "right", "up")}
    assert example.beams(none).shape == (0, 3)
    for name, unit in (("front", [1, 0, 0]), ("left", [0, 1, 0]), ("right", [0, -1, 0]), ("up", [0, 0, 1])):
        points = example.beams({**none, f"range.{name}": 1500})
        assert np.allclose(points.mean(axis=0) / np.linalg.norm(points.mean(axis=0)), unit, atol=1e-6)
        assert np.linalg.norm(points, axis=-1).max() <= 1.5 * math.sqrt(1.1)
