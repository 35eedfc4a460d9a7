"""The duel's network, and the one that is shipped."""

from pathlib import Path

import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.export import export_policy
from fledge.evaluation.matches import cross_table
from fledge.tasks.aircombat.config import ActionForm
from fledge.tasks.aircombat.observations import Missile, Spacetime
from fledge.tasks.aircombat.policy import POOLS, DuelPolicy
from fledge.tasks.policy_loader import load_policy, make_pilot
from tests.tasks.aircombat.duels import make


@pytest.mark.parametrize("form", list(ActionForm))
@pytest.mark.parametrize("pool", POOLS)
def test_fire_is_held_where_a_target_outlasts_the_missile(form: ActionForm, pool: str) -> None:
    policy = DuelPolicy(6, True, make(2, action_form=form).action_spec, (16,), 8, pool, within_r_max=True)
    with torch.no_grad():  # one that would always fire
        head = policy.head.heads["fire"] if form is ActionForm.continuous else policy.head  # type: ignore[attr-defined]
        head.layer.bias[1::2] += 100.0
    obs = policy.example_inputs(64)
    obs["spacetime"][:32, Spacetime.OVER_R_MAX], obs["spacetime"][32:, Spacetime.OVER_R_MAX] = 0.99, 1.01
    action = policy.act(obs)
    fire = action["fire"] if isinstance(action, dict) else action % 2
    assert fire[:32].all()
    assert not fire[32:].any()
    policy.within_r_max = False
    action = policy.act(obs)
    assert (action["fire"] if isinstance(action, dict) else action % 2).all()


@pytest.mark.parametrize("pool", POOLS)
def test_the_order_of_missiles_means_nothing_and_spent_ones_are_not_read(pool: str) -> None:
    policy = DuelPolicy(6, True, make(2).action_spec, (16,), 8, pool)
    obs = policy.example_inputs(8)
    turned = {**obs, "missiles": obs["missiles"].clone()}
    turned["missiles"][:, :6] = obs["missiles"][:, torch.tensor([5, 3, 1, 0, 2, 4])]
    spent = turned["missiles"][..., Missile.FLYING] < 0.5
    turned["missiles"][..., 1:][spent] = 7.0
    for name, value in policy.act(obs).items():  # type: ignore[union-attr]
        torch.testing.assert_close(policy.act(turned)[name], value)  # type: ignore[index]


def test_the_shipped_policy_wins_and_never_wastes_a_shot() -> None:
    policy = load_policy("fledge-duel")
    cfg = eval_env(policy).cfg
    pilots = [(name, pilot) for name in ("pursuit", "envelope") if (pilot := make_pilot(policy.task, name)) is not None]
    result = cross_table([("ours", policy.agent), *pilots], policy.task, cfg, 64, seed=1)
    for row in result["table"][0][1:]:
        assert row["win_of_decided"] > 0.7
        assert row["decided"] >= 0.6
    assert result["behaviour"][0]["outside_r_max"] < 0.01
    assert result["behaviour"][0]["by_start"]["defending"]["survived"] > 0.7


def test_a_switch_of_a_policy_is_changed_by_export(tmp_path: Path) -> None:
    export_policy("fledge-duel", tmp_path / "free.fledge", overrides=["policy.within_r_max=false"])
    ours, free = load_policy("fledge-duel").agent, load_policy(str(tmp_path / "free.fledge")).agent
    assert (ours.within_r_max, free.within_r_max) == (True, False)
    assert all(torch.equal(value, free.state_dict()[name]) for name, value in ours.state_dict().items())
    for word in ("policy.pool=attention", "policy.within_r_max=maybe", "policy.nothing=true"):
        with pytest.raises(ConfigError, match="its true/false options"):
            export_policy("fledge-duel", tmp_path / "no.fledge", overrides=[word])
