"""Flight logs: nothing whole is lost at any cut, memory is bounded, and a replay gives the same commands."""

from __future__ import annotations

import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime import Camera, InputError, Inputs, Mount
from fledge_runtime.log import (
    FIRST_LINE,
    HEAD,
    FlightLog,
    LogError,
    LoggedPilot,
    Record,
    encode,
    flatten,
    plain,
    read_log,
    restore,
)
from fledge_runtime.replay import describe, replay


class MemoryPilot:
    """Its commands depend on all inputs since the reset."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def reset(self, position_w: np.ndarray, goal_w: np.ndarray) -> None:
        self.velocity = (goal_w - position_w) / 10.0

    def step(self, inputs: Inputs) -> Any:
        seen = 0.0 if inputs.points_w is None else float(inputs.points_w.sum())
        self.velocity = 0.9 * self.velocity + 0.1 * self.gain * np.sin(np.asarray(inputs.position_w) * seen)
        return type("Command", (), {"velocity_w": self.velocity.copy()})()


def random_inputs(rng: np.random.Generator, time_s: float) -> Inputs:
    points = rng.normal(size=(int(rng.integers(0, 40)), 3)).astype(np.float32)
    return Inputs(time_s, rng.normal(size=3), rng.normal(size=3), [1.0, 0.0, 0.0, 0.0], points_w=points)


def fly(path: Path, steps: int = 50) -> None:
    rng = np.random.default_rng(3)
    with FlightLog(path, {"identity": "abc"}) as log:
        pilot = LoggedPilot(MemoryPilot(), log)
        pilot.reset(np.zeros(3), np.array([9.0, 1.0, 2.0]))
        for k in range(steps):
            inputs = plain(random_inputs(rng, 0.05 * k))
            log.inputs(inputs)
            pilot.step(inputs)


def contents(records: list[Record]) -> list[bytes]:
    return [encode(record) for record in records]


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    with FlightLog(tmp_path / "a.flog", {"identity": "x"}, clock=lambda: 12.5) as log:
        log.add("event", {"text": "é", "value": 0.1}, a=np.arange(6, dtype=np.int16).reshape(2, 3), b=np.zeros((0, 3)))
    begin, event, end = read_log(tmp_path / "a.flog")
    assert begin.facts["identity"] == "x"
    assert (event.kind, event.time_s, event.facts) == ("event", 12.5, {"text": "é", "value": 0.1})
    assert event.arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert event.arrays["a"].dtype == np.int16
    assert event.arrays["b"].shape == (0, 3)
    assert end.kind == "end"


def test_a_log_cut_at_any_byte_has_every_record_before_the_cut(tmp_path: Path) -> None:
    with FlightLog(tmp_path / "whole.flog") as log:
        for k in range(5):
            log.add("event", {"k": k}, x=np.arange(k))
    data = (tmp_path / "whole.flog").read_bytes()
    records = contents(list(read_log(tmp_path / "whole.flog")))
    ends = np.cumsum([len(FIRST_LINE), *map(len, records)])
    assert ends[-1] == len(data)
    cut = tmp_path / "cut.flog"
    for size in range(len(FIRST_LINE), len(data)):
        cut.write_bytes(data[:size])
        assert contents(list(read_log(cut))) == records[: int((ends[1:] <= size).sum())]


def test_a_damaged_record_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    fly(tmp_path / "whole.flog", steps=4)
    data = bytearray((tmp_path / "whole.flog").read_bytes())
    records = contents(list(read_log(tmp_path / "whole.flog")))
    starts = np.cumsum([len(FIRST_LINE), *map(len, records)])
    for damaged in (1, 3, len(records) - 2):
        for offset in (0, 1, 5, 9, len(records[damaged]) - 1):
            other = bytearray(data)
            other[starts[damaged] + offset] ^= 0x41
            (tmp_path / "bad.flog").write_bytes(other)
            gaps: list[int] = []
            assert contents(list(read_log(tmp_path / "bad.flog", gaps))) == records[:damaged] + records[damaged + 1 :]
            assert gaps == [starts[damaged]]


def test_noise_between_records_is_skipped_even_if_it_has_the_mark(tmp_path: Path) -> None:
    fly(tmp_path / "whole.flog", steps=2)
    records = contents(list(read_log(tmp_path / "whole.flog")))
    noise = b"\x89F\x89F" * 7 + np.random.default_rng(0).bytes(3_000_000) + b"\x89"
    (tmp_path / "noisy.flog").write_bytes(FIRST_LINE + records[0] + noise + b"".join(records[1:]))
    assert contents(list(read_log(tmp_path / "noisy.flog"))) == records


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.flog").write_text("mine")
    with pytest.raises(LogError, match="Name a new file"):
        FlightLog(tmp_path / "a.flog")
    assert (tmp_path / "a.flog").read_text() == "mine"


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.flog").write_bytes(b"other")
    with pytest.raises(LogError, match="not a flight log"):
        list(read_log(tmp_path / "a.flog"))
    with pytest.raises(LogError, match="cannot be read"):
        list(read_log(tmp_path / "none.flog"))


def test_a_disk_that_hangs_costs_records_and_not_memory_or_time(tmp_path: Path) -> None:
    log, gate = FlightLog(tmp_path / "a.flog", queue_bytes=100_000), threading.Event()
    file = log._file

    class SlowFile:
        def write(self, data: bytes) -> int:
            gate.wait(10.0)
            return file.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    log._file = SlowFile()  # type: ignore[assignment]
    for _ in range(50):
        log.add("event", x=np.zeros(1000))
    assert log._queued <= 100_000
    assert log.dropped >= 37
    gate.set()
    while log._queue:
        gate.wait(0.01)
    log.add("event", {"after": True})
    log.close()
    kinds = [record.kind for record in read_log(log.path)]
    assert "dropped" in kinds
    assert sum(r.facts["records"] for r in read_log(log.path) if r.kind == "dropped") == log.dropped


def test_a_full_log_ends_and_says_so(tmp_path: Path) -> None:
    log = FlightLog(tmp_path / "a.flog", max_bytes=20_000)
    for _ in range(5):
        log.add("event", x=np.zeros(1000))
    log.close()
    assert "largest size" in log.error
    assert log.path.stat().st_size <= 20_000 + len(FIRST_LINE)
    assert [record.kind for record in read_log(log.path)] == ["begin", "event", "event"]


def test_a_full_disk_is_counted_and_the_file_stays_readable(tmp_path: Path) -> None:
    log, room = FlightLog(tmp_path / "a.flog"), [30_000]
    file = log._file

    class FullDisk:
        """Takes a part of the last record, as a disk does."""

        def write(self, data: bytes) -> int:
            if not room[0]:
                raise OSError(28, "No space left on device")
            taken = file.write(data[: room[0]])
            room[0] -= taken
            return taken

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    log._file = FullDisk()  # type: ignore[assignment]
    for _ in range(20):
        log.add("event", x=np.zeros(1000))
    log.close()
    damaged: list[int] = []
    whole = sum(record.kind == "event" for record in read_log(log.path, damaged))
    assert whole == 3
    assert whole + log.dropped == 20
    assert len(damaged) == 1
    assert "No space left" in log.error


def test_a_record_that_cannot_be_decoded_counts_as_damaged(tmp_path: Path) -> None:
    events = [encode(Record("event", 0.0, {}, {"x": np.zeros(3)})) for _ in range(3)]
    payload = b'{"t": 0.0, "facts": {}, "arrays": [["x", "|O", [2]]]}\n' + bytes(16)
    head = HEAD.pack(b"\x89F", 5, 0, len(payload))
    events[1] = head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload
    (tmp_path / "a.flog").write_bytes(FIRST_LINE + b"".join(events))
    damaged: list[int] = []
    assert len(list(read_log(tmp_path / "a.flog", damaged))) == 2
    assert damaged == [len(FIRST_LINE) + len(events[0])]


def test_clouds_of_objects_are_refused() -> None:
    for points in ([[None, 0.0, 0.0]], [[1.0, 2.0, 3.0], [1.0]], "abc"):
        with pytest.raises(InputError, match="points_w must be an array of numbers"):
            flatten(Inputs(0.0, [0.0] * 3, [0.0] * 3, [1.0, 0.0, 0.0, 0.0], points_w=points))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_without_room_for_its_first_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open

    def full(path: Any, mode: str, **words: Any) -> Any:
        real(path, mode).close()
        return real("/dev/full", "wb", buffering=0)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full)
        with pytest.raises(LogError, match="No space left"):
            FlightLog(tmp_path / "a.flog")
    assert not (tmp_path / "a.flog").exists()


def test_inputs_of_every_kind_come_back() -> None:
    mount = Mount((0.1, 0.0, -0.05), (0.0, 1.0, 0.0, 0.0))
    pose = ([1.0, 2.0, 3.0], (0.0, 0.1, 0.0), np.array([1.0, 0.0, 0.0, 0.0]))
    points = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    back = restore(*flatten(Inputs(1.5, *pose, points_b=points, mount=mount, movers=[((1, 2, 3), (0, 0, 0), 0.5)])))
    assert back.points_b.flags.c_contiguous
    assert back.points_b.tolist() == points.tolist()
    assert (list(back.mount.position_b), list(back.mount.quaternion_wxyz)) == ([0.1, 0.0, -0.05], [0.0, 1.0, 0.0, 0.0])
    assert back.movers.shape == (1, 8)
    depth = np.ones((4, 5), np.uint16)
    back = restore(*flatten(Inputs(1.5, *pose, depth=depth, camera=Camera(1.0, 2.0, 3.0, 4.0, mount))))
    assert back.depth.dtype == np.uint16
    assert back.camera is not None
    assert (back.camera.cy, list(back.camera.mount.position_b)) == (4.0, [0.1, 0.0, -0.05])


def test_a_replay_gives_the_same_commands_bit_for_bit(tmp_path: Path) -> None:
    fly(tmp_path / "a.flog")
    told = replay(tmp_path / "a.flog", MemoryPilot())
    assert (told["decisions"], told["equal"], told["gaps"], told["identity"]) == (50, 50, 0, "abc")
    assert "all equal" in describe(told)


def test_a_replay_tells_how_another_policy_differs(tmp_path: Path) -> None:
    fly(tmp_path / "a.flog")
    told = replay(tmp_path / "a.flog", MemoryPilot(gain=1.1))
    assert told["equal"] < 10
    assert 0.0 < told["mean_m_s"] <= told["largest_m_s"] < 1.0
    assert "differences" in describe(told)


def test_a_replay_of_a_damaged_log_says_that_there_is_a_gap(tmp_path: Path) -> None:
    fly(tmp_path / "a.flog")
    data = bytearray((tmp_path / "a.flog").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.flog").write_bytes(data)
    told = replay(tmp_path / "a.flog", MemoryPilot())
    assert told["gaps"] == 1
    assert told["decisions"] in (49, 50)
    assert "gap" in describe(told)


def test_a_log_without_a_decision_is_refused(tmp_path: Path) -> None:
    with FlightLog(tmp_path / "a.flog"):
        pass
    with pytest.raises(LogError, match="no decisions"):
        replay(tmp_path / "a.flog", MemoryPilot())


def test_a_replay_compares_after_the_speed_limit_and_tells_both_periods(tmp_path: Path) -> None:
    """Two pilots that fly on at 1 and at 3 m/s differ by nothing under a limit of 0.5 m/s."""

    class Steady:
        def __init__(self, speed: float, decision_s: float) -> None:
            self.speed, self.decision_s = speed, decision_s

        def reset(self, position_w: np.ndarray, goal_w: np.ndarray) -> None:
            pass

        def step(self, inputs: Inputs) -> Any:
            return type("Command", (), {"velocity_w": np.array([self.speed, 0.0, 0.0])})()

    with FlightLog(tmp_path / "a.flog", {"limits": "Limits(speed_m_s=0.5, acceleration_m_s2=None)"}) as log:
        pilot = LoggedPilot(Steady(1.0, 0.05), log)
        pilot.reset(np.zeros(3), np.ones(3))
        for k in range(10):
            inputs = plain(random_inputs(np.random.default_rng(k), 0.05 * k))
            log.inputs(inputs)
            pilot.step(inputs)
    told = replay(tmp_path / "a.flog", Steady(3.0, 0.05))
    assert (told["limit_m_s"], told["largest_m_s"], told["equal"], told["comparable"]) == (0.5, 0.0, 0, True)
    assert "after the flight's limit of 0.5 m/s" in describe(told)
    told = replay(tmp_path / "a.flog", Steady(3.0, 0.2))
    assert not told["comparable"]
    assert "every 0.200 s, in the flight every 0.050 s: the figures" in describe(told)
    assert "not comparable" in describe(told)
