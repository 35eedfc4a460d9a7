"""The replay bench runs, checks its contenders against each other, and reports what it was asked for."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

from fledge.core.errors import FledgeError
from fledge.train.bench import replay

pytest.importorskip("torchrl")


@pytest.mark.slow
def test_the_bench_runs_and_can_be_printed() -> None:
    from rich.console import Console

    said: list[str] = []
    result = replay.run(quick=True, on_progress=said.append)
    json.dumps(result)
    assert said
    assert {"flight", "flight_decimation_5", "grid_maps", "bars", "machine"} <= result.keys()
    Console(file=io.StringIO()).print(*replay.render(result))
    for row in result["flight"]["keys"].values():
        assert row["fledge"] <= row["raw"]


def test_a_buffer_that_returns_other_data_is_not_timed() -> None:
    flat = {"reward": torch.arange(10.0)}
    honest = replay.Contender(lambda: None, lambda numbers: {"reward": flat["reward"][numbers]}, 1.0, 1.0)
    lying = replay.Contender(lambda: None, lambda numbers: {"reward": flat["reward"][numbers] + 1}, 1.0, 1.0)
    replay.check_agreement({"a": honest}, flat, np.random.default_rng(0))
    with pytest.raises(FledgeError, match="returns other"):
        replay.check_agreement({"a": honest, "b": lying}, flat, np.random.default_rng(0))


def test_the_prior_design_is_written_faithfully() -> None:
    from fledge.train.bench.references.prior_replay import PriorReplay

    rng = np.random.default_rng(0)
    episodes = [{"x": rng.normal(size=(n, 3)), "id": np.arange(n)} for n in (5, 9)]
    prior = PriorReplay(2)
    for episode in episodes:
        prior.add(episode)
    got = prior.get(np.array([0, 4, 5, 13]))
    assert got["id"].tolist() == [0, 4, 0, 8]
    assert np.array_equal(got["x"][2], episodes[1]["x"][0])


def test_flown_episodes_line_up() -> None:
    episodes = replay.fly(256, 0, "gap", 5, grid=0)
    assert sum(len(e["reward"]) for e in episodes) == 256
    for episode in episodes:
        assert len(episode["lidar"]) == len(episode["reward"]) + 1
