"""Recorded data of flights: the scene of each, and the frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.shapes import widths

NEAR = 12  # movers that a frame holds, the nearest ones
MM = 1000.0  # movers' positions are whole millimetres: half the size of float32, and they pack better


def flight_scenes(env: NavigationEnv, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return for each flight: map number, its cells (`physics.terrain`), start, goal, clock and LiDAR geometry."""
    cfg = env.cfg
    slots = env.state["slot"].cpu().tolist()
    ends = {k: env.state[k].cpu().numpy() for k in ("start", "goal")}
    cells = {slot: env.bank.grid[slot].cpu().numpy().copy() for slot in {slots[i] for i in ids}}
    lidar = {
        "azimuths": cfg.lidar_azimuths,
        "elevations_deg": list(cfg.lidar_elevations_deg),
        "range_m": cfg.lidar_range_m,
        "sees_movers": cfg.lidar_sees_movers,
    }
    shared: dict[str, Any] = {"clock_s": env._clock * cfg.dt_s, "goal_radius_m": cfg.goal_radius_m, "lidar": lidar}
    if env.bank.arena:
        shared["kinds"] = env.bank.kinds.tolist()
    return [
        {"map": slots[i], "cells": cells[slots[i]], **{k: v[i].copy() for k, v in ends.items()}, **shared} for i in ids
    ]


def flight_frames(env: NavigationEnv, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the drones and the moving obstacles around them, now; m, m/s, rad, world.

    pos [n, 3] · vel [n, 3] · heading [n] · mover [n, 4]: position and width of the nearest one, NaN without any ·
    crowd [n, K, 3] int16 millimetres and crowd_id [n, K] int16: the K nearest by number, -1 where there are fewer.
    """
    rows = list(ids)
    pos, vel, quat, slot = (env.state[name][rows] for name in ("pos", "vel", "quat", "slot"))
    x, y, z, w = quat.unbind(-1)
    seen = {"pos": pos, "vel": vel, "heading": torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))}
    crowd = env.bank.tensors["trail"][-1][slot.long()]  # [n, M, 3]
    seen["mover"] = torch.full((len(rows), 4), math.nan)
    if crowd.shape[1]:
        there = torch.arange(crowd.shape[1], device=env.device) < env.bank.tensors["count"][slot.long()][:, None]
        away = (crowd[..., :2] - pos[:, None, :2]).norm(dim=-1).masked_fill(~there, math.inf)
        seen |= nearest(crowd, away, env.bank.kinds)
    return {name: value.cpu().numpy() for name, value in seen.items()}


def nearest(crowd: Tensor, away: Tensor, kinds: Tensor) -> dict[str, Tensor]:
    """Return the nearest of M movers [n, M, 3] of `kinds` [M], by distance [n, M], infinite for none."""
    index = torch.arange(len(crowd), device=crowd.device)
    distance, order = away.topk(min(NEAR, away.shape[1]), largest=False)
    first = order[:, 0]
    width = widths(kinds[first])[:, None]
    mover = torch.where(distance[:, :1].isinf(), math.nan, torch.cat([crowd[index, first], width], dim=1))
    # by number, so that one mover stays in its column from frame to frame; those that are not there come last
    ids, place = order.masked_fill(distance.isinf(), away.shape[1]).sort(dim=1)
    found = crowd[index[:, None], order.gather(1, place)]
    ids = ids.masked_fill(ids == away.shape[1], -1)
    pos = (found * MM).round().clamp(-32767, 32767).masked_fill((ids < 0)[..., None], 0.0)
    return {"mover": mover, "crowd": pos.to(torch.int16), "crowd_id": ids.to(torch.int16)}
