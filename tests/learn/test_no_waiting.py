"""Deciding and learning never look at a tensor's content: on a GPU, every look waits for it.

Tensors on the "meta" device have no content, so whoever looks fails.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic, MLPActorCritic, ValueNorm
from fledge.core.specs import TensorSpec
from fledge.learn.dqn import DQN, DQNConfig
from fledge.learn.off_policy import ReplayConfig
from fledge.learn.ppo import PPO, PPOConfig
from fledge.learn.sac import SAC, SACConfig
from fledge.learn.td3 import TD3, TD3Config
from fledge.tasks.navigation.networks.feature_policy import FeatureActor, FeaturePolicy
from fledge.tasks.navigation.networks.grid_q import GridQ
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic

T, N = 3, 4


def general() -> MLPActorCritic:
    actions = {"stick": TensorSpec((2,), torch.float32, -1.0, 1.0), "gear": TensorSpec((), torch.int64, num_values=3)}
    return MLPActorCritic({"place": TensorSpec((5,), torch.float32)}, actions)


POLICIES = {"features": FeaturePolicy, "navrl": NavRLActorCritic, "mlp": general, "squashed": FeatureActor}
POLICIES["grid_q"] = lambda: GridQ(16, 8, (24,))
POLICIES["recurrent"] = lambda: FeaturePolicy(gru_size=5)


def blind(name: str) -> tuple[Any, dict[str, Tensor]]:
    policy = POLICIES[name]()
    obs = {k: v.to("meta") for k, v in policy.example_inputs(N).items()}
    return policy.to("meta"), obs


@pytest.fixture(autouse=True)
def _operations_that_meta_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_sample_dirichlet", torch.rand_like)
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: None)


def test_the_scale_of_values_is_known_without_looking() -> None:
    norm = ValueNorm().to("meta")
    norm.update(torch.ones((), device="meta"), torch.ones((), device="meta"))
    assert norm.denormalize(torch.zeros(3, device="meta")).shape == (3,)
    with pytest.raises(RuntimeError):
        float(norm.weight)  # this is what a look does


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_policies_decide_without_looking(name: str, deterministic: bool) -> None:
    policy, obs = blind(name)
    policy.act(obs, deterministic)
    if isinstance(policy, ActorCritic):
        params, *_ = policy.step(policy.encode(obs))
        assert policy.head.log_prob(params, policy.head.sample(params)).shape == (N,)
        assert policy.value(policy.encode(obs)).shape == (N,)


@pytest.mark.parametrize("stale_policy", [False, True])
@pytest.mark.parametrize("name", ["features", "navrl", "mlp", "recurrent"])
def test_ppo_learns_without_looking_until_it_reports(
    name: str, stale_policy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = blind(name)
    navrl = {"clip_heads": True, "value_clip": 0.1, "popart": False} if name == "navrl" else {}
    learner = PPO(policy, PPOConfig(rollout_steps=T, epochs=1, minibatch=6, **navrl), stale_policy=stale_policy)
    monkeypatch.setattr(learner, "_report", dict)
    rollout = {k: torch.zeros(T, N, device="meta") for k in ("log_prob", "value", "next_value", "reward")}
    rollout |= {k: torch.zeros(T, N, dtype=torch.bool, device="meta") for k in ("terminated", "truncated")}
    rollout["input"] = torch.zeros(T, N, policy.inputs, device="meta")
    rollout["raw_action"] = torch.zeros(T, N, policy.head.width, device="meta")
    rollout["hidden"] = torch.zeros(T, N, policy.hidden_size, device="meta")
    assert learner.update(TensorDict(rollout, [T, N])) == {}


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn"])
def test_learners_from_replay_step_without_looking(algo: str) -> None:
    policy, obs = blind("grid_q" if algo == "dqn" else "squashed")
    kinds: dict[str, Any] = {"sac": (SAC, SACConfig()), "td3": (TD3, TD3Config()), "dqn": (DQN, DQNConfig())}
    kind, cfg = kinds[algo]
    learner = kind(policy, cfg, ReplayConfig(), None)
    batch = {**obs, **{f"next_{k}": v for k, v in obs.items()}}
    action = learner.explore(obs)
    batch |= {"action": action, "reward": torch.zeros(N, device="meta")}
    batch["terminated"] = torch.zeros(N, dtype=torch.bool, device="meta")
    assert learner.step(batch).shape == (len(learner.names),)
