"""PPO of recurrent policies against a plain single-file one, and its sequences by tags."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, NumericsError
from fledge.learn.ppo import PPO, PPOConfig
from fledge.learn.sequences import cut, cut_states, find_begins, take
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from tests.reference import plain_recurrent_ppo

N, T = 8, 16
ENV = NavigationConfig(num_envs=N, num_maps=2, decimation=5, static_obstacles=60, moving_obstacles=16)
ENV.max_episode_steps = 60  # truncations within the test


def make_env() -> NavigationEnv:
    return NavigationEnv(ENV, seed=3, num_threads=1)


def make_policy() -> FeaturePolicy:
    torch.manual_seed(0)
    return FeaturePolicy(hidden=(16,), gru_size=12)


def rollout_of(policy: FeaturePolicy, rollouts: int = 1) -> TensorDict:
    torch.manual_seed(1)
    collector = SyncDataCollector(make_env(), policy, N * T)
    return [collector.rollout() for _ in range(rollouts)][-1]


@pytest.mark.parametrize("length", [0, 4])
def test_losses_and_weights_equal_the_plain_reference_over_iterations(length: int) -> None:
    cfg = PPOConfig(rollout_steps=T, epochs=2, minibatch=64, sequence_length=length)
    policy = make_policy()
    other = copy.deepcopy(policy)
    torch.manual_seed(1)
    learner, collector = PPO(policy, cfg), SyncDataCollector(make_env(), policy, N * T)
    ours, truncated = [], 0
    for _ in range(3):
        rollout = collector.rollout()
        truncated += int(rollout["truncated"][:-1].sum())
        ours.append(learner.update(rollout))
    assert truncated > 0, "the test must meet truncations within a rollout"

    torch.manual_seed(1)
    optimizer = torch.optim.Adam(other.parameters(), lr=cfg.lr, eps=cfg.adam_eps)
    env = make_env()
    obs, hidden = dict(env.reset()["obs"].items()), torch.zeros(N, 12)
    for mine in ours:
        rows, obs, hidden = plain_recurrent_ppo.collect(env, other, obs, hidden, T)
        reference = plain_recurrent_ppo.update(other, optimizer, rows, cfg, length or T)
        for name, value in reference.items():
            assert mine[name] == pytest.approx(value, rel=2e-3, abs=2e-5), name
    for (name, a), b in zip(policy.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("length", [2, 3, 6])
def test_a_sequence_holds_neighbouring_decisions_of_one_env_and_the_state_it_began_with(length: int) -> None:
    steps, envs = 6, 5
    tags = torch.arange(steps)[:, None] * 100 + torch.arange(envs)  # decision and env
    generator = torch.Generator().manual_seed(length)
    terminated, truncated = torch.rand(2, steps, envs, generator=generator) < 0.2
    begins = find_begins(terminated, truncated)
    for t in range(steps):
        for n in range(envs):
            assert bool(begins[t, n]) == (t > 0 and bool(terminated[t - 1, n] or truncated[t - 1, n]))
    entries = {"input": tags[..., None].float(), "begins": begins, "value": tags}
    sequences = {name: cut(entry, length) for name, entry in entries.items()}
    states = cut_states(tags[..., None].expand(-1, -1, 3), length)
    assert len(states) == steps // length * envs
    seen: list[int] = []
    order = torch.randperm(len(states), generator=generator)
    for index in order.split(2):
        batch = take(sequences, states, index)
        for b in range(len(index)):
            column = batch["input"][:, b, 0].long()
            first, env = divmod(int(column[0]), 100)
            assert column.tolist() == [(first + t) * 100 + env for t in range(length)]
            assert batch["begins"][:, b].tolist() == begins[first : first + length, env].tolist()
            assert batch["hidden"][b].tolist() == [first * 100 + env] * 3
            assert batch["value"].view(length, -1)[:, b].tolist() == column.tolist()
            seen += column.tolist()
    assert sorted(seen) == sorted(tags.flatten().tolist())


@pytest.mark.parametrize("length", [0, 4])
def test_before_the_first_step_ratios_are_one_and_values_are_the_collected_ones(length: int) -> None:
    """The second rollout begins with states of the first one, and episodes end within it."""
    policy = make_policy()
    rollout = rollout_of(policy, 2)
    assert rollout["hidden"][0].abs().sum() > 0
    assert (rollout["terminated"] | rollout["truncated"])[:-1].any()
    cfg = PPOConfig(rollout_steps=T, epochs=1, minibatch=N * T, sequence_length=length)
    learner, seen = PPO(policy, cfg), list[Tensor]()

    def look(batch: dict[str, Tensor], *rest: object) -> None:
        params, value = learner._evaluate(batch)
        torch.testing.assert_close(policy.head.log_prob(params, batch["raw_action"]), batch["log_prob"])
        torch.testing.assert_close(value, batch["value"], rtol=1e-4, atol=1e-5)
        seen.append(batch["value"])
        learner._sums[7] += 1

    learner._step = look  # type: ignore[method-assign]
    learner.update(rollout)
    assert len(torch.cat(seen)) == rollout.numel()


def test_a_learner_of_stale_rollouts_equals_the_plain_one_on_a_rollout_of_its_own_weights() -> None:
    policy = make_policy()
    rollout = rollout_of(policy, 2)
    reports = []
    for stale in (False, True):
        cfg = PPOConfig(rollout_steps=T, epochs=2, minibatch=64, sequence_length=4)
        learner = PPO(copy.deepcopy(policy), cfg, stale_policy=stale)
        torch.manual_seed(1)
        reports.append(learner.update(rollout.clone(), progress=0.5))
    assert reports[1] == pytest.approx(reports[0], rel=1e-4, abs=1e-6)


def test_a_learner_of_stale_rollouts_begins_its_sequences_with_states_of_its_present_weights() -> None:
    policy = make_policy()
    rollout = rollout_of(policy, 2)
    with torch.no_grad():
        policy.gru.bias_hh += 0.5  # learned since
    learner = PPO(policy, PPOConfig(rollout_steps=T, epochs=1, minibatch=N * T, sequence_length=4), stale_policy=True)
    *_, states = learner._evaluate_again(rollout)
    assert states is not None
    assert torch.equal(states[0], rollout["hidden"][0])
    cleared = find_begins(rollout["terminated"], rollout["truncated"])
    assert cleared.any()
    assert not states[cleared].any()
    running = ~cleared[1:]
    assert not torch.isclose(states[1:][running], rollout["hidden"][1:][running]).all(-1).any()
    assert learner.update(rollout)["kl"] == pytest.approx(0.0, abs=1e-5)  # one step: measured before it


def test_a_failed_update_can_be_repeated_with_its_states() -> None:
    policy = make_policy()
    rollout = rollout_of(policy)
    rollout["reward"][3, 2] = torch.nan
    learner = PPO(policy, PPOConfig(rollout_steps=T, epochs=1, minibatch=64))
    with pytest.raises(NumericsError) as failed:
        learner.update(rollout)
    assert failed.value.cause is not None
    assert torch.equal(failed.value.cause["rollout"]["hidden"], rollout["hidden"])
    with pytest.raises(NumericsError):
        PPO(make_policy(), learner.cfg).repeat(failed.value.cause)


def test_a_sequence_length_must_divide_the_rollout_and_needs_a_memory() -> None:
    with pytest.raises(ConfigError, match=r"ppo.sequence_length is 5, but must divide the 16 decisions"):
        PPO(make_policy(), PPOConfig(rollout_steps=T, sequence_length=5))
    with pytest.raises(ConfigError, match=r"ppo.sequence_length=4 works only with a recurrent policy: set policy.gru"):
        PPO(FeaturePolicy(hidden=(8,)), PPOConfig(rollout_steps=T, sequence_length=4))
