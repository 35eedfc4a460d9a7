"""Collecting in halves: the synchronous collector's rollout, bit for bit, with one thread more."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from fledge.agents.actor_critic import ActorCritic
from fledge.collect import HalvesDataCollector, SyncDataCollector
from fledge.core.errors import ConfigError, InputError
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic

N, T = 12, 25
CFG = NavigationConfig(num_envs=N, num_maps=2, decimation=5, static_obstacles=100, moving_obstacles=16)
CFG.max_episode_steps = 100


def halves(sizes: Sequence[int] = (N // 2, N // 2)) -> list[NavigationEnv]:
    first = [sum(sizes[:k]) for k in range(len(sizes))]
    cfgs = [dataclasses.replace(CFG, num_envs=size) for size in sizes]
    return [
        NavigationEnv(cfg, seed=2, num_threads=1, env_offset=a, total_envs=sum(sizes))
        for cfg, a in zip(cfgs, first, strict=True)
    ]


def make(
    kind: type[SyncDataCollector],
    policy: type[ActorCritic] = FeaturePolicy,
    sizes: Sequence[int] = (6, 6),
    **options: Any,
) -> SyncDataCollector:
    torch.manual_seed(5)
    return kind(halves(sizes), policy(), sum(sizes) * T, **options)  # type: ignore[arg-type]


def collect(collector: SyncDataCollector, count: int) -> list[TensorDict]:
    torch.manual_seed(7)
    batches = [collector.rollout().clone() for _ in range(count)]
    collector.shutdown()
    return batches


def assert_same(ours: list[TensorDict], theirs: list[TensorDict]) -> None:
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for key in a.keys(include_nested=True, leaves_only=True):
            assert torch.equal(a[key], b[key]), (k, key)


@pytest.mark.parametrize("policy", [FeaturePolicy, NavRLActorCritic])
@pytest.mark.parametrize("sizes", [(6, 6), (3, 9)])
def test_threaded_and_unthreaded_halves_fly_the_same_bit_for_bit(
    policy: type[ActorCritic], sizes: Sequence[int]
) -> None:
    ours = collect(make(HalvesDataCollector, policy, sizes), 3)
    assert_same(ours, collect(make(SyncDataCollector, policy, sizes), 3))
    assert sum(int(batch["truncated"].sum()) for batch in ours) > 0  # final observations were valued too


def test_columns_are_the_two_halves_in_order() -> None:
    rollout = collect(make(HalvesDataCollector), 1)[0]
    whole = NavigationEnv(CFG, seed=2, num_threads=1)
    obs = whole.reset()["obs"]
    assert rollout.shape == (T, N)
    for t in range(T):  # one env of all drones, given the same actions, flies the same
        for key, value in obs.items():
            torch.testing.assert_close(rollout["obs", key][t], value, rtol=0, atol=0)
        out = whole.step(rollout["action"][t])
        for key in ("reward", "terminated", "truncated", "outcome"):
            assert torch.equal(rollout[key][t], out[key]), (key, t)
        obs = out["obs"]
    whole.close()


def test_the_policy_that_acts_is_the_one_of_now() -> None:
    collector = make(HalvesDataCollector)
    collector.rollout()
    with torch.no_grad():
        collector.policy.head.layer.bias.add_(0.5)  # type: ignore[union-attr]
    rollout = collector.rollout()
    params, _ = collector.policy(rollout["input"].flatten(0, 1))
    log_prob = collector.policy.head.log_prob(params, rollout["raw_action"].flatten(0, 1)).detach()
    torch.testing.assert_close(log_prob, rollout["log_prob"].flatten(), rtol=1e-4, atol=1e-4)
    collector.shutdown()


def test_deciding_and_stepping_happen_on_two_threads_at_a_time() -> None:
    collector = make(HalvesDataCollector)
    seen: set[str] = set()
    for env in collector.envs:
        right = env.step

        def step(*args: Any, right: Any = right, **kwargs: Any) -> TensorDict:
            seen.add(threading.current_thread().name)
            return right(*args, **kwargs)

        env.step = step  # type: ignore[method-assign]
    collector.rollout()
    assert len(seen) == 1
    assert seen.pop().startswith("fledge-halves")
    assert collector.simulate_s > 0
    collector.shutdown()


def test_state_dict_continues_bit_for_bit() -> None:
    collector = make(HalvesDataCollector)
    collector.rollout()
    state = collector.state_dict()
    expected = collect(collector, 2)
    other = make(HalvesDataCollector)
    other.load_state_dict(state)
    assert other._frames == N * T
    assert_same(collect(other, 2), expected)


def test_an_error_of_either_half_reaches_the_caller_and_leaves_nothing_flying() -> None:
    for broken in (0, 1):
        collector = make(HalvesDataCollector)

        def step(*args: Any, **kwargs: Any) -> TensorDict:
            raise RuntimeError("a rotor fell off")

        collector.envs[broken].step = step  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="rotor"):
            collector.rollout()
        assert not collector._stepping  # type: ignore[attr-defined]
        collector.shutdown()
        assert not [t.name for t in threading.enumerate() if t.name.startswith("fledge-")]


def test_misuse_is_refused_with_a_sentence() -> None:
    a, b = halves()
    with pytest.raises(ConfigError, match="one env"):
        HalvesDataCollector(a, FeaturePolicy(), 60)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="3 envs"):
        HalvesDataCollector([a, b, a], FeaturePolicy(), 60)
    with pytest.raises(ConfigError, match="two envs that are one object"):
        HalvesDataCollector([a, a], FeaturePolicy(), 60)
    with pytest.raises(ConfigError, match="multiple of num_envs"):
        HalvesDataCollector([a, b], FeaturePolicy(), 61)
    whole = SyncDataCollector(a, FeaturePolicy(), 60)
    with pytest.raises(ConfigError, match="over 1 envs"):
        HalvesDataCollector([a, b], FeaturePolicy(), 60).load_state_dict(whole.state_dict())


def test_nothing_flies_after_the_end() -> None:
    collector = make(HalvesDataCollector)
    collector.shutdown()
    with pytest.raises(InputError, match="after shutdown"):
        collector.rollout()
