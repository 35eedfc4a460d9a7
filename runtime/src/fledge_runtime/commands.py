"""The commands that fly: `fledge-runtime simulate`, `fly`, `replay` and `fake-controller`."""

from __future__ import annotations

import argparse
import json
import math
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.errors import RuntimeFault


def add_commands(commands: Any) -> None:
    """Add the commands to the parsers of the command line."""
    sub = commands.add_parser("simulate", help="Fly the folder among columns in a plain quadrotor.")
    sub.add_argument("folder", type=Path, nargs="?", default=Path("."))
    sub.add_argument("--flights", type=int, default=4)
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--distance", type=float, default=20.0, help="m from start to goal")
    sub.add_argument("--density", type=float, default=6.0, help="columns for every 10 m")
    sub.add_argument("--speed", type=float, help="m/s; by default the policy's own")
    sub.add_argument("--own-rays", action="store_true", help="measure along the rays of training alone")
    sub.add_argument("--physics", metavar="MODULE:CLASS", help="another drone, with the interface of Quadrotor")
    sub.add_argument("--mavlink", action="store_true", help="fly through the fake flight controller, in real time")
    sub.add_argument("--delay", type=float, default=0.0, help="s, of each datagram")
    sub.add_argument("--jitter", type=float, default=0.0, help="s, added to the delay at random")
    sub.add_argument("--loss", type=float, default=0.0, help="share of datagrams that are lost")
    sub.add_argument("--log", type=Path, help="write the first flight to this file")
    sub.add_argument("--png", type=Path, help="draw the flights (needs matplotlib)")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(run=run_simulate)

    sub = commands.add_parser("fly", help="Fly a vehicle over MAVLink. A dry run unless --send is given.")
    sub.add_argument("folder", type=Path)
    sub.add_argument("--mavlink", required=True, metavar="ADDRESS", help="udpin:127.0.0.1:14540, /dev/ttyACM0, ...")
    sub.add_argument(
        "--goal", type=numbers(3), required=True, metavar="X,Y,Z", help="m, east, north, up of the local origin"
    )
    sub.add_argument("--send", action="store_true", help="send setpoints; without it nothing moves")
    sub.add_argument("--speed", type=float, default=0.2, help="largest command, m/s (0.2)")
    sub.add_argument("--fence", type=read_fence, metavar="FENCE", help="box:X,Y,Z,X,Y,Z or radius:X,Y,R,LOW,HIGH, m")
    sub.add_argument("--duration", type=float, default=120.0, help="s, at most (120)")
    sub.add_argument(
        "--points", metavar="MODULE:FUNCTION", help="returns the point cloud; without it OBSTACLE_DISTANCE"
    )
    sub.add_argument("--blind", action="store_true", help="fly although no obstacles are measured")
    sub.add_argument("--log", type=Path, help="flight log (flight-DATE-TIME.flog)")
    sub.add_argument("--baud", type=int, default=921600, help="of a serial port")
    sub.set_defaults(run=run_fly)

    sub = commands.add_parser(
        "replay", help="Give the inputs of a flight log to policies again; compare their commands."
    )
    sub.add_argument("log", type=Path)
    sub.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(run=run_replay)

    sub = commands.add_parser("fake-controller", help="A flight controller to practise on, over loopback.")
    sub.add_argument("--port", type=int, default=14540, help="of the runtime, on 127.0.0.1")
    sub.add_argument(
        "--goal", type=numbers(3), default=(20.0, 0.0, 1.5), metavar="X,Y,Z", help="columns stand on the way there"
    )
    sub.add_argument("--density", type=float, default=6.0, help="columns for every 10 m")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--autopilot", choices=("px4", "ardupilot"), default="px4")
    sub.add_argument(
        "--offboard-after", type=float, default=math.inf, metavar="S", help="the pilot selects offboard mode then"
    )
    sub.add_argument("--duration", type=float, default=600.0, help="s")
    sub.add_argument("--delay", type=float, default=0.0)
    sub.add_argument("--jitter", type=float, default=0.0)
    sub.add_argument("--loss", type=float, default=0.0)
    sub.set_defaults(run=run_fake_controller)


def numbers(count: int) -> Any:
    """Return a reader of `count` numbers with commas between."""

    def read(text: str) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in text.split(","))
        except ValueError:
            values = ()
        if len(values) != count or not all(map(math.isfinite, values)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {count} numbers with commas between")
        return values

    return read


def read_fence(text: str) -> Any:
    """Return a geofence from `box:` and two corners, or `radius:`, a centre, the radius and two heights."""
    from fledge_runtime.limits import Box, Cylinder

    kind, _, rest = text.partition(":")
    if kind == "box":
        values = numbers(6)(rest)
        return Box(values[:3], values[3:])
    if kind == "radius":
        x, y, radius, low, high = numbers(5)(rest)
        return Cylinder((x, y), radius, low, high)
    raise argparse.ArgumentTypeError(f"{text!r} is neither box:X,Y,Z,X,Y,Z nor radius:X,Y,R,LOW,HIGH")


def run_simulate(given: Any) -> int:
    """Fly in a simulation; return 0."""
    from fledge_runtime.log import FlightLog
    from fledge_runtime.pilot import load
    from fledge_runtime.simulate import draw, find_physics, simulate, summary

    deployment, physics = load(given.folder), find_physics(given.physics)
    flown: list[Any] = []
    for seed in range(given.seed, given.seed + given.flights):
        log = None
        if given.log is not None and not flown:
            log = FlightLog(given.log, {"identity": deployment.contract["identity"], "command": "simulate"})
        words = {"distance": given.distance, "density": given.density, "speed": given.speed, "log": log}
        if given.mavlink:
            from fledge_runtime.bridges.practice import practise

            flown.append(practise(deployment, seed, link=(given.loss, given.delay, given.jitter), **words))
        else:
            flown.append(simulate(deployment, seed, own_rays=given.own_rays, physics=physics, **words))
        if log is not None:
            log.close()
    facts = [told for told, _ in flown]
    print(json.dumps(facts) if given.json else summary(facts))
    if given.png is not None:
        draw(given.png, [flight for _, flight in flown])
    return 0


def run_fly(given: Any) -> int:
    """Fly a vehicle; return 0 if the flight ended at the goal, or was a dry run."""
    from fledge_runtime.bridges.mavlink import MavlinkBridge
    from fledge_runtime.fly import fly
    from fledge_runtime.limits import Cylinder, Limits
    from fledge_runtime.log import FlightLog, LoggedPilot
    from fledge_runtime.pilot import load
    from fledge_runtime.safety import Guard

    deployment = load(given.folder)
    limits = Limits(speed_m_s=given.speed, goal_radius_m=float(deployment.contract["goal_radius_m"]))
    bridge = MavlinkBridge(
        given.mavlink, send=given.send, points=find_points(given.points), blind=given.blind, baud=given.baud
    )
    path = given.log or Path(time.strftime("flight-%Y%m%d-%H%M%S.flog"))
    try:
        print("Dry run: no setpoint is sent." if not given.send else "SENDING setpoints once the log says so.")
        place = wait_for(bridge)
        goal, fence = np.asarray(given.goal), given.fence
        if fence is None:
            centre, radius = 0.5 * (place + goal), 0.5 * float(np.linalg.norm((goal - place)[:2])) + 5.0
            fence = Cylinder(centre[:2].tolist(), radius, 0.2, float(max(place[2], goal[2])) + 2.0)
        print(f"Geofence: {fence}\nLog: {path}")
        facts = {"identity": deployment.contract["identity"], "goal": list(given.goal), "send": given.send}
        with FlightLog(path, {**facts, "limits": repr(limits), "fence": repr(fence)}) as log:
            guard = Guard(LoggedPilot(deployment.pilot(), log), limits, fence, given.send)
            guard.reset(goal)
            told = fly(bridge, guard, float(deployment.contract["decision_s"]), given.duration, log)
        print(
            f"Ended: {told['reason']} after {told['seconds']:.1f} s, {told['decisions']} decisions, {log.dropped} records lost"
        )
    finally:
        bridge.close()
    return 0 if not given.send or told["reason"] == "goal_reached" else 1


def find_points(name: str | None) -> Any:
    """Return the function that `--points MODULE:FUNCTION` names."""
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise RuntimeFault(
            f"--points {name}: {error}. Give MODULE:FUNCTION; see the guide for what it returns."
        ) from None


def wait_for(bridge: Any, seconds: float = 30.0) -> np.ndarray:
    """Return the vehicle's position as soon as it and its surroundings are known."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        bridge.poll(0.05)
        bridge.tick()
        inputs = bridge.inputs()
        seen = bridge.points_time_s != -math.inf
        if inputs is not None and seen and np.isfinite(inputs.position_w).all():
            return np.asarray(inputs.position_w, float)
    heard = ", ".join(sorted(bridge.counts)) or "nothing"
    raise RuntimeFault(
        f"No position, attitude and obstacles in {seconds:.0f} s (heard {heard}): check the address and the estimator; give "
        "--points, or --blind to fly without obstacles."
    )


def run_replay(given: Any) -> int:
    """Compare policies on a log; return 1 if the folder that flew gives other commands."""
    from fledge_runtime.pilot import load
    from fledge_runtime.replay import describe, replay

    results, differs = {}, False
    for folder in given.folders:
        deployment = load(folder)
        told = results[str(folder)] = replay(given.log, deployment.pilot())
        flew = told["identity"] == deployment.contract["identity"]
        differs = differs or (flew and not told["gaps"] and told["largest_m_s"] > 1e-3)
        if not given.json:
            print(f"{folder}: {describe(told)}" + (" (this folder flew)" if flew else ""))
    if given.json:
        print(json.dumps(results))
    return int(differs)


def run_fake_controller(given: Any) -> int:
    """Run the fake flight controller until its time is over."""
    from fledge_runtime.bridges.fake_flight_controller import FakeFlightController, Link
    from fledge_runtime.columns import Columns

    start = (0.0, 0.0, 1.5)
    world, link = Columns(given.seed, start, given.goal, given.density), Link(given.loss, given.delay, given.jitter)
    with FakeFlightController(given.port, start, link=link, world=world, autopilot=given.autopilot) as fake:
        print(f"Hovering at {start} m, {len(world.centre)} columns, MAVLink to 127.0.0.1:{given.port}; Ctrl-C ends.")
        begun, mode = time.monotonic(), ""
        try:
            while time.monotonic() - begun < given.duration:
                time.sleep(0.1)
                seconds = time.monotonic() - begun
                if fake.mode == "position" and seconds > given.offboard_after and fake.pilot_selects("offboard"):
                    given.offboard_after = math.inf
                if fake.mode != mode:
                    mode = fake.mode
                    place = " ".join(f"{value:.2f}" for value in fake.drone.position)
                    print(f"{seconds:6.1f} s  mode {mode} at {place} m", flush=True)
        except KeyboardInterrupt:
            pass
    return 0
