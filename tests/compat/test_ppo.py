"""NavRL's own checkpoint in the compat PPO."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.compat.ppo import PPO
from fledge.core.errors import FormatError, InputError
from fledge.core.specs import TensorSpec
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic, load_navrl_checkpoint
from tests.compat.conformance.worlds import make_env
from tests.reference.navrl_files import write_navrl_checkpoint

RELEASED = Path(__file__).resolve().parents[3] / "shared" / "data" / "navrl_checkpoint.pt"


@pytest.fixture(scope="module")
def env_specs() -> tuple[object, object]:
    env = make_env(2)
    specs = env.observation_spec, env.action_spec
    env.close()
    return specs


@pytest.mark.parametrize(
    "released", [False, pytest.param(True, marks=pytest.mark.skipif(not RELEASED.is_file(), reason="no file"))]
)
def test_navrls_checkpoint_is_loaded_as_its_own_code_loads_it(released: bool, env_specs, tmp_path: Path) -> None:
    path = RELEASED if released else write_navrl_checkpoint(tmp_path / "navrl.pt")
    policy = PPO(None, *env_specs, "cpu")
    policy.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    obs = policy.example_inputs(16)
    theirs = load_navrl_checkpoint(path)
    torch.testing.assert_close(policy.act(obs), theirs.act(obs))
    data = policy(obs)
    torch.testing.assert_close(data["state_value"][:, 0], theirs(obs)[2].detach(), rtol=1e-4, atol=1e-3)
    again = PPO(None, *env_specs, "cpu")
    again.load_state_dict(policy.state_dict())
    assert torch.equal(again.act(obs), policy.act(obs))


def test_a_checkpoint_of_navrl_that_does_not_fit_is_refused_in_a_sentence(env_specs, tmp_path: Path) -> None:
    saved = torch.load(write_navrl_checkpoint(tmp_path / "navrl.pt"), weights_only=True)
    other = PPO(None, {"x": TensorSpec((3,), torch.float32)}, TensorSpec((2,), torch.float32, -1.0, 1.0), "cpu")
    assert not isinstance(other.network, NavRLActorCritic)
    with pytest.raises(InputError, match="from NavRL's network, but this policy has another network: pass"):
        other.load_state_dict(saved)
    del saved["critic.module.bias"]
    with pytest.raises(
        FormatError, match=r"The state dict is not NavRL's policy: it has no entry critic\.module\.bias"
    ):
        PPO(None, *env_specs, "cpu").load_state_dict(saved)
