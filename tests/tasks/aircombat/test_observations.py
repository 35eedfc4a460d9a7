"""The tables of observations: specs, buffers and the documentation follow them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.tasks.aircombat.observations import OBSERVATIONS, Missile, Observation, Spacetime, State
from tests.tasks.aircombat.duels import action, make

PAGE = Path(__file__).parents[3] / "docs" / "worlds" / "aircombat.md"


def table_of(observation: Observation) -> str:
    """A page's table of an observation's columns."""
    lines = [f"| `{observation.name}` | | unit | divided by | clipped to |", "|---|---|---|---|---|"]
    for column in observation.columns:
        bounds = f"{column.low:g} to {column.high:g}"
        lines.append(f"| {column.name.lower()} | {column.doc} | {column.unit} | {column.scale:g} | {bounds} |")
    return "\n".join(lines)


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=lambda observation: observation.name)
def test_the_page_lists_every_column(observation: Observation) -> None:
    assert table_of(observation) in PAGE.read_text(encoding="utf-8")


def test_old_policies_find_every_column_where_it_was() -> None:
    assert (State.RANGE, State.ASPECT_COS, State.CAN_FIRE, State.CROSSING_SPEED) == (0, 5, 11, 14)
    assert (Missile.FLYING, Missile.TIME_TO_GO, Missile.LEAD_COS) == (0, 4, 9)
    assert (Spacetime.OVER_R_MAX, Spacetime.ENEMY_OVER_R_TR, Spacetime.MISS_AWAY) == (0, 4, 9)


def test_columns_hold_values_in_their_units_divided_and_clipped() -> None:
    env = make(2)
    env.state["pos"][1, 0] = 1e6  # far outside the limits
    env.state["speed"][:] = torch.tensor([250.0, 100.0, 300.0, 300.0])
    out = env.make_buffers()
    env.launcher.run(env._programs(out).observe)
    state = out["obs"]["state"]
    assert state[0, State.RANGE] == State.RANGE.high
    assert State.SPEED.read(state).tolist() == [250.0, 100.0, 300.0, 300.0]
    assert State.RANGE.read(state)[2:].tolist() == pytest.approx([30_000.0] * 2)
    env.close()


def test_the_fields_that_are_observed_stay_within_their_limits() -> None:
    env = make(64, spacetime=True, seed=1)
    for k in range(40):
        out = env.step(action(128, rudder=0.3, fire=k % 3 == 0))
        for observation in OBSERVATIONS:
            values = out["obs"][observation.name].flatten(0, -2)
            for column in observation.columns:
                assert column.low <= float(values[:, column].min()) <= float(values[:, column].max()) <= column.high
    env.close()
