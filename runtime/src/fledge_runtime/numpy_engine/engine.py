"""NumpyPlanner: the planner of one drone in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge_runtime.numpy_engine.floats import ONE, TWO, ZERO, F, length, sub
from fledge_runtime.numpy_engine.guard import guarded
from fledge_runtime.numpy_engine.identify import Response
from fledge_runtime.numpy_engine.local_map import CostToGo, LocalMap
from fledge_runtime.numpy_engine.search import STUCK_M, USUAL_COST, Movers, Search, patience, read_own
from fledge_runtime.numpy_engine.tables import make_guard, make_search, make_sensor, map_range, slowness, window_cells
from fledge_runtime.numpy_engine.tracker import Tracker


class NumpyPlanner:
    """Computes plans as the C library does. `settings` come from `read_settings`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.search, self.sensor, self.guard = make_search(settings), make_sensor(settings), make_guard(settings)
        self.map = LocalMap(window_cells(map_range(settings)), self.sensor)
        self.cost = CostToGo(slowness(settings), settings["planner.ways_every"])
        self.tracker = Tracker(settings, self.sensor) if settings["movers_from"] == "lidar" else None
        self.movers, self.response, self.fresh, self.stay = Movers(), Response(settings), True, 0
        self.found = (0, 0, 0)  # of the response: delay in decisions, numbers of the horizontal and the vertical rate
        self.vel: Any = (ZERO, ZERO, ZERO)
        self.acc = self.stay_pos = self.command = self.vel

    def reset(self) -> None:
        self.fresh = True

    def step(self, seen: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return plan [135], command [3] and movers [50]."""
        fresh, self.fresh = self.fresh, False
        rows = seen["dynamic_obstacle"] if self.tracker is None else self.tracker.track(seen, fresh)
        q, own = self.search, read_own(seen)
        if not fresh:
            flown = seen.get("flown")
            self.response.note(self.command if flown is None else q.limit * (TWO * np.clip(flown, ZERO, ONE) - ONE))
            own.acc = self.response.predicted_acc(self.vel, self.acc)
        self.response.identify(own, fresh)
        self.found = (self.response.q.delays[own.delay], own.flat, own.upright)
        self.vel, self.acc = own.vel, own.acc
        self.movers.track(q, rows, own.pos, fresh)
        if self.tracker is None:
            self.map.remember(seen, self.movers, own, fresh)
        else:
            self.tracker.draw(self.map, own.pos, fresh)
        self.cost.update(self.map, own.pos, q.reach_z, fresh)
        own.patience = self.patience_of(own.pos, fresh)
        self.response.advance(own)
        search = Search(q, self.map, self.cost, self.movers, own)
        own.to_go = search.to_go(own.pos)
        command, cost, brief = search.cheapest()
        command = guarded(self.guard, self.sensor, seen, self.movers, own, command)
        self.command = command = self.response.hastened(own, command)
        share = np.clip(np.array(command, np.float32) / q.limit, -ONE, ONE)
        plan = np.concatenate([share, np.array([cost / (abs(cost) + USUAL_COST), F(brief)]), search.predictions()])
        return plan.astype(np.float32), np.array(command, np.float32), np.array(rows, np.float32)

    def patience_of(self, pos: Any, fresh: bool) -> Any:
        """Note where the drone is, and return 1, or less if it has been stuck in its place for long."""
        if fresh or length(sub(pos, self.stay_pos)) > STUCK_M:
            self.stay_pos, self.stay = pos, 0
            return ONE
        self.stay += 1
        return patience(self.search, self.stay)
