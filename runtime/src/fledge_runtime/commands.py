"""The commands that fly: `fledge-runtime simulate`, `fly`, `replay` and `fake-controller`."""

from __future__ import annotations

import json
import math
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.arguments import number, numbers, read_fence, whole
from fledge_runtime.errors import InputError, RuntimeFault, UsageError


def add_commands(commands: Any) -> None:
    """Add the commands to the parsers of the command line."""
    sub = commands.add_parser("simulate", help="Fly the folder among columns in a plain quadrotor.")
    sub.add_argument("folder", type=Path, nargs="?", default=Path("."))
    sub.add_argument("--flights", type=whole(1), default=4)
    sub.add_argument("--seed", type=whole(0), default=0)
    sub.add_argument("--distance", type=number(above=0.0), default=20.0, help="m from start to goal")
    sub.add_argument("--density", type=number(least=0.0), default=6.0, help="columns for every 10 m")
    sub.add_argument("--speed", type=number(above=0.0), help="m/s; by default the policy's own")
    sub.add_argument("--own-rays", action="store_true", help="measure along the rays of training alone")
    sub.add_argument("--physics", metavar="MODULE:CLASS", help="another drone, with the interface of Quadrotor")
    sub.add_argument("--mavlink", action="store_true", help="fly through the fake flight controller, in real time")
    sub.add_argument("--delay", type=number(least=0.0), default=0.0, help="s, of each datagram")
    sub.add_argument("--jitter", type=number(least=0.0), default=0.0, help="s, added to the delay at random")
    sub.add_argument("--loss", type=number(least=0.0, most=1.0), default=0.0, help="share of datagrams that are lost")
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
    sub.add_argument("--speed", type=number(above=0.0), default=0.2, help="largest command, m/s (0.2)")
    sub.add_argument("--fence", type=read_fence, metavar="FENCE", help="box:X,Y,Z,X,Y,Z or radius:X,Y,R,LOW,HIGH, m")
    sub.add_argument("--duration", type=number(above=0.0, infinite=True), default=120.0, help="s, at most (120)")
    sub.add_argument(
        "--points", metavar="MODULE:FUNCTION", help="returns the point cloud; without it OBSTACLE_DISTANCE"
    )
    sub.add_argument("--blind", action="store_true", help="fly although no obstacles are measured")
    sub.add_argument("--system", type=whole(1, 255), help="of the vehicle; by default the only one that is heard")
    sub.add_argument("--log", type=Path, help="flight log (flight-DATE-TIME.flog)")
    sub.add_argument("--baud", type=whole(1), default=921600, help="of a serial port")
    sub.set_defaults(run=run_fly)

    sub = commands.add_parser(
        "replay", help="Give the inputs of a flight log to policies again; compare their commands."
    )
    sub.add_argument("log", type=Path)
    sub.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(run=run_replay)

    sub = commands.add_parser("fake-controller", help="A flight controller to practise on, over loopback.")
    sub.add_argument("--port", type=whole(1, 65535), default=14540, help="of the runtime, on 127.0.0.1")
    sub.add_argument(
        "--goal", type=numbers(3), default=(20.0, 0.0, 1.5), metavar="X,Y,Z", help="columns stand on the way there"
    )
    sub.add_argument("--density", type=number(least=0.0), default=6.0, help="columns for every 10 m")
    sub.add_argument("--seed", type=whole(0), default=0)
    sub.add_argument("--autopilot", choices=("px4", "ardupilot"), default="px4")
    sub.add_argument(
        "--offboard-after",
        type=number(least=0.0, infinite=True),
        default=math.inf,
        metavar="S",
        help="the pilot selects offboard mode then",
    )
    sub.add_argument("--duration", type=number(above=0.0, infinite=True), default=600.0, help="s")
    sub.add_argument("--delay", type=number(least=0.0), default=0.0)
    sub.add_argument("--jitter", type=number(least=0.0), default=0.0)
    sub.add_argument("--loss", type=number(least=0.0, most=1.0), default=0.0)
    sub.set_defaults(run=run_fake_controller)


def run_simulate(given: Any) -> int:
    """Fly in a simulation; return 0."""
    from fledge_runtime.pilot import load
    from fledge_runtime.quadrotor import Quadrotor
    from fledge_runtime.simulate import check_drawing, draw, simulate, summary

    deployment, physics = load(given.folder), Quadrotor
    if given.physics is not None:
        physics = find_object("--physics", given.physics, "MODULE:CLASS with the interface of Quadrotor")
        if not (isinstance(physics, type) and hasattr(physics, "step")):
            raise UsageError(f"--physics {given.physics} is no class with the interface of Quadrotor.")
    if given.png is not None:
        check_drawing(given.png)
    flown: list[Any] = []
    for seed in range(given.seed, given.seed + given.flights):
        log = None
        if given.log is not None and not flown:
            log = new_log(given.log, {"identity": deployment.contract["identity"], "command": "simulate"})
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
    """Fly a vehicle; return 0 if the flight ended at the goal or after its duration, or was a dry run."""
    from fledge_runtime.bridges.mavlink import MavlinkBridge
    from fledge_runtime.fly import fly, quiet
    from fledge_runtime.limits import Limits
    from fledge_runtime.log import LoggedPilot
    from fledge_runtime.pilot import load
    from fledge_runtime.safety import Guard

    deployment, goal = load(given.folder), np.asarray(given.goal)
    limits = Limits(speed_m_s=given.speed, goal_radius_m=float(deployment.contract["goal_radius_m"]))
    pilot, points = deployment.pilot(), None
    if given.points is not None:
        points = find_object("--points", given.points, "MODULE:FUNCTION; see the guide for what it returns")
    if given.fence is not None:
        check_goal(goal, given.fence)
    path = given.log or Path(time.strftime("flight-%Y%m%d-%H%M%S.flog"))
    if path.exists() or not path.absolute().parent.is_dir():
        raise UsageError(f"The log {path} exists, or its folder does not: name a new file in a folder that exists.")
    print("Dry run: no setpoint is sent." if not given.send else "SENDING setpoints once the log says so.")
    if given.speed > pilot.speed_limit:
        print(f"--speed {given.speed:g} is above the policy's limit: its commands end at {pilot.speed_limit:g} m/s.")
    bridge = MavlinkBridge(
        given.mavlink, given.send, points, given.blind, time.monotonic, baud=given.baud, system=given.system
    )
    try:
        place = wait_for(bridge)
        fence = given.fence or fence_around(place, goal)
        check_goal(goal, fence)
        print(f"Geofence: {fence}\nLog: {path}", flush=True)
        facts = {"identity": deployment.contract["identity"], "goal": list(given.goal), "send": given.send}
        with new_log(path, {**facts, "limits": repr(limits), "fence": repr(fence)}) as log:
            guard = Guard(LoggedPilot(pilot, log), limits, fence, given.send)
            guard.reset(goal)
            told = fly(bridge, guard, float(deployment.contract["decision_s"]), given.duration, log)
        say = quiet(print)  # whose output may be closed by now
        ended = f"{told['reason']} after {told['seconds']:.1f} s, {told['decisions']} decisions"
        say(f"Ended: {ended}, {log.dropped} records lost" + (f". {log.error}" if log.error else ""))
        if not told["flew"]:
            say("It only waited: the vehicle was never armed in offboard mode (ArduPilot: guided) with valid inputs.")
    finally:
        bridge.close()
    if told["error"]:
        return 1
    return 0 if not given.send or told["reason"] in ("goal_reached", "duration") else 1


def new_log(path: Path, facts: dict[str, Any]) -> Any:
    """Return a new flight log; raise UsageError if it cannot be written."""
    from fledge_runtime.log import FlightLog, LogError

    try:
        return FlightLog(path, facts)
    except LogError as error:
        raise UsageError(str(error)) from None


def fence_around(place: np.ndarray, goal: np.ndarray) -> Any:
    """Return the geofence of a flight for which none was given."""
    from fledge_runtime.limits import Cylinder

    centre, radius = 0.5 * (place + goal), 0.5 * float(np.linalg.norm((goal - place)[:2])) + 5.0
    return Cylinder(centre[:2].tolist(), radius, 0.2, float(max(place[2], goal[2])) + 2.0)


def check_goal(goal: np.ndarray, fence: Any) -> None:
    """Raise UsageError if the goal is outside of the geofence."""
    if not fence.contains(goal):
        raise UsageError(f"The goal {goal.tolist()} is outside of the geofence {fence}: change --goal or --fence.")


def find_object(option: str, name: str, form: str) -> Any:
    """Return what `MODULE:NAME` names; modules of the working directory are found."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # importing a module of the user's may raise anything
        raise UsageError(f"{option} {name}: {error}. Give {form}.") from None
    if not callable(found):
        raise UsageError(f"{option} {name} cannot be called. Give {form}.")
    return found


def wait_for(bridge: Any, seconds: float = 30.0, listen: float = 2.5) -> np.ndarray:
    """Return the vehicle's position as soon as it and its surroundings are known.

    Args:
        listen: Seconds, at least: another autopilot on the link sends a heartbeat each second.
    """
    from fledge_runtime.bridges.mavlink import NAMES

    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        bridge.poll(0.05)
        bridge.tick()
        if len(bridge.autopilots) > 1 and bridge.wanted is None:
            systems = " and ".join(f"{n} ({NAMES.get(kind, kind)})" for n, kind in sorted(bridge.autopilots.items()))
            raise UsageError(f"Autopilots of systems {systems} are heard: name one with --system.")
        try:
            inputs = bridge.inputs()
        except InputError as error:
            raise UsageError(f"--points: {error}.") from None
        seen = bridge.points_time_s != -math.inf
        ready = inputs is not None and seen and np.isfinite(inputs.position_w).all()
        if ready and time.monotonic() > begun + listen:
            print(f"Vehicle: system {bridge.system}, {NAMES.get(bridge.autopilot, bridge.autopilot)}")
            return np.asarray(inputs.position_w, float)
    raise RuntimeFault(missing(bridge, seconds))


def missing(bridge: Any, seconds: float) -> str:
    """Return the sentence that names what has not arrived, and what to do."""
    heard = ", ".join(sorted(bridge.counts)) or "nothing"
    if bridge.system is None:
        others = ", ".join(map(str, sorted(bridge.autopilots))) or "none"
        named = "an autopilot" if bridge.wanted is None else f"system {bridge.wanted}"
        return f"No heartbeat of {named} in {seconds:.0f} s (autopilots heard: {others}): check the address."
    lacks = [name for name, value in (("position", bridge.position), ("attitude", bridge.attitude)) if value is None]
    if bridge.position is not None and not np.isfinite(bridge.position[1]).all():
        lacks.append("finite position")
    if lacks:
        return f"No {' and no '.join(lacks)} in {seconds:.0f} s (heard {heard}): check the vehicle's estimator."
    if bridge.points is not None:
        return f"--points returned no surroundings with a finite time in {seconds:.0f} s: check the sensor."
    return (
        f"No OBSTACLE_DISTANCE in {seconds:.0f} s (heard {heard}): give --points, or --blind to fly without obstacles."
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
