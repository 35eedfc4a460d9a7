"""A quadrotor learns to hover: a custom task in one file, in plain torch.

    fledge train examples/hover.py --folder runs/hover                     about two minutes on two busy cores
    fledge eval runs/hover --task examples/hover.py --picture hover.png    success 1.000 of 1024 flights

Quadrotors start tilted and away from their target, in gusts. At first they crash; after training each is near the target
within about two seconds and stays there, most within a few centimetres. `--resume`, `fledge report` and `fledge export` work
as for built-in tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fledge.core.settings import setting
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task
from fledge.tasks.metrics import TaskMetrics
from fledge.tasks.presets import Presets
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.trajectory import Trajectory

GRAVITY, EPISODE_S, NEAR = 9.81, 5.0, 0.2  # m/s², s, m
TARGET = (0.0, 0.0, 1.5)  # m, world
COLOURS = {"success": "#1b9e5a", "astray": "#e08e1b", "crash": "#d1495b"}


@dataclass
class HoverConfig:
    num_envs: int = setting(1024, at_least=1, resume="restart")
    """Number of quadrotors simulated in parallel."""
    dt_s: float = setting(0.02, above=0, at_most=0.05)
    """Time between two decisions, s."""
    tilt_deg: float = setting(45.0, at_least=0, at_most=90)
    """Largest roll and pitch at the start, degrees."""
    offset_m: float = setting(1.0, at_least=0, at_most=1.4)
    """Largest distance from the target at the start, along each axis, m."""
    gust: float = setting(1.0, at_least=0)
    """Standard deviation of the random acceleration by gusts, m/s²."""


class HoverEnv(TorchEnv):
    """Rigid bodies with thrust along their z axis, whose angular rates follow commands with a lag.

    An episode is a success if the quadrotor was within NEAR of the target during its whole last second.
    """

    outcomes = {0: "running", 1: "crash", 2: "astray", 3: "success"}
    observation_spec = {"body": TensorSpec((12,), torch.float32, doc="way to go, velocity, up, rates; body frame")}
    action_spec = TensorSpec((4,), torch.float32, -1.0, 1.0, doc="thrust (0: the weight), roll, pitch, yaw rate")

    def __init__(self, cfg: HoverConfig, device: str = "cpu", seed: int = 0, env_offset: int = 0) -> None:
        super().__init__(cfg, device, seed, env_offset)
        self.decision_s, self.max_steps = cfg.dt_s, round(EPISODE_S / cfg.dt_s)
        self.target = torch.tensor(TARGET, device=self.device)
        self.max_rates = torch.tensor([6.0, 6.0, 2.0], device=self.device)  # rad/s, body

    def begin(self, mask: Tensor) -> None:
        draw, zero = 2.0 * self.uniform(12) - 1.0, torch.zeros(self.num_envs, 1, device=self.device)
        heading = torch.cat([zero, zero, math.pi * draw[:, :1]], -1)
        tilt = torch.cat([math.radians(self.cfg.tilt_deg) * draw[:, 1:3], zero], -1)
        self.put("quat", mask, multiply(turn(heading), turn(tilt)))  # [N, 4] w x y z, body to world
        self.put("pos", mask, self.target + self.cfg.offset_m * draw[:, 3:6])  # [N, 3] m, world
        self.put("vel", mask, draw[:, 6:9])  # [N, 3] m/s, world
        self.put("rates", mask, 2.0 * draw[:, 9:12])  # [N, 3] rad/s, body
        self.put("near_s", mask, zero[:, 0])  # [N] s, time near the target

    def observe(self) -> dict[str, Tensor]:
        s, up = self.state, torch.tensor([0.0, 0.0, 1.0], device=self.device).expand(self.num_envs, 3)
        to_body = s["quat"] * torch.tensor([1.0, -1.0, -1.0, -1.0], device=self.device)
        parts = [rotate(to_body, v) for v in (self.target - s["pos"], s["vel"], up)]
        return {"body": torch.cat([*parts, s["rates"]], -1)}

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        s, dt, action = self.state, self.cfg.dt_s, action.clamp(-1.0, 1.0)
        s["rates"] = s["rates"] + (action[:, 1:] * self.max_rates - s["rates"]) * (1.0 - math.exp(-dt / 0.05))
        s["quat"] = normalize(multiply(s["quat"], turn(s["rates"] * dt)), dim=-1)
        thrust = torch.nn.functional.pad(GRAVITY * (1.0 + action[:, :1]), (2, 0))
        accel = rotate(s["quat"], thrust) - 0.2 * s["vel"] + self.cfg.gust * self.normal(3)
        accel[:, 2] -= GRAVITY
        s["vel"] = s["vel"] + accel * dt
        s["pos"] = s["pos"] + s["vel"] * dt
        away = (s["pos"] - self.target).norm(dim=-1)
        s["near_s"] = torch.where(away < NEAR, s["near_s"] + dt, 0.0)
        crash = (s["pos"][:, 2] < 0.0) | (away > 3.0)
        reward = (-2.0 * away).exp() + 0.2 - 0.005 * s["rates"].square().sum(-1)
        return reward * dt - crash.float(), crash.long()

    def timeout_outcome(self) -> Tensor:
        return torch.where(self.state["near_s"] > 0.999, 3, 2)


def turn(angle: Tensor) -> Tensor:
    """Return the quaternion of a rotation about a vector by its length, rad."""
    half = angle.norm(dim=-1, keepdim=True) / 2
    return torch.cat([half.cos(), angle * torch.sinc(half / math.pi) / 2], -1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the quaternion that rotates by b, then by a."""
    (w, u), (p, v) = (q.split([1, 3], -1) for q in (a, b))
    return torch.cat([w * p - (u * v).sum(-1, True), w * v + p * u + torch.linalg.cross(u, v)], -1)


def rotate(quat: Tensor, v: Tensor) -> Tensor:
    """Return vectors rotated by unit quaternions."""
    twice = 2.0 * torch.linalg.cross(quat[:, 1:], v)
    return v + quat[:, :1] * twice + torch.linalg.cross(quat[:, 1:], twice)


class HoverView(TaskView):
    """Frames of recordings, and their picture."""

    def snapshot(self, env: Any, ids: Sequence[int]) -> dict[str, np.ndarray]:
        return {name: env.state[name][list(ids)].cpu().numpy() for name in ("pos", "vel", "quat")}

    def draw(self, tracks: Sequence[Trajectory], title: str = "") -> Any:
        """Draw paths seen from the side, and the distance to the target over time."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 5), layout="constrained")
        side, time = figure.subplots(1, 2)
        for outcome in {track.outcome: None for track in tracks}:
            time.plot([], [], color=COLOURS[outcome], label=outcome)
        for track in tracks:
            pos, style = track.frames["pos"], {"color": COLOURS[track.outcome], "linewidth": 0.6, "alpha": 0.5}
            side.plot(pos[:, 0], pos[:, 2], **style)
            time.semilogy(np.linalg.norm(pos - TARGET, axis=-1), **style)
        time.axhline(NEAR, color="black", linestyle=":")
        side.set(xlabel="x, m", ylabel="z, m", aspect="equal", title="from the side")
        time.set(xlabel="decision", ylabel="distance to the target, m", title=f"{len(tracks)} flights")
        time.legend()
        figure.suptitle(title)
        return figure


PPO = {"rollout_steps": 32, "minibatch": 2048, "epochs": 4, "lr": 1e-3, "gamma": 0.98}
TABLE = TaskMetrics(labels={name: name for name in COLOURS}, unit="quadrotors")
START = Presets(defaults={"total_frames": 2_000_000, "ppo": PPO})
task = Task("hover", HoverConfig, HoverEnv, primary_metric="success", view=HoverView(), metrics=TABLE, presets=START)
