"""Missile ranges and fly-outs (simulated shots), for any number of geometries at once.

    envelope = Envelope(AircombatConfig())
    envelope.lookup(300.0, 300.0, 0.0, 0.0)                  from the table: millions a second
    envelope.solve(300.0, 300.0, 0.0, 0.0)                   by fly-outs: hundreds a second
    envelope.fly(30_000.0, Manoeuvre.AWAY, 300.0, 300.0)     one shot each: killed, time, closest approach

Speeds in m/s, angles in degrees, left positive: `off_boresight_deg` from the shooter's nose to the target, `aspect_deg` from
the target's nose to the shooter (0: nose-on, 180: a tail chase). Numbers or tensors of one shape come in; tensors come out.

Each range is the largest at which a shot kills: `r_max_m` if the target holds its course, `r_tr_m` if it turns away at launch,
`r_ne_m` (no escape) whatever it flies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import warp as wp
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.machine import default_threads
from fledge.envs.launch import Call, Launcher
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.physics.structs import physics_of
from fledge.tasks.aircombat.spacetime import curves, table
from fledge.tasks.aircombat.spacetime.build import farthest_ranges, solve_geometries
from fledge.tasks.aircombat.spacetime.flyout import NEAREST, fly_outs
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre
from fledge.tasks.aircombat.spacetime.store import load_table

Numbers = float | Tensor
RANGES = ("r_max_m", "r_tr_m", "r_ne_m")
RUDDERS = (1.0, 0.5, 0.25, 0.12, 0.06)  # largest rudder in each turn that `missile_reach` tries
DECIDE_DT, DECIDE_HORIZON = 0.25, 240.0  # s


class Envelope:
    """Missile ranges and fly-outs for the physics of one config.

    Args:
        cfg: Settings of the duel; only its physics is used, and `dt_s`, the time step of fly-outs.
    """

    def __init__(self, cfg: AircombatConfig | None = None, device: str = "cpu", num_threads: int | None = None) -> None:
        self.cfg, self.device = cfg or AircombatConfig(), device
        self.physics = physics_of(self.cfg)
        self.launcher = Launcher(device, num_threads or default_threads())
        self._farthest: tuple[float, float] | None = None

    def close(self) -> None:
        """Stop the worker threads."""
        self.launcher.close()

    def __enter__(self) -> Envelope:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def run(self, kernel: Any, args: list[Any], count: int) -> None:
        """Run a kernel over `count` threads."""
        self.launcher.run(self.launcher.record([Call(kernel, args)], count))

    def lookup(
        self, own_speed: Numbers, target_speed: Numbers, off_boresight_deg: Numbers = 0.0, aspect_deg: Numbers = 0.0
    ) -> dict[str, Tensor]:
        """Return `r_max_m`, `r_tr_m`, `r_ne_m` from the table; if there is none for this physics yet, build it first."""
        geometries, shape = self._geometries(own_speed, target_speed, off_boresight_deg, aspect_deg)
        found = torch.empty(len(geometries), 3, device=self.device)
        reach_table, given = load_table(self.cfg, self.device), _arrays(geometries)
        self.run(table.look_up, [reach_table, *given, wp.from_torch(found, dtype=wp.vec3)], len(found))
        return {name: found[:, k].reshape(shape) for k, name in enumerate(RANGES)}

    def solve(
        self, own_speed: Numbers, target_speed: Numbers, off_boresight_deg: Numbers = 0.0, aspect_deg: Numbers = 0.0
    ) -> dict[str, Tensor]:
        """Return `r_max_m`, `r_tr_m`, `r_ne_m` by fly-outs; 1 km if no shot from beyond 1 km kills."""
        geometries, shape = self._geometries(own_speed, target_speed, off_boresight_deg, aspect_deg)
        if self._farthest is None:
            self._farthest = farthest_ranges(self.physics, self.launcher, self.cfg.dt_s)
        given = geometries.cpu().numpy()
        found, _ = solve_geometries(self.physics, given, self.launcher, self._farthest, self.cfg.dt_s)
        r_max, r_left, r_right, r_ne = torch.from_numpy(np.maximum(found.T, NEAREST)).reshape(4, *shape)
        return dict(zip(RANGES, (r_max, torch.minimum(r_left, r_right), r_ne), strict=True))

    def fly(
        self,
        range_m: Numbers,
        manoeuvre: Manoeuvre,
        own_speed: Numbers,
        target_speed: Numbers,
        off_boresight_deg: Numbers = 0.0,
        aspect_deg: Numbers = 0.0,
    ) -> dict[str, Tensor]:
        """Return by name the result of a shot at a target that flies a manoeuvre: `killed`, `time_s` and `miss_m`.

        `time_s` is the time until the kill, or until the missile is spent; `miss_m` is the closest approach.
        """
        geometries, shape = self._geometries(own_speed, target_speed, off_boresight_deg, aspect_deg, range_m)
        killed, time, miss = self._fly(geometries, manoeuvre).reshape(*shape, 3).unbind(-1)
        return {"killed": killed > 0, "time_s": time, "miss_m": miss}

    def _fly(self, geometries: Tensor, manoeuvre: Manoeuvre) -> Tensor:
        out = torch.empty(len(geometries), 3, device=self.device)
        args = [self.physics, int(manoeuvre), self.cfg.dt_s, *_arrays(geometries), wp.from_torch(out, dtype=wp.vec3)]
        self.run(fly_outs, args, len(out))
        return out

    def time_to_decide(
        self,
        range_m: Numbers,
        own_speed: Numbers,
        target_speed: Numbers,
        off_boresight_deg: Numbers = 0.0,
        aspect_deg: Numbers = 0.0,
    ) -> Tensor:
        """Return how many seconds the target may hold its course before turning away no longer saves it from a shot.

        Both sides hold their course until then. Computed by fly-outs, to a quarter of a second; 0 if it is too late already,
        inf if the target can hold for more than four minutes.
        """
        geometries, shape = self._geometries(own_speed, target_speed, off_boresight_deg, aspect_deg, range_m)
        count, num_times = len(geometries), int(DECIDE_HORIZON / DECIDE_DT) + 1
        later = torch.empty(count, num_times, 4, device=self.device)
        ranges = torch.empty(count, num_times, device=self.device)
        args = [self.physics, DECIDE_DT, *_arrays(geometries), wp.from_torch(later, dtype=wp.vec4)]
        self.run(curves.hold_both, [*args, wp.from_torch(ranges)], count)
        shots = torch.cat([later, ranges[..., None]], -1).reshape(-1, 5)
        flown = [self._fly(shots, manoeuvre)[:, 0] > 0 for manoeuvre in (Manoeuvre.AWAY_LEFT, Manoeuvre.AWAY_RIGHT)]
        killed = (flown[0] & flown[1]).reshape(count, num_times)
        first = killed.int().argmax(dim=1) * DECIDE_DT
        return torch.where(killed.any(dim=1), first, torch.inf).reshape(shape)

    def missile_reach(
        self, own_speed: float, directions_deg: Tensor, duration_s: float, every_s: float = 0.5, dt_s: float = 0.0
    ) -> Tensor:
        """Return how far a missile fired now has got along each direction, m, as a tensor [direction, time].

        There is a value for every `every_s` seconds up to `duration_s`; NaN once the missile is spent. Directions are angles
        from the shooter's nose, left positive. A hard turn costs more speed than a wide turn, so several turns are tried,
        and the largest distance counts. `dt_s` is the physics step; 0 means that of the config.
        """
        points, steps, dt = self._times(duration_s, every_s, dt_s)
        directions = torch.deg2rad(directions_deg.to(torch.float32)).contiguous()
        out = torch.empty(len(RUDDERS), len(directions), points, device=self.device)
        for rudder, reach in zip(RUDDERS, out, strict=True):
            args = [self.physics, float(own_speed), rudder, dt, steps, wp.from_torch(directions)]
            self.run(curves.reach_missile, [*args, wp.from_torch(reach)], len(directions))
        spent = (out < 0) & (torch.arange(points) * every_s > self.physics.motor.burn)
        best = torch.where(spent, -torch.inf, out).amax(0)
        return torch.where(torch.isinf(best), torch.nan, best + self.physics.motor.kill_radius)

    def target_path(
        self,
        manoeuvre: Manoeuvre,
        range_m: float,
        own_speed: float,
        target_speed: float,
        off_boresight_deg: float = 0.0,
        aspect_deg: float = 0.0,
        duration_s: float = 60.0,
        every_s: float = 0.5,
    ) -> Tensor:
        """Return the positions of a target that flies a manoeuvre to evade the shooter, [time, 2] m, every `every_s` seconds.

        The shooter stays at the origin, and its nose points along x.
        """
        points, steps, dt = self._times(duration_s, every_s)
        geometries, _ = self._geometries(own_speed, target_speed, off_boresight_deg, aspect_deg, range_m)
        out = torch.empty(1, points, 3, device=self.device)
        args = [self.physics, int(manoeuvre), dt, steps, *_arrays(geometries), wp.from_torch(out, dtype=wp.vec3)]
        self.run(curves.trace_target, args, 1)
        return out[0, :, :2]

    def _times(self, duration_s: float, every_s: float, dt_s: float = 0.0) -> tuple[int, int, float]:
        """Return the number of points of a curve, the number of physics steps from one point to the next, and s per step."""
        steps = max(1, round(every_s / (dt_s or self.cfg.dt_s)))
        return int(duration_s / every_s) + 1, steps, every_s / steps

    def _geometries(self, *values: Numbers) -> tuple[Tensor, torch.Size]:
        """Return the values as a tensor [N, number of values], and the shape to which they were broadcast.

        The first four are own speed, target's speed, off-boresight and aspect; the angles are converted to radians.
        """
        tensors = [torch.as_tensor(value, dtype=torch.float32, device=self.device) for value in values]
        try:
            tensors = list(torch.broadcast_tensors(*tensors))
        except RuntimeError as error:
            shapes = [tuple(t.shape) for t in tensors]
            raise InputError(f"Shapes {shapes} do not match: pass numbers or tensors of one shape.") from error
        if not all(bool(torch.isfinite(t).all()) for t in tensors):
            raise InputError("Some speeds, angles or ranges are NaN or infinite: pass only finite numbers.")
        columns = torch.stack([t.reshape(-1) for t in tensors], dim=-1)
        columns[:, 2:4] = torch.deg2rad((columns[:, 2:4] + 180.0) % 360.0 - 180.0)
        return columns, tensors[0].shape


def _arrays(columns: Tensor) -> list[Any]:
    """Return Warp arrays: one of vectors for the first four columns, one of numbers for each further column."""
    vectors = wp.from_torch(columns[:, :4].contiguous(), dtype=wp.vec4)
    return [vectors, *(wp.from_torch(column.contiguous()) for column in columns.T[4:])]
