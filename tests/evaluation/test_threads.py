"""`fledge eval` computes with the threads that it was given, or that the environment says."""

import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main

TINY = ["env.num_envs=2", "env.num_maps=1", "env.static_obstacles=0", "env.moving_obstacles=0", "--episodes", "2"]


@pytest.mark.parametrize(("words", "threads"), [([], 3), (["--threads", "1"], 1)])
def test_eval_computes_with_the_threads_it_was_given(
    words: list[str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    done = CliRunner().invoke(main, ["eval", "straight", *TINY, "env.max_episode_steps=5", "--json", *words])
    assert done.exit_code == 0, done.output
    assert given == [threads]
