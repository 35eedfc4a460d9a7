"""Small policy files for tests of the command line."""

from pathlib import Path

import torch
from click.testing import CliRunner, Result

from fledge.cli import main
from fledge.core.settings import flat_settings
from fledge.storage import save_checkpoint
from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.task import NavigationTask

TINY = ["env.num_envs=16", "env.num_maps=2", "env.static_obstacles=30", "env.moving_obstacles=8"]


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


KINDS = {
    "features": {"kind": "features", "hidden": [16], "lidar": [36, 4], "range_m": 4.0},
    "squashed": {"kind": "squashed", "hidden": [16], "lidar": [36, 4], "range_m": 4.0},
    "grid_q": {"kind": "grid_q", "hidden": [16], "grid_size": 32, "headings": 8},
}


WORLDS = {
    "features": NavigationConfig(decimation=5),
    "squashed": NavigationConfig(decimation=5),
    "grid_q": NavigationConfig(
        decimation=5, grid_map=True, grid_size=32, action_form=ActionForm.headings, num_headings=8
    ),
}


def write_policy(kind: str, path: Path, world: bool = True) -> Path:
    torch.manual_seed(0)
    entries = {"model": NavigationTask().policy.build(KINDS[kind]).state_dict(), "policy": KINDS[kind]}
    entries |= {"world": {"env": flat_settings(WORLDS[kind]), "decision_s": 0.08}} if world else {}
    save_checkpoint({**entries, "task": "navigation"}, path)
    return path
