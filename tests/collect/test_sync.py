"""The collector hands out exactly what the env did, in place, without mixing rows."""

import pytest
import torch

from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy

CFG = NavigationConfig(num_envs=12, num_maps=2, decimation=5, static_obstacles=100, moving_obstacles=16)
CFG.max_episode_steps = 100


def make(frames: int = 12 * 10, **kwargs: object) -> SyncDataCollector:
    torch.manual_seed(5)
    return SyncDataCollector(NavigationEnv(CFG, seed=2, num_threads=1), FeaturePolicy(hidden=(16,)), frames, **kwargs)


def test_rows_are_what_the_env_returned() -> None:
    collector = make()
    rollouts = [collector.rollout().clone() for _ in range(3)]
    env = NavigationEnv(CFG, seed=2, num_threads=1)
    obs = env.reset()["obs"]
    ended = 0
    for rollout in rollouts:
        for t in range(10):
            for key, value in obs.items():
                assert torch.equal(rollout["obs", key][t], value), (key, t)
            out = env.step(rollout["action"][t])
            for key in ("reward", "terminated", "truncated", "outcome"):
                assert torch.equal(rollout[key][t], out[key])
            ended += int((out["outcome"] > 0).sum())
            obs = out["obs"]
    assert ended > 0


def test_next_value_is_the_final_observations_where_truncated_and_the_next_rows_elsewhere() -> None:
    collector = make(12 * 25)
    policy = collector.policy
    rollout = collector.rollout()
    env = NavigationEnv(CFG, seed=2, num_threads=1)
    env.reset()
    seen = 0
    for t in range(25):
        out = env.step(rollout["action"][t])
        follows = policy.value(policy.encode(out["obs"])).detach()
        final = policy.value(policy.encode(out["final_obs"])).detach()
        expected = torch.where(out["truncated"], final, follows)
        torch.testing.assert_close(rollout["next_value"][t], expected, rtol=1e-4, atol=1e-5)
        seen += int(out["truncated"].sum())
    assert seen > 0


def test_return_same_td_yields_one_object_updated_in_place() -> None:
    batches = []
    for data in make(total_frames=360):
        batches.append(data)
    assert len(batches) == 3
    assert all(b is batches[0] for b in batches)


def test_without_return_same_td_every_batch_stays_valid() -> None:
    collector = make(total_frames=360, return_same_td=False)
    batches = list(collector)
    other = make(total_frames=360)
    twin = [r.clone() for r in other]
    assert other._frames == collector._frames == 360
    for a, b in zip(batches, twin, strict=True):
        assert (a == b).all()


def test_deterministic_exploration_takes_the_mean() -> None:
    collector = make(exploration_type="deterministic")
    rollout = collector.rollout()
    params, _ = collector.policy(rollout["input"][3])
    torch.testing.assert_close(rollout["raw_action"][3], params[0])


def test_split_trajectories_never_mix_episodes() -> None:
    collector = make(12 * 30, total_frames=360, split_trajs=True)
    data = next(iter(collector))
    whole = collector.latest
    assert int(data["mask"].sum()) == 360
    for row in range(data.shape[0]):
        length = int(data["mask"][row].sum())
        done = (data["terminated"] | data["truncated"])[row, :length]
        assert not done[:-1].any()
    assert float(data["reward"][data["mask"]].sum()) == pytest.approx(float(whole["reward"].sum()), rel=1e-4)


def test_postproc_sees_every_batch() -> None:
    seen = list(make(total_frames=240, postproc=lambda td: td.set("twice", td["reward"] * 2)))
    torch.testing.assert_close(seen[-1]["twice"], seen[-1]["reward"] * 2)


def test_fps_and_frames_are_counted() -> None:
    collector = make()
    collector.rollout()
    assert collector._frames == 120
    assert collector._fps > 0


def test_state_dict_continues_bit_for_bit() -> None:
    collector = make()
    collector.rollout()
    state, rng = collector.state_dict(), torch.get_rng_state()
    expected = collector.rollout().clone()
    other = make()
    other.policy.load_state_dict(collector.policy.state_dict())
    other.load_state_dict(state)
    torch.set_rng_state(rng)
    assert (other.rollout() == expected).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frames": 100}, "multiple of num_envs"),
        ({"frames": 0}, "multiple of num_envs"),
        ({"total_frames": 0}, "total_frames"),
        ({"exploration_type": "greedy"}, "exploration_type"),
        ({"device": "cuda"}, "device"),
    ],
)
def test_misuse_is_refused_with_a_sentence(options: dict, words: str) -> None:
    frames = options.pop("frames", 120)
    with pytest.raises(ConfigError, match=words):
        make(frames, **options)


def test_what_is_no_env_and_no_policy_is_refused() -> None:
    env = NavigationEnv(CFG, seed=2, num_threads=1)
    for wrong in (None, "navigation", [env, None]):
        with pytest.raises(ConfigError, match="must be a TensorEnv"):
            SyncDataCollector(wrong, FeaturePolicy(hidden=(16,)), 120)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be an ActorCritic"):
        SyncDataCollector(env, torch.nn.Linear(3, 3), 120)  # type: ignore[arg-type]
