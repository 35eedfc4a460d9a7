"""Where an env runs: values that no env can have are refused."""

from __future__ import annotations

from typing import Any

import pytest

from fledge.core.errors import InputError
from fledge.envs.placement import EnvPlacement


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"device": "gpu"}, "device='gpu' is not known: choose cpu, cuda or cuda:N"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"seed": 0.5}, "seed=0.5 must be a whole number"),
        ({"num_threads": 0}, "num_threads=0 must be a whole number of at least 1"),
        ({"env_offset": -2}, "env_offset=-2 must be"),
        ({"env_offset": 8, "total_envs": 8}, "env_offset=8 must be less than total_envs=8"),
        ({"rank": None}, "rank=None must be"),
    ],
)
def test_a_placement_that_no_env_can_have_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        EnvPlacement(**given)


def test_a_placement_within_a_population_is_accepted() -> None:
    assert EnvPlacement("cuda:1", 7, 2, 4, 8, 1).env_offset == 4
