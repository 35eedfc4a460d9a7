"""The space-time graph of a frame: agrees with the simulator, and takes no nonsense."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import InputError
from fledge.envs.placement import EnvPlacement
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.spacetime.graph import MANOEUVRES, GraphSolver
from fledge.tasks.aircombat.task import AircombatTask
from fledge.tasks.policy_loader import make_pilot

TASK = AircombatTask()


@pytest.fixture(scope="module")
def solver() -> Iterator[GraphSolver]:
    made = GraphSolver(AircombatConfig())
    yield made
    made.close()


def facing(away: float, speed: float = 300.0) -> dict[str, np.ndarray]:
    """Two fighters nose to nose, no missile in the air."""
    return {
        "pos": np.array([[0.0, 0.0], [away, 0.0]]),
        "heading": np.array([0.0, math.pi]),
        "speed": np.array([speed, speed]),
        "missile_pos": np.zeros((2, 6, 2)),
        "missile_heading": np.zeros((2, 6)),
        "missile_speed": np.zeros((2, 6)),
        "missile_alive": np.zeros((2, 6), bool),
        "missile_motor_s": np.zeros((2, 6)),
    }


def curve(told: dict[str, Any], side: int, name: str) -> dict[str, Any]:
    return next(c for c in told["sides"][side]["curves"] if c["name"] == name)


def test_it_is_plain_data_and_alike_for_both_sides(solver: GraphSolver) -> None:
    told = json.loads(json.dumps(solver.solve(facing(30_000.0)), allow_nan=False))
    blue, red = told["sides"]
    assert told["range_m"] == 30_000
    assert told["closing"] == pytest.approx(600)
    assert blue["shot"] == red["shot"]
    assert blue["decide_s"] == red["decide_s"]
    assert blue["reach_m"] == red["reach_m"]
    assert [c["name"] for c in blue["curves"]] == list(MANOEUVRES)
    assert all(len(c["points"]) == len(told["times_s"]) == len(c["distance_m"]) for c in blue["curves"])


def test_its_ranges_are_those_of_the_envelope(solver: GraphSolver) -> None:
    shot = solver.solve(facing(30_000.0))["sides"][0]["shot"]
    found = solver.envelope.lookup(300.0, 300.0, 0.0, 0.0)
    for name in ("r_max_m", "r_tr_m", "r_ne_m"):
        assert shot[name] == pytest.approx(float(found[name]), abs=1.0)
    rings = solver.solve(facing(30_000.0))["sides"][0]["rings"]
    ahead = rings["directions_deg"].index(0.0)
    assert rings["r_tr_m"][ahead] == shot["r_tr_m"]


@pytest.mark.parametrize(
    ("away", "hold", "turn"), [(80_000.0, False, False), (30_000.0, True, False), (12_000.0, True, True)]
)
def test_a_shot_now_kills_by_range(solver: GraphSolver, away: float, hold: bool, turn: bool) -> None:
    told = solver.solve(facing(away))
    assert (curve(told, 0, "hold")["hit_s"] is not None) == (hold and away < 60_000)
    assert (curve(told, 0, "turn away")["hit_s"] is not None) == turn


def test_it_foresees_what_the_simulator_does() -> None:
    """Missiles in the air and both sides holding: the graph names the very moment of the first hit."""
    env = TASK.make_env(TASK.match.match_config(AircombatConfig(), 1), EnvPlacement(seed=1, num_threads=1))
    env.reset()
    ahead = {"rudder": torch.zeros(2), "throttle": torch.ones(2), "fire": torch.tensor([1, 0])}
    env.step(ahead, dt=1.0)
    ahead["fire"].zero_()
    env.step(ahead, dt=3.0)
    told = TASK.view.graph(AircombatConfig(), {k: v[0] for k, v in TASK.view.snapshot(env, [0]).items()})
    (missile,) = told["sides"][1]["incoming"]
    assert told["sides"][0]["incoming"] == []
    flown = 0.0
    while not bool(env.step(ahead, dt=0.1)["terminated"][0]):
        flown += 0.1
    env.close()
    assert missile["fates"]["hold"]["hit_s"] == pytest.approx(flown + 0.1, abs=0.25)
    assert missile["fates"]["turn away"]["hit_s"] is None
    assert missile["decide_s"] >= 5
    assert "turn away" in told["sides"][1]["verdict"]["text"]


def test_waiting_as_long_as_it_says_still_saves() -> None:
    """Turning away at `decide_s` is survived in the simulator too, by the drag pilot's own turn."""
    env = TASK.make_env(TASK.match.match_config(AircombatConfig(), 1), EnvPlacement(seed=1, num_threads=1))
    env.reset()
    ahead = {"rudder": torch.zeros(2), "throttle": torch.ones(2), "fire": torch.tensor([1, 0])}
    env.step(ahead, dt=2.0)
    ahead["fire"].zero_()
    told = TASK.view.graph(AircombatConfig(), {k: v[0] for k, v in TASK.view.snapshot(env, [0]).items()})
    wait = told["sides"][1]["incoming"][0]["decide_s"]
    env.step(ahead, dt=max(wait - 1.0, 0.1))
    drag = make_pilot(TASK, "drag")
    assert drag is not None
    out = env.step(ahead, dt=0.1)
    for _ in range(400):
        away = drag.act({k: v[1:] for k, v in out["obs"].items()})
        action = {name: torch.cat([ahead[name][:1], away[name]]) for name in ahead}
        action["fire"].zero_()
        out = env.step(action, dt=0.1)
        assert not bool(out["terminated"][0])
    env.close()


def test_an_older_recording_has_a_graph_too(solver: GraphSolver) -> None:
    frame = facing(20_000.0)
    del frame["missile_motor_s"]
    frame["missile_alive"][0, 0] = True
    frame["missile_pos"][0, 0], frame["missile_speed"][0, 0] = (10_000.0, 0.0), 900.0
    assert len(solver.solve(frame)["sides"][1]["incoming"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"pos": np.array([[np.nan, 0.0], [1.0, 0.0]])},
        {"pos": np.zeros((3, 2))},
        {"pos": np.full((2, 2), 1e30)},
        {"speed": np.array([-1.0, 300.0])},
        {"missile_alive": np.zeros((2, 6, 3), bool)},
        {"missile_alive": np.zeros((2, 1000), bool)},
        {"heading": np.array(["<script>", "x"])},
    ],
)
def test_a_strangers_frame_is_refused_in_a_sentence(solver: GraphSolver, change: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError, match="not a frame of a duel"):
        solver.solve(facing(20_000.0) | change)
    with pytest.raises(InputError, match="lacks pos"):
        solver.solve({})
