"""Recurrent policies: the GRU against torch's own, sequences against single steps, memory of each env, exported files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fledge.agents.actor_critic import ActorCritic, MLPActorCritic
from fledge.agents.build import build_from_description, describe
from fledge.agents.export import export_agent
from fledge.agents.policy_file import build_policy
from fledge.agents.recurrent import GRU
from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.core.specs import TensorSpec
from fledge.tasks.aircombat.policy import DuelPolicy
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy, PlannedPolicy

T, B, H = 7, 5, 6
STICK = TensorSpec((2,), torch.float32, -1.0, 1.0)
GEAR = TensorSpec((), torch.int64, 0, 2, num_values=3, mask="allowed")
SEEN = {"place": TensorSpec((5,), torch.float32), "allowed": TensorSpec((3,), torch.bool, 0, 1)}


def make(name: str, size: int = H) -> Any:
    torch.manual_seed(0)
    if name == "mlp":
        made: ActorCritic = MLPActorCritic(SEEN, {"gear": GEAR, "stick": STICK}, (8,), gru_size=size)
        made.learn_inputs(torch.randn(50, made.inputs), lambda x: x)
        return made
    if name == "duel":
        trigger = TensorSpec((), torch.int64, 0, 1, num_values=2, mask="mask")
        return DuelPolicy(2, True, {"stick": STICK, "fire": trigger}, (8,), 4, within_r_max=True, gru_size=size)
    return {"features": FeaturePolicy, "planned": PlannedPolicy}[name](hidden=(8,), gru_size=size)


NETWORKS = ["features", "planned", "mlp", "duel"]


def inputs(policy: Any) -> Tensor:
    """Encoded observations of T decisions of B envs, [T, B, F]."""
    return policy.encode(policy.example_inputs(T * B, seed=3)).view(T, B, -1)


def test_the_gru_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = GRU(4, H), nn.GRU(4, H)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(ours, name).copy_(torch.randn_like(getattr(ours, name)))
            getattr(theirs, f"{name}_l0").copy_(getattr(ours, name))
    z, hidden = torch.randn(T, B, 4), torch.randn(B, H)
    found = ours(z, hidden, torch.zeros(T, B, dtype=torch.bool))
    torch.testing.assert_close(found, theirs(z, hidden[None])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_unrolling_a_sequence_equals_single_steps_with_states_cleared_where_episodes_begin(name: str) -> None:
    policy, hidden = make(name), torch.randn(B, H).tanh()
    x, begins = inputs(policy), torch.rand(T, B, generator=torch.Generator().manual_seed(1)) < 0.3
    params, value, states = policy.unroll(x, hidden, begins)
    for t in range(T):
        if t:
            hidden = torch.where(begins[t][:, None], 0.0, hidden)
        one, own_value, hidden = policy.step(x[t], hidden)
        for part, own in zip(params, one, strict=True):
            torch.testing.assert_close(part.unflatten(0, (T, B))[t], own, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(value.view(T, B)[t], own_value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(states[t], hidden, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_episode_knows_nothing_of_the_one_before(name: str) -> None:
    """Gradients tag what a value has read: the decisions of its own episode up to its own, and no other env."""
    policy, length = make(name), 4
    x = inputs(policy).requires_grad_()
    begins = torch.zeros(T, B, dtype=torch.bool)
    begins[length, 2] = True  # in env 2 another episode begins
    hidden = torch.randn(B, H).tanh().requires_grad_()
    _, value, _ = policy.unroll(x, hidden, begins)
    value = value.view(T, B)

    def readers(t: int, n: int) -> tuple[set[tuple[int, int]], set[int]]:
        by_input, by_state = torch.autograd.grad(value[t, n], (x, hidden), retain_graph=True)
        return {(int(a), int(b)) for a, b in by_input.abs().sum(-1).nonzero()}, {
            int(b) for b in by_state.abs().sum(-1).nonzero().flatten()
        }

    assert readers(T - 1, 1) == ({(t, 1) for t in range(T)}, {1})
    assert readers(T - 1, 2) == ({(t, 2) for t in range(length, T)}, set())
    assert readers(length, 2) == ({(length, 2)}, set())
    assert readers(length - 1, 2) == ({(t, 2) for t in range(length)}, {2})


def test_without_a_memory_nothing_changes() -> None:
    assert "gru_size" not in describe("ppo", SEEN, STICK, [8])
    assert describe("ppo", SEEN, STICK, [8], gru_size=4)["gru_size"] == 4
    policy = make("features", 0)
    assert not any("gru" in name for name in policy.state_dict())
    x = policy.encode(policy.example_inputs(3))
    params, value, hidden = policy.step(x)
    assert hidden is None
    assert torch.equal(params[0], policy(x)[0][0])
    assert torch.equal(value, policy(x)[1])
    assert policy.export_inputs == policy.observes


# ---- acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_act_remembers_each_env_until_its_reset(name: str) -> None:
    policy = make(name).eval()
    obs = [policy.example_inputs(B, seed=t) for t in range(T)]
    begins = torch.rand(T, B, generator=torch.Generator().manual_seed(2)) < 0.3
    hidden = torch.zeros(B, H)
    for t in range(T):
        if t:
            policy.reset(begins[t])
            hidden = torch.where(begins[t][:, None], 0.0, hidden)
        expected, hidden = policy.act_with(obs[t], hidden)
        found = policy.act(obs[t])
        for one, other in zip(*(x.values() if isinstance(x, dict) else [x] for x in (found, expected)), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(policy.episode_state()["hidden"], hidden)
    policy.reset()
    assert policy.episode_state() == {}


def test_a_saved_memory_goes_on() -> None:
    policy = make("features").eval()
    obs = [policy.example_inputs(B, seed=t) for t in range(4)]
    policy.act(obs[0])
    saved = policy.episode_state()
    first = [policy.act(each) for each in obs[1:]]
    policy.reset()
    policy.load_episode_state(saved)
    assert all(torch.equal(a, policy.act(each)) for a, each in zip(first, obs[1:], strict=True))
    policy.load_episode_state({})
    assert torch.equal(policy.act(obs[0]), make("features").act(obs[0]))
    with pytest.raises(InputError, match="The saved memory has width 6, but this policy's has 4"):
        make("features", 4).load_episode_state(saved)


def test_a_copy_has_a_memory_of_its_own() -> None:
    policy = make("features").eval()
    obs = policy.example_inputs(B)
    policy.act(obs)
    before = policy.episode_state()["hidden"]
    policy.clone().act(obs)
    assert torch.equal(policy.episode_state()["hidden"], before)


def test_another_number_of_envs_needs_a_reset() -> None:
    policy = make("features").eval()
    policy.act(policy.example_inputs(B))
    with pytest.raises(InputError, match=r"observations of 3 envs, but remembers episodes of 5: call reset\(\)"):
        policy.act(policy.example_inputs(3))
    policy.reset()
    policy.act(policy.example_inputs(3))


def test_a_call_without_its_state_is_refused() -> None:
    policy = make("features")
    with pytest.raises(InputError, match=r"This policy is recurrent, but was called without its hidden state"):
        policy(policy.encode(policy.example_inputs(2)))


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn"])
def test_only_ppo_trains_a_memory(algo: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.gru_size=8 works only with algo=ppo, but algo={algo}"):
        describe(algo, SEEN, STICK, [8], gru_size=8)


@pytest.mark.parametrize("size", ["wide", -3, 5])
def test_a_file_with_another_memory_than_its_weights_is_refused(size: Any) -> None:
    description = describe("ppo", SEEN, STICK, [8], gru_size=4)
    model = build_from_description(description).state_dict()
    entries = {"policy": {**description, "gru_size": size}, "model": model, "task": "gym:X"}
    with pytest.raises(FormatError):
        build_policy(build_from_description, entries, "a file")


# ---- exported files --------------------------------------------------------------------------------------------------


SLOW = [pytest.param(name, ".onnx", marks=pytest.mark.slow) for name in ("planned", "duel")]


@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, ".ts") for name in NETWORKS), ("features", ".onnx"), ("mlp", ".onnx"), *SLOW]
)
def test_an_exported_file_flies_step_by_step_like_its_policy(name: str, suffix: str, tmp_path: Path) -> None:
    policy, path = make(name).eval(), tmp_path / f"policy{suffix}"
    if suffix == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
    told = export_agent(policy, path)["contract"]
    assert told["inputs"] == [*policy.observes, "state_in"]
    assert told["outputs"] == [*policy.outputs, "state_out"]
    assert told["memory"]["shape"] == [H]
    if suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        assert json.loads(session.get_modelmeta().custom_metadata_map["contract"]) == told
        with pytest.raises(ValueError, match="state_in"):  # never without its state
            session.run(None, {k: v.numpy() for k, v in policy.example_inputs(B).items() if k in policy.observes})
    else:
        script = torch.jit.load(str(path))
    state = np.zeros((B, H), np.float32)
    for t in range(T):
        obs = {k: v for k, v in policy.example_inputs(B, seed=t).items() if k in policy.observes}
        if suffix == ".onnx":
            *found, state = session.run(None, {**{k: v.numpy() for k, v in obs.items()}, "state_in": state})
        else:
            *found, state = (x.detach().numpy() for x in script(*obs.values(), torch.from_numpy(state)))
        action = policy.act(obs)
        for ours, theirs in zip(action.values() if isinstance(action, dict) else [action], found, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)
        np.testing.assert_allclose(policy.episode_state()["hidden"].numpy(), state, atol=1e-5)
