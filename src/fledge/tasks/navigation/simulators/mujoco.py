"""A quadrotor of 0.7 kg in MuJoCo: free bodies that do not touch each other.

Thrust is proportional to the motor command, behind a first-order lag; MuJoCo adds the air's drag on a box of the body's
inertia.
Needs the package `mujoco` (Fledge's extra `mujoco`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fledge.core.extras import extra
from fledge.tasks.navigation.simulators.plant import GRAVITY, Array, Plant, mixer_of

MASS = 0.716  # kg
INERTIA = (0.007, 0.007, 0.012)  # kg m²
ROTORS = np.array([[0.12, -0.12], [-0.12, 0.12], [0.12, 0.12], [-0.12, -0.12]])  # m, body
SPINS = np.array([-1.0, -1.0, 1.0, 1.0])  # sign of the torque on the body
MOST = 6.0  # N per rotor
MOMENT = 0.016  # m: drag torque per thrust
LAG_S = 0.03
XYZW = [4, 5, 6, 3]  # in a body's position: x, y, z and the quaternion (w, x, y, z)
BLOCK = 32  # drones per model: a step takes 5 microseconds per drone, with 8 or 64 it takes 8

BODY = """
    <body name="drone{i}" pos="0 0 1">
      <freejoint/>
      <inertial pos="0 0 0" mass="{mass}" diaginertia="{inertia}"/>
      {sites}
    </body>"""
SITE = '<site name="rotor{i}_{k}" pos="{x} {y} 0"/>'
ROTOR = """
    <general site="rotor{i}_{k}" gear="0 0 1 0 0 {moment}" ctrlrange="0 1" dyntype="filterexact" dynprm="{lag}"
     gainprm="{most}"/>"""
MODEL = """
<mujoco>
  <option timestep="{step}" gravity="0 0 -{gravity}" density="1.2" viscosity="0.000018" integrator="implicitfast">
    <flag contact="disable" constraint="disable"/>
  </option>
  <worldbody>{bodies}
  </worldbody>
  <actuator>{rotors}
  </actuator>
</mujoco>"""


def model_text(count: int, step_s: float) -> str:
    """Return the MJCF model of `count` drones."""
    bodies, rotors = [], []
    for i in range(count):
        sites = "".join(SITE.format(i=i, k=k, x=x, y=y) for k, (x, y) in enumerate(ROTORS))
        bodies.append(BODY.format(i=i, mass=MASS, inertia=" ".join(map(str, INERTIA)), sites=sites))
        for k, spin in enumerate(SPINS):
            rotors.append(ROTOR.format(i=i, k=k, moment=spin * MOMENT, lag=LAG_S, most=MOST))
    return MODEL.format(step=step_s, gravity=GRAVITY, bodies="".join(bodies), rotors="".join(rotors))


class Mujoco(Plant):
    """N quadrotors in MuJoCo, in models of up to `BLOCK` drones."""

    hover = MASS * GRAVITY / (4.0 * MOST)
    mixer = mixer_of(ROTORS, SPINS, MOMENT, MOST, np.array(INERTIA))

    def __init__(self, count: int, step_s: float) -> None:
        super().__init__(count)
        with extra("mujoco"):
            import mujoco
        self._step = mujoco.mj_step
        self.motor = np.full((4, count), self.hover)
        """Motors' state, 0 to 1."""
        sizes = [min(BLOCK, count - first) for first in range(0, count, BLOCK)]
        models = {size: mujoco.MjModel.from_xml_string(model_text(size, step_s)) for size in set(sizes)}
        self.blocks: list[tuple[slice, Any, Any]] = [
            (slice(k * BLOCK, k * BLOCK + size), models[size], mujoco.MjData(models[size]))
            for k, size in enumerate(sizes)
        ]
        """Drones, model and data of each block."""
        self.restored()

    def place(self, rows: NDArray[np.int64], pos: Array, quat: Array) -> None:
        self.pos[:, rows], self.quat[:, rows] = pos, quat
        self.vel[:, rows] = self.rate[:, rows] = 0.0
        self.motor[:, rows] = self.hover
        self.restored()

    def step(self, motors: Array) -> None:
        for rows, model, data in self.blocks:
            data.ctrl.reshape(-1, 4)[:] = motors[:, rows].T
            self._step(model, data)
            place, motion = data.qpos.reshape(-1, 7), data.qvel.reshape(-1, 6)
            self.pos[:, rows], self.quat[:, rows] = place[:, :3].T, place[:, XYZW].T
            self.vel[:, rows], self.rate[:, rows] = motion[:, :3].T, motion[:, 3:].T
            self.motor[:, rows] = data.act.reshape(-1, 4).T

    def state(self) -> dict[str, Array]:
        return {"pos": self.pos, "vel": self.vel, "quat": self.quat, "rate": self.rate, "motor": self.motor}

    def restored(self) -> None:
        for rows, _, data in self.blocks:
            place, motion = data.qpos.reshape(-1, 7), data.qvel.reshape(-1, 6)
            place[:, :3], place[:, XYZW] = self.pos[:, rows].T, self.quat[:, rows].T
            motion[:, :3], motion[:, 3:] = self.vel[:, rows].T, self.rate[:, rows].T
            data.act.reshape(-1, 4)[:] = self.motor[:, rows].T
