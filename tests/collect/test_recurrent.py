"""Collectors keep the hidden states of recurrent policies: each env its own, cleared with its episodes, saved and restored."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fledge.collect import CompressedDataCollector, HalvesDataCollector, PipelinedDataCollector, SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.tasks.navigation.config import NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy

N, T, H = 12, 10, 5
CFG = NavigationConfig(num_envs=N, num_maps=2, decimation=5, static_obstacles=100, moving_obstacles=16)
CFG.starts, CFG.inside_share, CFG.max_episode_steps = Starts.mixed, 1.0, 60  # crashes and truncations


def make_env() -> NavigationEnv:
    return NavigationEnv(CFG, seed=2, num_threads=1)


def make_halves() -> list[NavigationEnv]:
    half = dataclasses.replace(CFG, num_envs=N // 2)
    return [NavigationEnv(half, seed=2, num_threads=1, env_offset=first, total_envs=N) for first in (0, N // 2)]


def make_policy(size: int = H) -> FeaturePolicy:
    torch.manual_seed(5)
    return FeaturePolicy(hidden=(16,), gru_size=size)


def sync() -> Any:
    return SyncDataCollector(make_env(), make_policy(), N * T)


def halves() -> Any:
    return HalvesDataCollector(make_halves(), make_policy(), N * T)


def pipelined() -> Any:
    return PipelinedDataCollector(sync())


def pipelined_halves() -> Any:
    return PipelinedDataCollector(halves())


def compressed() -> Any:
    return CompressedDataCollector(sync(), 1)


KINDS = [sync, halves, pipelined, pipelined_halves, compressed]


def test_rows_hold_the_state_of_their_own_episode_and_values_the_state_of_their_moment() -> None:
    """Against a flight of one env at a time: states, values, values of truncated episodes and at the end of a rollout."""
    collector = sync()
    policy = collector.policy
    torch.manual_seed(7)
    rollouts = [collector.rollout().clone() for _ in range(4)]
    env = make_env()
    obs, states = env.reset()["obs"], [torch.zeros(1, H) for _ in range(N)]
    ends = {"terminated": 0, "truncated": 0}
    for rollout in rollouts:
        for t in range(T):
            out = env.step(rollout["action"][t])
            for n in range(N):
                one = slice(n, n + 1)
                assert torch.equal(rollout["hidden"][t, n] == 0, states[n][0] == 0)  # cleared or not
                torch.testing.assert_close(rollout["hidden"][t, n], states[n][0], rtol=1e-4, atol=1e-5)
                x = policy.encode({k: v[one] for k, v in obs.items()})
                expected = policy.value(x, states[n])
                torch.testing.assert_close(rollout["value"][t, one], expected, rtol=1e-4, atol=1e-5)
                after = policy.step(x, states[n])[2].detach()
                ended = bool(out["terminated"][n] or out["truncated"][n])
                states[n] = torch.zeros(1, H) if ended else after
                truncated = bool(out["truncated"][n])
                seen = out["final_obs"] if truncated else out["obs"]
                follows = policy.value(
                    policy.encode({k: v[one] for k, v in seen.items()}), after if truncated else states[n]
                )
                torch.testing.assert_close(rollout["next_value"][t, one], follows, rtol=1e-4, atol=1e-5)
                for name in ends:
                    ends[name] += int(out[name][n])
            obs = {k: v.clone() for k, v in out["obs"].items()}
    assert all(ends.values())


def test_halves_have_states_of_their_own_and_equal_the_synchronous_collector() -> None:
    ours = halves()
    theirs = SyncDataCollector(make_halves(), make_policy(), N * T)
    for collector in (ours, theirs):
        torch.manual_seed(7)
        collector.batches = [collector.rollout().clone() for _ in range(3)]
        collector.shutdown()
    for a, b in zip(ours.batches, theirs.batches, strict=True):
        for key in a.keys(include_nested=True, leaves_only=True):
            assert torch.equal(a[key], b[key]), key


@pytest.mark.parametrize("make", KINDS)
def test_a_resumed_collector_goes_on_with_its_states(make: Callable[[], Any]) -> None:
    torch.manual_seed(7)
    collector = make()
    for _ in range(2):
        collector.rollout()
    state, rng = copy.deepcopy(collector.state_dict()), torch.get_rng_state()
    first = [read(collector.rollout()) for _ in range(3)]
    collector.shutdown()
    torch.manual_seed(7)
    other = make()
    other.load_state_dict(state)
    torch.set_rng_state(rng)
    for expected in first:
        found = read(other.rollout())
        assert expected["hidden"][0].any()
        for key, value in expected.items():
            assert torch.equal(value, found[key]), key
    other.shutdown()


def read(rollout: Any) -> dict[str, Tensor]:
    return {key: rollout[key].clone() for key in ("hidden", "value", "next_value", "raw_action", "reward")}


def test_a_pipelined_collector_equals_a_synchronous_one_with_the_same_weights() -> None:
    torch.manual_seed(7)
    ours = pipelined()
    theirs = sync()
    theirs.draw_from(torch.Generator().manual_seed(0))
    theirs.generator.set_state(ours.base_collector.generator.get_state())
    for _ in range(3):
        a, b = read(ours.rollout()), read(theirs.rollout())
        assert all(torch.equal(a[key], b[key]) for key in a)
    ours.shutdown()
    theirs.shutdown()


def test_a_state_without_memory_does_not_fit_a_recurrent_policy() -> None:
    plain = SyncDataCollector(make_env(), make_policy(0), N * T)
    assert "hidden" not in plain.rollout().keys()  # noqa: SIM118
    assert "hidden" not in plain.state_dict()
    with pytest.raises(ConfigError, match="policy has no memory, but this policy is recurrent"):
        sync().load_state_dict(plain.state_dict())
