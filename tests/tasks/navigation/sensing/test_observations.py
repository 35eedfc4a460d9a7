"""The table of observations: what the env, the settings, the contract and the documentation make of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fledge.core.settings import rule_of
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, OBSERVATIONS, PLAN, STATE, Observation
from fledge.tasks.navigation.task import NavigationTask

DOCS = Path(__file__).parents[4] / "docs" / "worlds" / "navigation.md"
ALL_ON = NavigationConfig(num_envs=2, num_maps=1, static_obstacles=0, moving_obstacles=0, grid_size=8, decimation=4)
for optional in OBSERVATIONS:
    if optional.setting:
        ALL_ON = dataclasses.replace(ALL_ON, **{optional.setting: True})


def docs_row(o: Observation) -> str:
    """The line of an observation in the documentation."""
    shape = " x ".join(str(n) for n in o.shape(NavigationConfig()))
    names = [f"`{c.name}`{' (3)' if c.vector else ''} {c.unit}" for c in o.columns[:7]]
    more = ["..."] if len(o.columns) > 7 else []
    enabled = f"`env.{o.setting}`" if o.setting else "always"
    return f"| `{o.name}` | {shape} | {enabled} | {o.doc} | {', '.join(names + more)} |"


@pytest.mark.parametrize("o", OBSERVATIONS, ids=lambda o: o.name)
def test_the_documentation_has_its_row(o: Observation) -> None:
    assert docs_row(o) in DOCS.read_text().splitlines()


def test_the_env_has_all_of_them_and_the_contract_names_every_column() -> None:
    env = NavigationEnv(ALL_ON)
    out = env.reset()
    said = NavigationTask().contract(ALL_ON)["observation"]
    assert list(env.observation_spec) == list(said) == [o.name for o in OBSERVATIONS]
    for o in OBSERVATIONS:
        assert tuple(out["obs"][o.name].shape[1:]) == o.shape(ALL_ON) == tuple(said[o.name]["shape"])
        if o.columns:
            assert len(said[o.name]["columns"]) == o.width == o.shape()[-1]
            assert all(column["name"] and column["unit"] and column["doc"] for column in said[o.name]["columns"])
    env.close()


def test_an_optional_one_is_enabled_by_a_setting_that_says_which_observation_it_shapes() -> None:
    fields = {field.name: field for field in dataclasses.fields(NavigationConfig)}
    for o in OBSERVATIONS:
        if o.setting:
            assert fields[o.setting].default is False
            assert (rule_of(fields[o.setting]).shapes, rule_of(fields[o.setting]).resume) == (o.name, "weights")


def test_columns_are_found_by_name() -> None:
    assert (STATE.at("velocity"), STATE["velocity"], STATE.width) == (5, slice(5, 8), 8)
    assert (DYNAMIC_OBSTACLE.at("is_box"), DYNAMIC_OBSTACLE.size()) == (9, 50)
    assert (PLAN["command"], PLAN.at("fast_time_0"), PLAN.width) == (slice(0, 3), 7, 135)
    with pytest.raises(ValueError, match="speed"):
        STATE.at("speed")
