"""docs/reference/metrics.md describes every column that a run writes, and none that there is not."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from fledge.agents.base import BaseAgent
from fledge.league.league import League, LeagueConfig
from fledge.learn.dqn import DQN
from fledge.learn.sac import SAC
from fledge.learn.td3 import TD3
from fledge.training.config import make_config
from fledge.training.log_row import checkpoint_metrics
from fledge.training.loop import train
from fledge.training.ranks import Ranks

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
TINY = ["env.num_envs=8", "env.num_maps=1", "env.static_obstacles=20", "env.moving_obstacles=4", "ppo.rollout_steps=8"]
TINY += ["ppo.minibatch=32", "env.max_episode_steps=10", "total_frames=192", "save_interval=1", "eval_interval=2"]
TINY += ["eval_episodes=4", "rollout_save_interval=1", "policy.hidden=[8]"]
TINY += ["auto=[env.num_envs,ppo.minibatch]"]


@pytest.fixture(scope="module")
def described() -> set[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w/]+)`", row.split("|")[1])}


def test_every_column_of_a_run_is_described_and_every_description_has_a_column(
    described: set[str], tmp_path: Path
) -> None:
    train(make_config("navigation", "", TINY), tmp_path, Ranks())
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    written = {name for row in rows for name in row}
    assert written <= described, f"docs/reference/metrics.md does not know {sorted(written - described)}"
    league = League(LeagueConfig(ladder=["one"]), lambda name: BaseAgent(), lambda weights: BaseAgent())
    saver = checkpoint_metrics(defaultdict(float))  # some come only once a save is durable
    gpu = {"gpu_memory_mb"}  # where there is one
    uploads = {"checkpoint/uploads", "checkpoint/upload_failures", "checkpoint/upload_age_s"}  # with checkpoint_url
    actors = {
        f"actors/{name}" for name in ("bytes_per_second", "connected", "discarded", "lag", "refused")
    }  # with actors.listen
    others = {*gpu, *uploads, *actors, *SAC.names, *TD3.names, *DQN.names, *league.metrics(), *saver}
    assert others <= described
    assert described <= written | others, f"docs/reference/metrics.md describes {sorted(described - written - others)}"

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == written - {"step"}  # the names are the same there
