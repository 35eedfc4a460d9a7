"""PPO against a plain single-file one, and its parts by hand."""

import copy
import itertools

import pytest
import torch
from tensordict import TensorDict

from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, NumericsError
from fledge.learn.ppo import PPO, PPOConfig
from fledge.learn.returns import gae
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from tests.reference import plain_ppo

ENV = NavigationConfig(num_envs=16, num_maps=2, decimation=5, static_obstacles=60, moving_obstacles=16)
ENV.max_episode_steps = 60  # truncations within the test


def make_env() -> NavigationEnv:
    return NavigationEnv(ENV, seed=3, num_threads=1)


def test_losses_equal_the_plain_reference_over_iterations() -> None:
    cfg = PPOConfig(rollout_steps=16, epochs=2, minibatch=64)
    torch.manual_seed(0)
    policy = FeaturePolicy(hidden=(32, 16))
    twin = copy.deepcopy(policy)

    torch.manual_seed(1)
    learner = PPO(policy, cfg)
    collector = SyncDataCollector(make_env(), policy, 16 * 16)
    ours, truncated = [], 0
    for _ in range(4):
        rollout = collector.rollout()
        truncated += int(rollout["truncated"].sum())
        ours.append(learner.update(rollout))

    torch.manual_seed(1)
    optimizer = torch.optim.Adam(twin.parameters(), lr=cfg.lr, eps=cfg.adam_eps)
    env = make_env()
    obs = dict(env.reset()["obs"].items())
    assert truncated > 0, "the test must meet truncations"
    for mine in ours:
        rows, obs = plain_ppo.collect(env, twin, obs, 16)
        reference = plain_ppo.update(twin, optimizer, rows, cfg, cfg.lr, cfg.entropy_coef)
        for name, value in reference.items():
            assert mine[name] == pytest.approx(value, rel=2e-3, abs=2e-5), name
    for a, b in zip(policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


def test_a_learner_of_stale_rollouts_equals_the_plain_one_on_a_rollout_of_its_own_weights() -> None:
    cfg = PPOConfig(rollout_steps=8, epochs=2, minibatch=64)
    torch.manual_seed(0)
    policy = FeaturePolicy(hidden=(16,))
    rollout = SyncDataCollector(make_env(), policy, 8 * 16).rollout()
    reports = []
    for stale in (False, True):
        learner = PPO(copy.deepcopy(policy), cfg, stale_policy=stale)
        torch.manual_seed(1)
        reports.append(learner.update(rollout.clone(), progress=0.5))  # which moves the ceiling of the spread
    assert reports[1] == pytest.approx(reports[0], rel=1e-4, abs=1e-6)


def test_a_learner_of_stale_rollouts_stays_close_to_its_present_weights() -> None:
    cfg = PPOConfig(rollout_steps=8, epochs=1, minibatch=128)
    torch.manual_seed(0)
    policy = FeaturePolicy(hidden=(16,))
    rollout = SyncDataCollector(make_env(), policy, 8 * 16).rollout()
    with torch.no_grad():
        policy.head.layer.bias[0] += 0.3  # learned since
    plain, stale = (PPO(copy.deepcopy(policy), cfg, stale_policy=stale) for stale in (False, True))
    torch.manual_seed(1)
    assert plain.update(rollout.clone())["kl"] > 0.01
    torch.manual_seed(1)
    assert stale.update(rollout.clone())["kl"] == pytest.approx(0.0, abs=1e-5)  # one step: measured before it
    density, value, following, _ = stale._evaluate_again(rollout)
    assert not torch.allclose(density, rollout["log_prob"])
    ended = rollout["terminated"] | rollout["truncated"]
    torch.testing.assert_close(following[:-1][~ended[:-1]], value[1:][~ended[:-1]])
    assert torch.equal(following[-1], rollout["next_value"][-1])
    assert torch.equal(following[ended], rollout["next_value"][ended])


def test_gae_by_hand_stops_at_termination_and_bootstraps_truncation() -> None:
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    value = torch.tensor([[10.0], [20.0], [30.0], [40.0]])
    next_value = torch.tensor([[20.0], [99.0], [7.0], [50.0]])
    terminated = torch.tensor([[False], [True], [False], [False]])
    truncated = torch.tensor([[False], [False], [True], [False]])
    advantage, target = gae(reward, value, next_value, terminated, truncated, 0.5, 0.5)
    last = 4 + 0.5 * 50 - 40
    third = 3 + 0.5 * 7 - 30  # truncated: V(final) counts, the next row does not
    second = 2 - 20.0  # terminated: nothing follows
    first = 1 + 0.5 * 20 - 10 + 0.25 * second
    assert advantage.flatten().tolist() == pytest.approx([first, second, third, last])
    torch.testing.assert_close(target, advantage + value)


def test_gae_of_an_old_rollout_is_v_trace() -> None:
    """Against the sums of Espeholt et al. 2018, equation 1, with lambda in c, written out."""
    steps, gamma, decay = 12, 0.9, 0.8
    generator = torch.Generator().manual_seed(3)
    reward, value, last = (torch.randn(steps, 1, generator=generator) for _ in range(3))
    trust = torch.rand(steps, 1, generator=generator)
    terminated, truncated = torch.zeros(2, steps, 1, dtype=torch.bool)
    terminated[4], truncated[8] = True, True
    ended = terminated | truncated
    next_value = torch.where(ended, last, torch.cat([value[1:], last[:1]]))
    advantage, target = gae(reward, value, next_value, terminated, truncated, gamma, decay, trust)

    delta = reward + gamma * next_value * ~terminated - value
    traced = torch.zeros(steps + 1)  # v_t - V(x_t), 0 past the end
    for t in range(steps):
        factor = 1.0
        for k in range(t, steps):
            traced[t] += factor * float(trust[k] * delta[k])
            if ended[k]:
                break
            factor *= gamma * decay * float(trust[k])
    for t in range(steps):
        follows = 0.0 if ended[t] else gamma * decay * float(traced[t + 1])
        assert float(advantage[t]) == pytest.approx(float(delta[t]) + follows, rel=1e-4, abs=1e-5)
        assert float(target[t]) == pytest.approx(float(value[t] + traced[t]), rel=1e-4, abs=1e-5)


def test_a_minibatch_is_a_fresh_permutation_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = PPOConfig(rollout_steps=8, epochs=3, minibatch=32)
    policy = FeaturePolicy(hidden=(8,))
    learner = PPO(policy, cfg)
    rollout = SyncDataCollector(make_env(), policy, 8 * 16).rollout()
    rollout["log_prob"] = torch.arange(128.0).view(8, 16)  # tags each sample
    seen: list[list[float]] = []
    monkeypatch.setattr(learner, "_step", lambda batch, *rest: seen.append(batch["log_prob"].tolist()))
    learner._sums[7] = 1
    learner.schedule(0.0)
    monkeypatch.setattr(learner, "_report", dict)
    learner.update(rollout)
    epochs = [list(itertools.chain(*seen[k : k + 4])) for k in (0, 4, 8)]
    assert all(sorted(e) == list(range(128)) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_nan_in_a_loss_stops_learning() -> None:
    policy = FeaturePolicy(hidden=(8,))
    learner = PPO(policy, PPOConfig(rollout_steps=4, epochs=1, minibatch=32))
    rollout = SyncDataCollector(make_env(), policy, 4 * 16).rollout()
    rollout["reward"][0, 0] = float("nan")
    with pytest.raises(NumericsError, match="NaN"):
        learner.update(rollout)


@pytest.mark.parametrize("stale", [False, True])
def test_rollouts_of_earlier_versions_are_read_under_their_old_name(stale: bool) -> None:
    policy = FeaturePolicy(hidden=(8,))
    rollout = SyncDataCollector(make_env(), policy, 4 * 16).rollout()
    old = rollout.clone().rename_key_("raw_action", "raw")
    results = []
    for data in (rollout, old):
        torch.manual_seed(3)
        learner = PPO(copy.deepcopy(policy), PPOConfig(rollout_steps=4, epochs=1, minibatch=32), stale_policy=stale)
        results.append((learner.update(data), learner.flat.values.detach().clone()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_value_clipping_takes_the_larger_loss() -> None:
    policy = FeaturePolicy(hidden=(8,))
    batch = {
        "input": torch.randn(32, policy.inputs),
        "raw_action": torch.zeros(32, 3),
        "log_prob": torch.zeros(32),
        "advantage": torch.zeros(32),
        "target": torch.full((32,), 5.0),
        "value": torch.full((32,), -3.0),
    }
    plain, clipped = (PPO(copy.deepcopy(policy), PPOConfig(value_clip=c)) for c in (0.0, 0.1))
    for learner in (plain, clipped):
        learner.schedule(0.0)
    # predictions near 0 lie far from the old value -3: clipped to -2.9, whose error 7.9 is the larger one
    assert float(clipped.losses(batch)[1][1]) == pytest.approx(0.5 * 7.9**2, rel=1e-4)
    assert float(plain.losses(batch)[1][1]) < 0.5 * 7.0**2


def test_popart_leaves_predictions_unchanged() -> None:
    policy = FeaturePolicy(hidden=(8,))
    x = torch.randn(64, policy.inputs)
    before = policy.value(x)
    policy.value_norm.update_preserving(torch.tensor(12.0), torch.tensor(400.0), policy.critic)
    torch.testing.assert_close(policy.value(x), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("lr", 0.0), ("gamma", 1.5), ("minibatch", 0)])
def test_impossible_settings_are_refused_by_name(name: str, value: float) -> None:
    cfg = PPOConfig(**{name: value})
    with pytest.raises(ConfigError, match=f"ppo.{name}"):
        PPO(FeaturePolicy(hidden=(8,)), cfg)


def test_the_rollout_is_read_only_to_the_learner() -> None:
    policy = FeaturePolicy(hidden=(8,))
    rollout = SyncDataCollector(make_env(), policy, 4 * 16).rollout()
    before: TensorDict = rollout.clone()
    PPO(policy, PPOConfig(rollout_steps=4, epochs=1, minibatch=32)).update(rollout)
    assert (rollout == before).all()


def test_the_first_rollout_has_the_spread_that_the_first_update_expects() -> None:
    policy = FeaturePolicy(hidden=(8,))
    with torch.no_grad():
        policy.head.layer.bias[3:] = 20.0  # at the ceiling
    learner = PPO(policy, PPOConfig(rollout_steps=4, epochs=1, minibatch=64, log_std_max=-2.0))
    rollout = SyncDataCollector(make_env(), policy, 4 * 16).rollout()
    assert learner.update(rollout)["kl"] == pytest.approx(0.0, abs=1e-5)  # one step: measured before it
