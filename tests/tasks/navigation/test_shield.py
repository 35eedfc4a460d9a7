"""Shields leave what is safe alone, turn what is not, and pass memory and resets on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fledge.agents.base import BaseAgent, Obs
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.pilots import StraightPilot
from fledge.tasks.navigation.shield import SHIELDS, Shielded
from fledge.tasks.policy_loader import check_fit


class Fixed(BaseAgent):
    """Always the same command, as an action."""

    observes = ("state",)

    def __init__(self, action: list[float]) -> None:
        super().__init__()
        self.action = torch.tensor(action)

    def act(self, obs: Obs, deterministic: bool = True) -> torch.Tensor:
        return self.action.expand(len(obs["state"]), 3)


def observe(ahead_m: float | None) -> dict[str, torch.Tensor]:
    """Two drones at rest; a wall before the second."""
    lidar = torch.zeros(2, 1, 36, 4)
    if ahead_m is not None:
        for h in (33, 34, 35, 0, 1, 2, 3):
            lidar[1, 0, h, :3] = 4.0 - ahead_m / float(np.cos(np.radians(10 * h)))
    return {
        "state": torch.tensor([[1.0, 0, 0, 10.0, 0, 1.8, 0, 0]]).repeat(2, 1),
        "lidar": lidar,
        "dynamic_obstacle": torch.zeros(2, 1, 5, 10),
        "pose": torch.tensor([[1.5, 0.0]]).repeat(2, 1),
    }


@pytest.mark.parametrize("kind", SHIELDS)
def test_a_command_into_the_open_is_flown_as_it_is_and_one_into_a_wall_is_not(kind: str) -> None:
    agent = Shielded(Fixed([1.0, 0.5, 0.5]), kind)
    agent.configure(NavigationConfig(pose=True))
    flown = agent.act(observe(1.0))
    assert torch.equal(flown[0], torch.tensor([1.0, 0.5, 0.5]))
    assert flown[1, 0] < 0.95
    assert agent.figures() == pytest.approx(
        {"shield_share": 0.5, "shield_change": 2.0 * (flown[1] * 2 - 1 - torch.tensor([1.0, 0, 0])).norm().item()},
        rel=1e-3,
    )
    assert agent.figures() == {}  # counted anew
    assert agent.get_name() == f"Fixed+{kind}"
    assert set(agent.observes) == {"state", "lidar", "dynamic_obstacle", "pose"}


def test_the_planners_shield_remembers_what_is_out_of_sight_until_a_reset() -> None:
    agent = Shielded(Fixed([1.0, 0.5, 0.5]), "planner")
    agent.configure(NavigationConfig(pose=True))
    agent.act(observe(1.0))
    kept = agent.episode_state()
    assert agent.act(observe(None))[1, 0] < 0.95  # still there
    agent.reset(torch.tensor([False, True]))
    assert agent.act(observe(None))[1, 0] == 1.0
    agent.load_episode_state(kept)
    assert agent.act(observe(None))[1, 0] < 0.95


def test_misuse_gets_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'net' is not a known shield\. Choose one of orca, planner"):
        Shielded(StraightPilot(), "net")
    env = NavigationEnv(NavigationConfig(num_envs=2, num_maps=1, pose=True, action_form=ActionForm.headings))
    with pytest.raises(ConfigError, match="needs velocity actions"):
        check_fit(Shielded(StraightPilot(), "orca"), env)
    env.close()
    done = CliRunner().invoke(main, ["eval", "straight", "--shield", "net", "--episodes", "2"])
    assert done.exit_code == 2 or "not a known shield" in str(done.exception)


def test_the_command_line_flies_shielded_policies_and_tells_what_the_shield_did() -> None:
    words = ["eval", "straight", "--shield", "orca", "--env", "crossing", "env.num_envs=4", "env.static_obstacles=60"]
    done = CliRunner().invoke(main, [*words, "--episodes", "4", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)
    assert row["policy"] == "straight+orca"
    assert 0 < row["shield_share"] <= 1
    assert row["shield_change"] > 0
