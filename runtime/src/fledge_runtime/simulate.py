"""Fly a pilot among columns in a plain quadrotor, on simulated time: a check of a folder, not a benchmark."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.columns import Columns
from fledge_runtime.errors import UsageError
from fledge_runtime.inputs import Inputs
from fledge_runtime.log import FlightLog, LoggedPilot, plain
from fledge_runtime.quadrotor import STEP_S, Quadrotor
from fledge_runtime.safety import FLYING, Guard, Limits

HEIGHT_M = 1.5
RADIUS_M = 0.3  # of the drone


class SimulatedClock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


def limits_for(contract: dict[str, Any], speed: float | None) -> Limits:
    """Return the limits of a simulated flight: the policy's own speed unless another is given."""
    speed = float(contract["limits"]["speed_m_s"]) if speed is None else speed
    return Limits(speed_m_s=speed, goal_radius_m=float(contract["goal_radius_m"]))


def simulate(
    deployment: Any,
    seed: int,
    distance: float = 20.0,
    density: float = 6.0,
    speed: float | None = None,
    own_rays: bool = False,
    physics: Any = Quadrotor,
    log: FlightLog | None = None,
) -> tuple[dict[str, Any], Flight]:
    """Fly once, on simulated time. Return the facts of the flight, and its way.

    Args:
        density: Columns for every 10 m of the way.
        own_rays: Measure along the rays of training alone, not with a dense LiDAR.
        physics: A class with the interface of Quadrotor.
        log: Its clock is set to the simulated one.
    """
    clock, contract = SimulatedClock(), deployment.contract
    start, goal = np.array([0.0, 0.0, HEIGHT_M]), np.array([distance, 0.0, HEIGHT_M])
    world, drone, pilot = Columns(seed, start, goal, density), physics(start), deployment.pilot()
    if log is not None:
        log.clock, pilot = clock, LoggedPilot(pilot, log)
    limits = limits_for(contract, speed)
    guard = Guard(pilot, limits, send=True, clock=clock)
    guard.reset(goal)
    sensor, decision_s = contract["sensor"] if own_rays else None, float(contract["decision_s"])
    flight = Flight(world, start, goal)
    while clock.time_s < 3.0 * distance / limits.speed_m_s + 10.0 and not flight.hit:
        points = world.points(drone.position, drone.quaternion, sensor)
        pose = drone.position.copy(), drone.velocity.copy(), drone.quaternion
        inputs = plain(Inputs(clock.time_s, *pose, points_w=points))
        if log is not None:
            log.inputs(inputs)
        guard.update(inputs, True, clock.time_s)
        if guard.state != FLYING:
            break
        command = guard.output()
        for _ in range(max(1, round(decision_s / STEP_S))):
            drone.step(command.velocity_w, decision_s / max(1, round(decision_s / STEP_S)))
            flight.note(drone.position)
        clock.time_s += decision_s
    return {"seed": seed, **flight.result(guard.reason or "timeout", clock.time_s)}, flight


class Flight:
    """Way and clearance of a flight."""

    def __init__(self, world: Columns, start: np.ndarray, goal: np.ndarray) -> None:
        self.world, self.goal = world, goal
        self.places, self.closest, self.hit = [start.copy()], math.inf, False

    def note(self, position: np.ndarray) -> None:
        """Take the next position."""
        self.places.append(position.copy())
        self.closest = min(self.closest, self.world.clearance(position) - RADIUS_M)
        self.hit = self.closest < 0.0

    def result(self, reason: str, seconds: float) -> dict[str, Any]:
        """Return the facts of the flight."""
        way = np.asarray(self.places)
        length = float(np.linalg.norm(np.diff(way, axis=0), axis=-1).sum())
        success = reason == "goal_reached" and not self.hit
        away = float(np.linalg.norm(way[-1] - self.goal))
        facts = {"success": success, "reason": "collision" if self.hit else reason, "seconds": seconds}
        return {**facts, "closest_m": self.closest, "length_m": length, "goal_m": away}


def summary(flights: list[dict[str, Any]]) -> str:
    """Return the lines that `fledge-runtime simulate` prints."""
    lines = ["seed  result        seconds  way m  closest m"]
    for one in flights:
        told = f"{one['seconds']:7.1f}  {one['length_m']:5.1f}  {one['closest_m']:9.2f}"
        lines.append(f"{one['seed']:4d}  {one['reason']:12}  {told}")
    closest = [one["closest_m"] for one in flights]
    reached = sum(one["success"] for one in flights)
    text = f"{reached} of {len(flights)} flights reached the goal; closest clearance {min(closest):.2f} m"
    return "\n".join([*lines, text + f", median {statistics.median(closest):.2f} m"])


def check_drawing(path: Path) -> None:
    """Raise UsageError if a drawing cannot be written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--png needs matplotlib: pip install matplotlib.") from None
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--png {path}: the folder {path.absolute().parent} does not exist.")


def draw(path: Path, flights: list[Flight]) -> None:
    """Write a view of flights from above; needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(10, 3.5 * len(flights)), layout="tight")
    for axes, flight in zip(figure.subplots(len(flights), squeeze=False)[:, 0], flights):
        for centre, radius in zip(flight.world.centre, flight.world.radius):
            axes.add_artist(Circle(centre, radius, color="0.6"))
        axes.plot(*np.asarray(flight.places)[:, :2].T)
        axes.plot(*flight.goal[:2], "x")
        axes.set_aspect("equal")
        axes.set_ylim(-5.0, 5.0)
        axes.set_ylabel("m")
    figure.savefig(path)
