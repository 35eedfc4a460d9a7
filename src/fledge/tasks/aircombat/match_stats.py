"""Statistics of duels, for each side: shots, the first shot, energy at the merge, survival by kind of starting position.

A shot is outside if its range at launch is larger than R_max, so that a target that holds its course escapes the missile.
The merge is the first decision at which the two fighters are within MERGE_M of each other, if they began farther apart.
There is no altitude, so specific energy is v²/2; 300 m/s are 45 kJ/kg.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.envs.base import TensorEnv
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv, duel_of
from fledge.tasks.aircombat.observations import State
from fledge.tasks.aircombat.physics.structs import SCENARIOS, Outcome
from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.match import MatchRules, MatchStats, Notes

MERGE_M = 10_000.0
BANDS = 3  # of the range of random starts
WAYS = ("nose to nose", "behind it", "it behind", "tail to tail")
"""Geometries of a random start: whether each fighter is ahead of or behind the wings of the other."""
FIXED = ("head_on", "reference", "attacking", "defending", "chasing", "chased")


class DuelStats(MatchStats):
    """Collects the statistics of running duels, step by step."""

    def __init__(self, env: AircombatEnv) -> None:
        self.env = env
        edges = np.linspace(env.cfg.min_range_m, env.cfg.max_range_m, BANDS + 1) / 1000.0
        self.random_starts = [f"{a:.0f}-{b:.0f} km, {way}" for a, b in itertools.pairwise(edges) for way in WAYS]
        self.starts = [*FIXED, *self.random_starts]
        shape = (env.num_duels, 2)
        self._notes: Notes = {name: np.zeros(shape) for name in ("shots", "outside", "won", "survived")}
        self._notes |= {name: np.full(shape, np.nan) for name in ("first_shot_s", "merge_energy", "merge_lead")}
        self._notes |= {"start": self._start(), "given": self._sides("fired").astype(float)}
        away, off, aspect = (values.copy() for values in self._geometry())
        self._notes |= {"range_m": away, "off": off, "aspect": aspect, "speed": self._sides("speed").copy()}
        self._launches: list[np.ndarray] = []  # [shots, 7]: fight, side, speeds, angles, range
        self._apart = away[:, 0] > MERGE_M  # [fights] began outside the merge range, and has not reached it

    def _sides(self, name: str) -> np.ndarray:
        """Return an entry of the env's state for both sides, [fights, 2, ...]."""
        value = self.env.state[name].cpu().numpy()
        return value.reshape(self.env.num_duels, 2, *value.shape[1:])

    def _geometry(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three arrays [fights, 2], with one entry per side.

        They are the range to the enemy, m; the angle from the side's nose to the enemy, rad; and the angle from the enemy's
        nose to the side, rad.
        """
        pos, nose = (np.ascontiguousarray(self._sides(name)).view(np.complex64)[..., 0] for name in ("pos", "dir"))
        enemy = pos[:, ::-1] - pos
        off = np.angle(enemy / nose)
        return np.abs(enemy), off, off[:, ::-1]

    def _start(self) -> np.ndarray:
        """Return the kind of each side's starting position, as an index into `starts`; shape [fights, 2]."""
        kind = self.env.state["kind"].cpu().numpy()[:, None]
        away, off, aspect = self._geometry()
        given = self._sides("fired")
        behind, ahead = np.abs(off) > math.pi / 2, np.abs(aspect) > math.pi / 2
        cfg = self.env.cfg
        share = (away - cfg.min_range_m) / max(cfg.max_range_m - cfg.min_range_m, 1.0)
        band = np.clip((BANDS * share).astype(int), 0, BANDS - 1)
        cell = len(FIXED) + len(WAYS) * band + np.select([behind & ahead, behind, ahead], [3, 2, 1], 0)
        chased = FIXED.index("chased") * behind + FIXED.index("chasing") * ~behind
        defending = np.where(given > 0, FIXED.index("attacking"), FIXED.index("defending"))
        return np.select(
            [kind == SCENARIOS[s] for s in (Scenario.random, Scenario.chase, Scenario.defensive, Scenario.reference)],
            [cell, chased, defending, np.full_like(cell, FIXED.index("reference"))],
            FIXED.index("head_on"),
        )

    def before_step(self, obs: Mapping[str, Tensor], action: Any, active: Tensor) -> None:
        going = active.cpu().numpy()
        time = self.env.state["time"].cpu().numpy()
        speed = self._sides("speed").astype(float)
        away, off, aspect = self._geometry()
        merged = going & self._apart & (away[:, 0] <= MERGE_M)
        if merged.any():
            energy = 0.5 * speed[merged] ** 2 / 1000.0
            self._notes["merge_energy"][merged] = energy
            self._notes["merge_lead"][merged] = energy - energy[:, ::-1]
            self._apart &= ~merged
        asked = action % 2 if isinstance(action, Tensor) else action["fire"]
        fires = ((asked > 0) & (obs["state"][:, State.CAN_FIRE] > 0.5)).cpu().numpy().reshape(-1, 2) & going[:, None]
        fight, side = np.nonzero(fires)
        if not len(fight):
            return
        self._notes["shots"][fight, side] += 1
        first = np.isnan(self._notes["first_shot_s"]) & fires
        self._notes["first_shot_s"][first] = np.broadcast_to(time[:, None], first.shape)[first]
        columns = (fight, side, speed[fight, side], speed[fight, 1 - side], off[fires], aspect[fires], away[fires])
        self._launches.append(np.stack(columns, axis=1))

    def after_step(self, outcome: Tensor, active: Tensor) -> None:
        how = outcome.cpu().numpy().reshape(-1, 2)
        over = active.cpu().numpy() & (how[:, 0] != 0)
        self._notes["survived"][over] = ~np.isin(how[over], (Outcome.LOSS, Outcome.DRAW))
        self._notes["won"][over] = np.isin(how[over], (Outcome.WIN, Outcome.DRAW))

    def notes(self) -> Notes:
        if self._launches:
            shots = np.concatenate(self._launches)
            speeds = [torch.from_numpy(column.astype(np.float32)) for column in shots[:, 2:4].T]
            angles = [torch.from_numpy(np.degrees(column).astype(np.float32)) for column in shots[:, 4:6].T]
            with Envelope(self.env.cfg) as envelope:
                reach = envelope.lookup(*speeds, *angles)["r_max_m"].cpu().numpy()
            np.add.at(self._notes["outside"], (shots[:, 0].astype(int), shots[:, 1].astype(int)), shots[:, 6] > reach)
            self._launches = []
        return self._notes


class DuelMatch(MatchRules):
    """Rules of duels between two agents, and statistics of how each side fought."""

    sides = 2
    columns = {
        "shots": "shots",
        "outside_r_max": "shots outside R_max, %",
        "shots_per_kill": "shots per kill",
        "first_shot_s": "first shot, s",
        "merge_speed": "merge, m/s",
        "merge_lead": "lead, kJ/kg",
        "survived": "survived, %",
    }
    key_metrics = ("outside_r_max", "shots_per_kill")
    legend = (
        "Outside R_max: share of the shots that a target could escape by holding its course. First shot: seconds into the "
        f"fight. Merge: speed when the sides first come within {MERGE_M / 1000:.0f} km, if they began farther apart. Lead: "
        "specific energy at the merge (v²/2, as there is no altitude) minus the enemy's."
    )

    def match_config(self, cfg: AircombatConfig, count: int) -> AircombatConfig:
        return dataclasses.replace(cfg, num_envs=2 * count, opponent="")

    def match_stats(self, env: TensorEnv) -> MatchStats:
        return DuelStats(duel_of(env))

    def summarize(self, notes: Mapping[str, np.ndarray]) -> dict[str, float | None]:
        """Return statistics, by name, of how a side fought.

        `notes` holds the side's recorded numbers, each an array of shape [fights]. If one of the side's missiles is already in
        flight when a fight begins, the fight is left out of `shots_per_kill`, as the side did not fire that missile.
        """
        shots, merged, fired = notes["shots"], ~np.isnan(notes["merge_energy"]), ~np.isnan(notes["first_shot_s"])
        own = notes["given"] == 0
        kills = float(notes["won"][own].sum())

        def mean(name: str, chosen: np.ndarray) -> float | None:
            return float(notes[name][chosen].mean()) if chosen.any() else None

        energy = mean("merge_energy", merged)
        return {
            "shots": float(shots.mean()),
            "outside_r_max": float(notes["outside"].sum() / shots.sum()) if shots.sum() else None,
            "shots_per_kill": float(shots[own].sum() / kills) if kills else None,
            "fired": float(fired.mean()),
            "first_shot_s": mean("first_shot_s", fired),
            "merged": float(merged.mean()),
            "merge_energy": energy,
            "merge_speed": None if energy is None else math.sqrt(2000.0 * energy),
            "merge_lead": mean("merge_lead", merged),
            "survived": float(notes["survived"].mean()),
        }
