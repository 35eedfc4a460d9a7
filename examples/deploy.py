"""Fly an exported navigation policy on a robot: a point cloud, odometry and a goal in, a velocity command out.

    fledge export fledge-reflex policy.onnx       # on the machine that trained it
    pip install numpy onnxruntime                 # all that the robot needs
    python examples/deploy.py policy.onnx

Prints the commands of a flight of 12 m past a pillar, which takes about seven seconds. The file itself and
docs/guides/deploy.md describe the policy's inputs and output. A policy that reads a plan, such as fledge-nav, also needs
Fledge on the robot: its planner computes that input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime

BEAM_DEG = 1.0  # angle between a point and a beam below which the beam hits it; simulated beams are thin rays
NO_MOVERS = np.zeros((0, 8))


class Pilot:
    """One flight from `start` to `goal` (3 numbers each, m, world)."""

    def __init__(self, path: str, start: np.ndarray, goal: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the network is small: more threads only wait for each other
        self.session = onnxruntime.InferenceSession(path, options)
        self.contract = json.loads(self.session.get_modelmeta().custom_metadata_map["contract"])
        self.goal = np.asarray(goal)
        angle = np.arctan2(*(self.goal - start)[1::-1])
        dx, dy = np.cos(angle), np.sin(angle)
        self.angle = angle
        self.to_goal_frame = np.array([[dx, dy, 0], [-dy, dx, 0], [0, 0, 1]])  # fixed for the whole flight
        self.planner = make_planner(self.contract)
        self.last_action: np.ndarray | None = None
        memory = self.contract.get("memory")  # of a recurrent policy: zeros when the flight begins
        self.memory = None if memory is None else np.zeros((1, *memory["shape"]), np.float32)

    def command(
        self, points: np.ndarray, pos: np.ndarray, vel: np.ndarray, yaw: float, movers: np.ndarray = NO_MOVERS
    ) -> np.ndarray:
        """Return the velocity to fly for the next `contract["decision_s"]` seconds, [3] m/s, world.

        Args:
            points: [N, 3] m, world: LiDAR hits, with those of the ground, without those of moving obstacles in `movers`.
                From a sensor that turns with the drone: `points @ attitude.T + pos`, attitude [3, 3] from body to world.
            pos, vel: [3] m, m/s, world; the ground is at z = 0.
            yaw: Radians, counter-clockwise from world x.
            movers: [K, 8] world: centre (3), velocity (3), width, height (m) of the obstacles that a detector tracks.
        """
        to_goal = self.goal - pos
        state = [*self.turn(unit(to_goal)), np.hypot(*to_goal[:2]), to_goal[2], *self.turn(vel)]
        lidar, obstacles = self.scan(points - pos, yaw), self.nearest(pos, movers)
        observed = {"state": np.array(state), "lidar": lidar[None], "dynamic_obstacle": obstacles[None]}
        inputs = {name: value[None].astype(np.float32) for name, value in observed.items()}
        if self.planner is not None:
            yaw_in_goal_frame = (yaw - self.angle + np.pi) % (2 * np.pi) - np.pi
            pose = np.array([[pos[2], yaw_in_goal_frame]], np.float32)
            inputs["plan"] = self.planner.read({**inputs, "pose": pose}, self.last_action).numpy()
        if self.memory is not None:
            inputs["state_in"] = self.memory
        actions, *after = self.session.run(self.contract["outputs"], {k: inputs[k] for k in self.contract["inputs"]})
        self.last_action, action = actions, actions[0]
        self.memory = after[0] if after else None
        return ((2.0 * action - 1.0) * self.contract["speed_limit_m_s"]) @ self.to_goal_frame

    def turn(self, vector: np.ndarray) -> np.ndarray:
        """Turn a vector from the world to the goal frame."""
        return self.to_goal_frame @ vector

    def scan(self, points: np.ndarray, yaw: float) -> np.ndarray:
        """Return range minus distance of the nearest point on each beam, [azimuths, elevations]; 0 without a hit.

        Args:
            points: [N, 3] m, from the drone, world axes.
        """
        beams = self.contract["observation"]["lidar"]
        azimuth, elevation = np.radians(beams["azimuths_deg"])[:, None] + yaw, np.radians(beams["elevations_deg"])
        level = np.cos(elevation)
        rays = np.stack(np.broadcast_arrays(level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)), -1)
        distance = np.linalg.norm(points, axis=-1)
        points, distance = points[(near := distance < beams["range_m"])], distance[near]
        hit = rays @ points.T >= distance * np.cos(np.radians(BEAM_DEG))
        return np.where(hit, beams["range_m"] - distance, 0.0).max(axis=-1, initial=0.0)

    def nearest(self, pos: np.ndarray, movers: np.ndarray) -> np.ndarray:
        """Return the rows of `dynamic_obstacle`: the nearest moving obstacles, [5, 10]."""
        rows = np.zeros(self.contract["observation"]["dynamic_obstacle"]["shape"][1:])
        flat = np.hypot(*(movers[:, :2] - pos[:2]).T)
        inside = np.flatnonzero(flat <= self.contract["observation"]["lidar"]["range_m"])
        for row, k in zip(rows, inside[np.argsort(flat[inside])], strict=False):
            is_box = (
                movers[k, 7] <= 1.0
            )  # boxes are 1 m tall in training; a taller obstacle is a cylinder of any height
            offset = (movers[k, :3] - pos) * [1.0, 1.0, is_box]
            width_class = np.clip(np.ceil(movers[k, 6] / 0.25 - 1e-6) - 1, 0, 3)
            row[:] = [*self.turn(unit(offset)), flat[k], offset[2], *self.turn(movers[k, 3:6]), width_class, is_box]
        return rows


def make_planner(contract: dict[str, Any]) -> Any:
    """Return the planner that computes the input `plan`, None if the policy does not read one."""
    missing = {*contract["inputs"]} - {"state", "lidar", "dynamic_obstacle", "state_in"}
    if missing - {"plan"} or contract["outputs"] not in (["action"], ["action", "state_out"]):
        raise SystemExit(
            "This example flies policies that read state, lidar, dynamic_obstacle and plan and put out a velocity action; "
            f"this file reads {', '.join(contract['inputs'])} and puts out {', '.join(contract['outputs'])}."
        )
    if not missing:
        return None
    try:
        from fledge.tasks.navigation.planner.reader import PlanReader
    except ImportError:
        raise SystemExit(
            "This policy also reads the input `plan`, which Fledge's planner computes from the other observations: "
            "install Fledge here, or export a policy that reads none: fledge export fledge-reflex policy.onnx"
        ) from None
    return PlanReader.from_contract(contract)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(np.linalg.norm(vector), 1e-6)


def show(vector: np.ndarray) -> str:
    return " ".join(f"{value:6.2f}" for value in vector)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python examples/deploy.py policy.onnx (written by `fledge export fledge-reflex policy.onnx`)")
        raise SystemExit(0 if {"-h", "--help"} & {*sys.argv} else 2)
    start, goal = np.array([0.0, 0.0, 1.5]), np.array([12.0, 0.0, 1.5])
    angle, height = np.meshgrid(np.radians(np.arange(0, 360, 5)), np.arange(0, 4, 0.05))
    pillar = np.stack([6 + 0.4 * np.cos(angle), 0.2 + 0.4 * np.sin(angle), height], -1).reshape(-1, 3)
    pilot, pos, vel, clock = Pilot(sys.argv[1], start, goal), start, np.zeros(3), 0.0
    while np.linalg.norm(goal - pos) > pilot.contract["goal_radius_m"] and clock < 20.0:
        command = pilot.command(pillar, pos, vel, yaw=0.0)
        vel = vel + (command - vel) * (1.0 - np.exp(-2.2 * pilot.contract["decision_s"]))  # the drone's lag
        pos, clock = pos + vel * pilot.contract["decision_s"], clock + pilot.contract["decision_s"]
        print(f"{clock:5.2f} s  at {show(pos)} m  command {show(command)} m/s")
    gap = np.hypot(*(pos[:2] - goal[:2]))
    print(f"{'reached' if gap < 0.5 else 'missed'} the goal after {clock:.1f} s")


if __name__ == "__main__":
    main()
