"""How many ranks a run gets by itself."""

import pytest

from fledge.train import ranks


@pytest.mark.parametrize(
    ("cores", "num_envs", "expected"), [(6, 1024, 4), (2, 1024, 2), (6, 7, 1), (3, 9, 3), (1, 8, 1)]
)
def test_ranks_share_the_envs_out_evenly_on_any_number_of_cores(
    cores: int, num_envs: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "default_threads", lambda: cores)
    assert ranks.default_ranks("cpu", num_envs) == expected
