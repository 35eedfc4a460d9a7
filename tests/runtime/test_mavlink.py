"""The MAVLink bridge: frames, setpoints, odometry, modes, clocks; and the fake flight controller's own rules."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pymavlink")

from fledge_runtime.bridges.clock import ClockOffset
from fledge_runtime.bridges.fake_flight_controller import FakeFlightController
from fledge_runtime.bridges.frames import rotate, swap_attitude, swap_body, swap_world, swap_yaw, yaw_of
from fledge_runtime.bridges.mavlink import LinkError, MavlinkBridge, import_mavutil
from fledge_runtime.bridges.practice import local_port
from fledge_runtime.commands import wait_for
from fledge_runtime.errors import InputError, RuntimeFault, UsageError

MAV = import_mavutil().mavlink
HOVER = (0.0, 0.0, 0.0)


def yawed(yaw: float) -> np.ndarray:
    return np.array([math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)])


# ---- frames ------------------------------------------------------------------------------------------------------------


def test_north_east_down_is_y_x_and_minus_z() -> None:
    assert swap_world([1.0, 2.0, 3.0]).tolist() == [2.0, 1.0, -3.0]
    assert swap_world([[1.0, 0.0, 0.0], [0.0, 0.0, -5.0]]).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 5.0]]


@pytest.mark.parametrize(
    ("ned", "enu"), [(0.0, 90.0), (90.0, 0.0), (180.0, -90.0), (-90.0, 180.0), (45.0, 45.0), (-170.0, -100.0)]
)
def test_yaw_is_clockwise_from_north_there_and_counter_clockwise_from_east_here(ned: float, enu: float) -> None:
    assert math.degrees(swap_yaw(math.radians(ned))) == pytest.approx(enu)
    assert math.degrees(yaw_of(swap_attitude(yawed(math.radians(ned))))) == pytest.approx(enu)


def test_an_attitude_turns_a_vector_into_the_same_direction_in_both_frames() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ned = rng.normal(size=4)
        ned /= np.linalg.norm(ned)
        enu, vector = swap_attitude(ned), rng.normal(size=3)
        assert np.allclose(rotate(enu, swap_body(vector)), swap_world(rotate(ned, vector)))
        assert np.allclose(swap_attitude(enu), ned)


# ---- the bridge on messages ---------------------------------------------------------------------------------------------


class Sent:
    """Takes the place of the link's encoder."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.calls.append((name.removesuffix("_send"), values))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [values for called, values in self.calls if called == name]


@pytest.fixture
def bridge() -> Iterator[MavlinkBridge]:
    made = MavlinkBridge("udpin:127.0.0.1:0", send=True, clock=lambda: 50.0)
    made.link.mav = Sent()
    yield made
    made.close()


def give(bridge: MavlinkBridge, message: Any, now: float = 50.0, system: int = 1, component: int = 1) -> None:
    message._header.srcSystem, message._header.srcComponent = system, component
    bridge.take(message, now)


def heartbeat(mode: int, armed: bool = True, autopilot: int = 12, kind: int = 2) -> Any:
    return MAV.MAVLink_heartbeat_message(kind, autopilot, 1 | 128 * armed, mode, 4, 3)


def test_a_setpoint_is_a_velocity_in_ned_with_a_held_yaw(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0))
    bridge.send_velocity([1.0, 2.0, 0.5])
    ((_, system, component, frame, mask, *numbers),) = bridge.link.mav.of("set_position_target_local_ned")
    assert (system, component, frame) == (1, 1, 1)
    assert mask == 0b0000_0101_1100_0111  # velocity and yaw rate alone count
    assert numbers == [0.0, 0.0, 0.0, 2.0, 1.0, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    message = MAV.MAVLink_set_position_target_local_ned_message(1, system, component, frame, mask, *numbers)
    assert (message.vx, message.vy, message.vz, message.yaw_rate) == (2.0, 1.0, -0.5, 0.0)


def test_without_send_no_setpoint_and_no_mode_leaves(bridge: MavlinkBridge) -> None:
    bridge.allowed = False
    give(bridge, heartbeat(0))
    bridge.send_velocity([1.0, 0.0, 0.0])
    bridge.request_hold()
    bridge.tick()
    assert {name for name, _ in bridge.link.mav.calls} == {"heartbeat", "timesync", "command_long"}
    assert {values[2] for values in bridge.link.mav.of("command_long")} == {511}  # message intervals


@pytest.mark.parametrize(("autopilot", "modes"), [(12, (4, 3)), (3, (17, 0))])
def test_hold_is_the_flight_controllers_own_mode(bridge: MavlinkBridge, autopilot: int, modes: tuple[int, int]) -> None:
    give(bridge, heartbeat(0, autopilot=autopilot))
    bridge.request_hold()
    assert bridge.link.mav.of("command_long") == [(1, 1, 176, 0, 1, *modes, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("autopilot", "mode", "armed", "takes"),
    [
        (12, 6 << 16, True, True),
        (12, 6 << 16, False, False),
        (12, 4 << 16 | 3 << 24, True, False),
        (3, 4, True, True),
        (3, 5, True, False),
        (12, 4, True, False),
    ],
)
def test_setpoints_are_followed_in_offboard_and_guided_mode_when_armed(
    bridge: MavlinkBridge, autopilot: int, mode: int, armed: bool, takes: bool
) -> None:
    give(bridge, heartbeat(mode, armed, autopilot))
    assert bridge.takes_setpoints is takes


def test_position_and_attitude_become_inputs_in_enu(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0))
    assert bridge.inputs() is None
    give(bridge, MAV.MAVLink_local_position_ned_message(10_000, 1.0, 2.0, -3.0, 0.5, 0.25, -0.125))
    assert bridge.inputs() is None
    give(bridge, MAV.MAVLink_attitude_quaternion_message(10_000, *yawed(math.pi / 2), 0.0, 0.0, 0.0))
    inputs = bridge.inputs()
    assert inputs is not None
    assert inputs.time_s == pytest.approx(50.0)
    assert inputs.position_w.tolist() == [2.0, 1.0, 3.0]
    assert inputs.velocity_w.tolist() == [0.25, 0.5, 0.125]
    assert np.allclose(inputs.quaternion_wxyz, [1.0, 0.0, 0.0, 0.0])  # its nose to the east
    assert bridge.points_time_s == -math.inf  # no obstacles measured: the guard does not fly
    bridge.blind = True
    bridge.inputs()
    assert bridge.points_time_s is None


def odometry(velocity: Any, child: int) -> Any:
    covariance = [math.nan] * 21
    fields = (1, child, 1.0, 2.0, -3.0, yawed(math.pi / 2), *velocity, 0.0, 0.0, 0.0, covariance, covariance)
    return MAV.MAVLink_odometry_message(10_000_000, *fields)


@pytest.mark.parametrize(("velocity", "child"), [((1.0, 0.0, -0.5), 12), ((0.0, 1.0, -0.5), 1)])
def test_odometry_in_the_body_and_in_the_world_say_the_same(bridge: MavlinkBridge, velocity: Any, child: int) -> None:
    give(bridge, heartbeat(0))
    give(bridge, odometry(velocity, child))
    inputs = bridge.inputs()
    assert inputs is not None
    assert inputs.position_w.tolist() == [2.0, 1.0, 3.0]
    assert np.allclose(inputs.velocity_w, [1.0, 0.0, 0.5])


def test_an_attitude_that_stops_makes_the_inputs_old(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0))
    give(bridge, MAV.MAVLink_attitude_quaternion_message(10_000, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    give(bridge, MAV.MAVLink_local_position_ned_message(10_500, 1.0, 2.0, -3.0, *HOVER), now=50.5)
    inputs = bridge.inputs()
    assert inputs is not None
    assert inputs.time_s == pytest.approx(50.0)


def test_a_message_that_was_overtaken_is_left_out_and_a_clock_that_went_back_is_not(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0))
    for boot_ms, x, now in ((10_000, 1.0, 50.0), (10_040, 2.0, 50.04), (10_020, 9.0, 50.05)):
        give(bridge, MAV.MAVLink_local_position_ned_message(boot_ms, x, 0.0, 0.0, *HOVER), now)
    assert bridge.position is not None
    assert bridge.position[1].tolist() == [0.0, 2.0, 0.0]
    bridge.offset.locked = True
    give(bridge, MAV.MAVLink_local_position_ned_message(2_000, 3.0, 0.0, 0.0, *HOVER))
    assert bridge.position[0] == pytest.approx(42.0, abs=0.1)


def test_other_vehicles_and_ground_stations_are_not_heard(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0, autopilot=8, kind=6), system=255)
    assert bridge.system is None
    give(bridge, heartbeat(6 << 16), system=3)
    give(bridge, heartbeat(0, armed=False), system=4)
    give(bridge, MAV.MAVLink_local_position_ned_message(10_000, 1.0, 2.0, -3.0, *HOVER), system=4)
    assert bridge.system == 3
    assert bridge.takes_setpoints
    assert bridge.position is None


def test_the_autopilots_component_alone_has_mode_position_and_attitude(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(6 << 16), component=191)
    assert bridge.system is None
    give(bridge, heartbeat(6 << 16))
    give(bridge, heartbeat(0, armed=False), component=191)
    give(bridge, MAV.MAVLink_local_position_ned_message(10_000, 1.0, 2.0, -3.0, *HOVER), component=197)
    give(bridge, MAV.MAVLink_attitude_quaternion_message(10_000, *yawed(0.0), 0.0, 0.0, 0.0), component=154)
    assert bridge.takes_setpoints
    assert bridge.position is bridge.attitude is None


def test_the_named_system_is_flown_and_others_are_noted(bridge: MavlinkBridge) -> None:
    bridge.wanted = 4
    give(bridge, heartbeat(0, autopilot=3), system=3)
    assert (bridge.system, bridge.autopilots) == (None, {3: 3})
    give(bridge, heartbeat(6 << 16), system=4)
    assert (bridge.system, bridge.autopilot) == (4, 12)


def located(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0))
    give(bridge, MAV.MAVLink_local_position_ned_message(10_000, 1.0, 2.0, -3.0, *HOVER))
    give(bridge, MAV.MAVLink_attitude_quaternion_message(10_000, *yawed(0.0), 0.0, 0.0, 0.0))


@pytest.mark.parametrize("stamp_us", [1_760_000_000_000_000, 0])
def test_obstacles_on_another_clock_count_from_their_arrival_and_leave_the_odometrys_alone(
    bridge: MavlinkBridge, stamp_us: int
) -> None:
    located(bridge)
    fields = ([200] * 72, 5, 10, 300, 0.0, 0.0, 12)
    give(bridge, MAV.MAVLink_obstacle_distance_message(stamp_us, 0, *fields), now=50.25)
    bridge.inputs()
    assert bridge.points_time_s == 50.25
    give(bridge, MAV.MAVLink_local_position_ned_message(10_300, 1.0, 2.0, -3.0, *HOVER), now=50.3)
    assert bridge.position is not None
    assert bridge.position[0] == pytest.approx(50.3)


@pytest.mark.parametrize("measured", [None, math.nan, math.inf, "now"])
def test_points_without_a_time_are_stale(bridge: MavlinkBridge, measured: Any) -> None:
    located(bridge)
    bridge.points = lambda: ({"points_w": np.zeros((0, 3))}, measured)
    assert bridge.inputs() is not None
    assert bridge.points_time_s == -math.inf


@pytest.mark.parametrize("given", ["a/path", 5, ({"cloud": 1}, 2.0), ([], 1.0), ({}, 1.0, 2.0)])
def test_points_of_another_form_are_refused(bridge: MavlinkBridge, given: Any) -> None:
    located(bridge)
    bridge.points = lambda: given
    with pytest.raises(InputError, match="must return None or"):
        bridge.inputs()


def test_a_function_of_points_that_fails_is_named(bridge: MavlinkBridge) -> None:
    located(bridge)
    bridge.points = lambda: [][1]  # type: ignore[misc]
    with pytest.raises(InputError, match="failed with IndexError"):
        bridge.inputs()


def test_a_flight_says_what_is_missing_and_refuses_two_autopilots(
    bridge: MavlinkBridge, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.tick = lambda: None  # type: ignore[method-assign]
    with pytest.raises(RuntimeFault, match="No heartbeat of an autopilot"):
        wait_for(bridge, 0.01)
    give(bridge, heartbeat(0))
    with pytest.raises(RuntimeFault, match="No position and no attitude"):
        wait_for(bridge, 0.01)
    located(bridge)
    with pytest.raises(RuntimeFault, match="No OBSTACLE_DISTANCE"):
        wait_for(bridge, 0.01)
    bridge.points = lambda: None
    with pytest.raises(RuntimeFault, match="--points returned no"):
        wait_for(bridge, 0.01)
    bridge.points = lambda: ({"points_w": np.zeros((0, 3))}, 50.0)
    assert wait_for(bridge, 5.0, listen=0.0).tolist() == [2.0, 1.0, 3.0]
    assert "Vehicle: system 1, PX4" in capsys.readouterr().out
    give(bridge, heartbeat(0, autopilot=3), system=3)
    with pytest.raises(UsageError, match=r"1 \(PX4\) and 3 \(ArduPilot\).*--system"):
        wait_for(bridge, 5.0)


def test_a_time_request_is_answered_with_our_time(bridge: MavlinkBridge) -> None:
    give(bridge, heartbeat(0))
    give(bridge, MAV.MAVLink_timesync_message(0, 777))
    assert bridge.link.mav.of("timesync") == [(50_000_000_000, 777)]


def test_obstacle_sectors_run_clockwise_from_the_nose(bridge: MavlinkBridge) -> None:
    distances = [65535] * 72
    distances[18], distances[0], distances[3] = 200, 301, 5  # right; beyond the largest; below the least
    give(bridge, heartbeat(0))
    give(bridge, MAV.MAVLink_local_position_ned_message(10_000, 0.0, 0.0, -2.0, *HOVER))
    give(bridge, MAV.MAVLink_attitude_quaternion_message(10_000, *yawed(0.0), 0.0, 0.0, 0.0))  # its nose to the north
    give(bridge, MAV.MAVLink_obstacle_distance_message(10_000_000, 0, distances, 5, 10, 300, 0.0, 0.0, 12))
    inputs = bridge.inputs()
    assert inputs is not None
    assert np.allclose(np.hypot(*inputs.points_w[:, :2].T), 2.0)
    assert np.allclose(inputs.points_w[:, :2].mean(axis=0), [2.0, 0.0], atol=0.01)  # the east
    assert np.abs(inputs.points_w[:, 1]).max() < 0.1  # a sector of 5 degrees
    assert inputs.points_w[:, 2].min() < 1.7
    assert inputs.points_w[:, 2].max() > 2.3
    assert bridge.points_time_s == pytest.approx(50.0)


def test_an_address_that_makes_no_sense_is_one_sentence() -> None:
    with pytest.raises(LinkError, match="cannot be opened"):
        MavlinkBridge("udpin:nowhere")


@pytest.mark.parametrize("address", ["udpin:127.0.0.1:99999", "/dev/fledge-none", "udpin:127.0.0.1:-4", "udpin:a:b:c"])
def test_a_port_that_does_not_exist_is_one_sentence(address: str) -> None:
    with pytest.raises(LinkError, match=r"cannot be opened|needs pyserial"):
        MavlinkBridge(address)


def test_a_second_runtime_on_the_same_port_is_refused(bridge: MavlinkBridge) -> None:
    with pytest.raises(LinkError, match="Another program listens"):
        MavlinkBridge(f"udpin:127.0.0.1:{local_port(bridge)}")


# ---- clocks ------------------------------------------------------------------------------------------------------------


def test_the_clocks_agree_to_milliseconds_through_50_ms_of_jitter() -> None:
    rng, offset, theirs = np.random.default_rng(1), ClockOffset(), 900.0  # our clock is 900 s behind
    for k in range(400):
        now = 0.02 * k
        got = offset.message(now + theirs, now + rng.uniform(0.0, 0.05))
        if k % 50 == 0:
            out, back = rng.uniform(0.0, 0.05, 2)
            offset.reply(now, now + out + theirs, now + out + back)
    assert abs(got - now) < 0.015


def test_in_flight_a_jump_of_their_clock_shows_in_the_times() -> None:
    offset = ClockOffset()
    assert offset.message(10.0, 50.0) == 50.0
    offset.locked = True
    assert offset.message(15.0, 50.02) == 55.0
    offset.reply(50.0, 15.0, 50.01)
    assert offset.message(15.1, 50.1) == pytest.approx(55.1)


def test_on_the_ground_a_restart_of_their_clock_is_taken() -> None:
    offset = ClockOffset()
    offset.message(1000.0, 50.0)
    assert offset.message(1.0, 60.0) == 60.0


# ---- the fake flight controller ------------------------------------------------------------------------------------------


def wait_until(claim: Any, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if claim():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("autopilot", ["px4", "ardupilot"])
def test_the_fake_controller_is_heard_and_enters_hold_when_asked(autopilot: str) -> None:
    bridge = MavlinkBridge("udpin:127.0.0.1:0", send=True)
    with FakeFlightController(local_port(bridge), (1.0, 2.0, 1.5), yaw=0.3, autopilot=autopilot) as fake:
        assert wait_until(lambda: bridge.poll(0.02) and bridge.inputs() is not None)
        inputs = bridge.inputs()
        assert inputs is not None
        assert np.allclose(inputs.position_w, [1.0, 2.0, 1.5], atol=0.05)
        assert yaw_of(inputs.quaternion_wxyz) == pytest.approx(0.3, abs=0.01)
        assert abs(inputs.time_s - time.monotonic()) < 0.5
        if autopilot == "px4":
            assert not fake.pilot_selects("offboard")  # no stream of setpoints
        for _ in range(5):
            bridge.send_velocity([0.0, 0.0, 0.0])
            time.sleep(0.03)
        assert fake.pilot_selects("offboard")
        assert wait_until(lambda: (bridge.send_velocity([0.5, 0.0, 0.0]), bridge.poll(0.02)) and bridge.takes_setpoints)
        bridge.request_hold()
        assert wait_until(lambda: bridge.poll(0.02) and not bridge.takes_setpoints)
        assert fake.mode == "hold"
        assert fake.asked_to_arm == 0
    bridge.close()


def test_px4_leaves_offboard_mode_when_setpoints_stop() -> None:
    bridge = MavlinkBridge("udpin:127.0.0.1:0", send=True)
    with FakeFlightController(local_port(bridge), offboard_loss_s=0.3) as fake:
        assert wait_until(lambda: bridge.poll(0.02) and bridge.system is not None)
        assert wait_until(lambda: bridge.send_velocity([1.0, 0.0, 0.0]) or fake.pilot_selects("offboard"))
        assert wait_until(lambda: fake.mode == "hold")
        assert fake.failsafe
    bridge.close()
