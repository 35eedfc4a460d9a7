"""Rows 74 to 151: the replay buffer and the collectors, typed as document 001 has them."""

from __future__ import annotations

import bisect
import concurrent.futures
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import fledge
from fledge.compat.async_checkpoint import AsyncCheckpointSaver, load_checkpoint
from fledge.compat.checkpoint_utils import PerformanceMonitor
from fledge.compat.collector import ExplorationType, SyncDataCollector, set_exploration_type
from fledge.compat.compressed_collector import CompressedLidarTransform
from fledge.compat.env import NavigationEnv
from fledge.compat.pipelined_collector import PipelinedDataCollector
from fledge.compat.ppo import PPO, PPOWithCompression
from fledge.compat.replay_buffer import (
    DictReplayBuffer,
    PrefixSum,
    compress_image,
    compress_image_seq,
    decompress_image_seq,
    decompress_single_gridmap,
    sample_batch,
)
from fledge.core.errors import ConfigError, InputError
from fledge.learn.registry import find_learner
from tests.compat.conformance.rows import ROOT, covers
from tests.compat.conformance.worlds import N, T, make_collector, make_env, make_policy, weights

KEYS = [
    "node_inputs",
    "edge_inputs",
    "gridmap_inputs",
    "action",
    "reward",
    "done",
    "next_node_inputs",
    "next_gridmap_inputs",
]


def gridmap(value: float = 1.0) -> np.ndarray:
    """A grid map with a few walls; its corner cell holds `value`."""
    cells = np.zeros((1, 24, 24), np.float32)
    cells[:, 4:8] = 1.0
    cells[0, 0, 0] = value
    return cells


def make_episode(length: int, number: int = 0) -> dict[str, Any]:
    """An episode whose frame t carries 100 * number + t everywhere."""
    maps = [gridmap(100 * number + t) for t in range(length + 1)]
    nodes = [torch.full((3, 6), 100.0 * number + t) for t in range(length + 1)]
    return {
        "node_inputs": nodes[:-1],
        "edge_inputs": np.ones((length, 2, 4), np.float32),
        "gridmap_inputs": maps[:-1],
        "action": torch.arange(length),
        "reward": [float(100 * number + t) for t in range(length)],
        "done": [False] * (length - 1) + [True],
        "next_node_inputs": nodes[1:],
        "next_gridmap_inputs": maps[1:],
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- 1, 5: algorithms and data flows ------------------------------------------------------------------------------------


@covers(74, 75)
def test_the_algorithms_are_there() -> None:
    assert all(find_learner(name) for name in ("ppo", "dqn", "sac", "td3"))


@covers(76)
@pytest.mark.parametrize("algo", ["a2c.py:A2C", "trpo.py:TRPO"])  # A2C is the synchronous form of A3C
def test_other_on_policy_algorithms_learn_from_the_collectors_rollouts(algo: str) -> None:
    collector = make_collector(batches=1)
    learner = find_learner(str(ROOT / "examples" / algo))
    before = weights(collector.policy)
    for data in collector:
        learner(collector.policy.network, learner.config()).update(data.transpose(0, 1))
    assert not torch.equal(weights(collector.policy), before)


@covers(77)
def test_both_data_flows() -> None:
    buffer = DictReplayBuffer(100, KEYS)  # episodes, stored, sampled again and again
    buffer.add(make_episode(10))
    assert {float(r) for r in buffer.sample(200)["reward"]} == set(range(10))
    collector = make_collector(batches=2)  # rollouts, used once
    first = collector.rollout().clone()
    assert not torch.equal(first["reward"], collector.rollout()["reward"])


# ---- 2.1: LZ4 images ----------------------------------------------------------------------------------------------------


@covers(78, 80)
def test_compress_image_gives_an_lz4_frame() -> None:
    img = gridmap()
    compressed_data = compress_image(img, level=9)
    assert isinstance(compressed_data, bytes)
    assert lz4.frame.decompress(compressed_data) == img.tobytes()


@covers(79)
def test_levels_go_from_0_to_16() -> None:
    img = gridmap()
    for level in range(17):
        assert lz4.frame.decompress(compress_image(img, level=level)) == img.tobytes()
    for level in (-1, 17, 1.5):
        with pytest.raises(ConfigError, match="0 to 16"):
            compress_image(img, level=level)  # type: ignore[arg-type]


@covers(81)
def test_compress_image_seq_takes_an_array_or_a_list() -> None:
    images = np.stack([gridmap(t) for t in range(5)])
    for given in (images, list(images)):
        compressed = compress_image_seq(given, level=9)
        assert lz4.frame.decompress(compressed) == np.concatenate(given, axis=0).tobytes()


@covers(82)
def test_grid_maps_shrink_at_least_to_a_half() -> None:
    assert gridmap().nbytes > 2 * len(compress_image(gridmap()))


# ---- 2.2: the index -----------------------------------------------------------------------------------------------------


@covers(83, 84, 85, 86, 87)
def test_the_prefix_sum_of_three_episodes() -> None:
    prefix_sum = PrefixSum(max_len=1000)
    prefix_sum.add(10)
    prefix_sum.add(20)
    prefix_sum.add(15)
    episode_idx = prefix_sum.get_range_idx(25)
    assert episode_idx == 1
    assert prefix_sum.get_range_relative_idx(25, 1) == 15
    assert prefix_sum.ar == [10, 20, 15]
    assert prefix_sum.prefix_sum.tolist() == [0, 10, 30, 45]
    assert 25 - prefix_sum.prefix_sum[episode_idx] == 15
    assert bisect.bisect_right(prefix_sum.prefix_sum, 25) - 1 == 1
    native = fledge.PrefixSum(max_len=1000)
    native.add(10)
    assert native.prefix_sum.tolist() == [0, 10]


@covers(88)
def test_the_prefix_sum_grows_and_refuses_what_is_outside() -> None:
    prefix_sum = PrefixSum(max_len=5000)
    for length in range(1, 2001):
        prefix_sum.add(length)
        assert prefix_sum.get_range_idx(prefix_sum.curr_max - 1) == length - 1
    with pytest.raises(InputError, match="only 0 to"):
        prefix_sum.get_range_idx(prefix_sum.curr_max)


# ---- 2.3: parallel decompression ----------------------------------------------------------------------------------------


@covers(89)
def test_decompress_single_gridmap_takes_five_values() -> None:
    compressed_data = compress_image_seq([gridmap(t) for t in range(6)])
    decompress_args = [(compressed_data, (1, 24, 24), 6, np.float32, t) for t in range(6)]
    with ThreadPoolExecutor(max_workers=16) as executor:
        results = list(executor.map(decompress_single_gridmap, decompress_args))
    assert all(isinstance(result, torch.Tensor) for result in results)
    assert torch.stack(results)[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def compressed_buffer(episodes: int = 3, length: int = 6) -> tuple[dict[str, list[Any]], PrefixSum]:
    """Plain lists as the document has them: one compressed object per episode."""
    replay_buffer: dict[str, list[Any]] = {"gridmap_inputs": [], "done": []}
    prefix_sum = PrefixSum(max_len=100)
    for number in range(episodes):
        replay_buffer["gridmap_inputs"].append(compress_image_seq([gridmap(100 * number + t) for t in range(length)]))
        replay_buffer["done"] += [False] * (length - 1) + [True]
        prefix_sum.add(length)
    return replay_buffer, prefix_sum


@covers(90)
def test_sample_batch_samples_grid_maps() -> None:
    replay_buffer, episode_lens_prefix_sum = compressed_buffer()
    train_param = {"batch_size": 12, "replay_buffer_size": 1000, "image_shape": (1, 24, 24)}
    gridmap_batch = sample_batch(replay_buffer, episode_lens_prefix_sum, train_param, "cpu")
    assert gridmap_batch.shape == (12, 1, 24, 24)
    everything = sample_batch(replay_buffer, episode_lens_prefix_sum, {"sample_indices": range(18)}, "cpu")
    assert everything[:, 0, 0, 0].tolist() == [100 * number + t for number in range(3) for t in range(6)]


@covers(91)
def test_a_sampler_of_ones_own_over_the_index_and_the_decoder() -> None:
    replay_buffer, index = compressed_buffer()
    decompress_args = []
    for idx in range(18):
        episode = index.get_range_idx(idx)
        place = index.get_range_relative_idx(idx, episode)
        decompress_args.append(
            (replay_buffer["gridmap_inputs"][episode], (1, 24, 24), index.ar[episode], np.float32, place)
        )
    with concurrent.futures.ThreadPoolExecutor() as executor:
        batch = torch.stack(list(executor.map(decompress_single_gridmap, decompress_args)))
    assert torch.equal(batch, sample_batch(replay_buffer, index, {"sample_indices": range(18)}, "cpu"))


# ---- 2.4: by episode or by frame ----------------------------------------------------------------------------------------


@covers(93, 94)
@pytest.mark.parametrize("compress_epi", [True, False])
def test_compression_by_episode_or_by_frame(compress_epi: bool) -> None:
    episode_frames = np.stack([gridmap(t) for t in range(10)])
    compressed_episode = compress_image_seq(episode_frames, level=9)
    compressed_frames = [compress_image(frame, level=9) for frame in episode_frames]
    assert len(compressed_episode) < sum(
        map(len, compressed_frames)
    )  # smaller; a frame alone decodes a tenth of the bytes
    buffer = DictReplayBuffer(100, img_compressed=True, compress_epi=compress_epi)
    given = [compressed_episode] if compress_epi else compressed_frames
    buffer.add({"gridmap_inputs": given, "done": [False] * 10})
    assert sorted(buffer.sample(300)["gridmap_inputs"][:, 0, 0, 0].unique().tolist()) == list(range(10))


# ---- 2.5: the buffer ----------------------------------------------------------------------------------------------------


@covers(95, 96, 97, 98, 102, 103)
def test_the_buffer_of_eight_keys() -> None:
    buffer = DictReplayBuffer(1000, KEYS, device="cpu", img_compressed=False)
    assert DictReplayBuffer(1000, KEYS).img_compressed is False
    buffer.add(make_episode(10, 0))
    buffer.add(make_episode(20, 1))
    batch = buffer.sample(batch_size=64)
    assert set(batch) == set(KEYS)
    tag = batch["reward"]
    assert torch.equal(batch["node_inputs"][:, 0, 0], tag)
    assert torch.equal(batch["gridmap_inputs"][:, 0, 0, 0], tag)
    assert torch.equal(batch["next_node_inputs"][:, 0, 0], tag + 1)
    assert torch.equal(batch["next_gridmap_inputs"][:, 0, 0, 0], tag + 1)
    assert torch.equal(batch["action"], (tag % 100).long())
    assert buffer.episode_lens_prefix_sum.ar == [10, 20]
    assert buffer.episode_lens_prefix_sum.get_range_idx(15) == 1


@covers(99)
def test_graphs_may_change_their_size() -> None:
    buffer = DictReplayBuffer(100, ["node_inputs", "done"])
    for number, sizes in enumerate(([3, 5], [2, 9, 1], [17])):  # each larger than what the buffer has room for
        nodes = [torch.full((size, 4), 10.0 * number + t) for t, size in enumerate(sizes)]
        buffer.add({"node_inputs": nodes, "done": [False] * len(sizes)})
    assert [tuple(frame.shape) for frame in buffer.buffer["node_inputs"]] == [(n, 4) for n in (3, 5, 2, 9, 1, 17)]
    batch = buffer.sample(64)
    assert {int(n) for n in batch["node_inputs_mask"].sum(-1)} == {3, 5, 2, 9, 1, 17}
    assert not batch["node_inputs"][~batch["node_inputs_mask"]].any()


@covers(100)
def test_a_next_key_may_hold_something_else_than_the_next_frame() -> None:
    buffer = DictReplayBuffer(100, KEYS)
    buffer.add(make_episode(5, 0))
    other = make_episode(5, 1)
    other["next_node_inputs"] = [-nodes for nodes in other["next_node_inputs"]]
    buffer.add(other)
    batch = buffer.sample(100)
    want = torch.where(batch["reward"] < 100, batch["reward"] + 1, -batch["reward"] - 1)
    assert torch.equal(batch["next_node_inputs"][:, 0, 0], want)
    assert torch.equal(batch["next_gridmap_inputs"][:, 0, 0, 0], batch["reward"] + 1)


@covers(101, 104)
def test_the_oldest_frames_leave_and_the_buffer_lists_the_others() -> None:
    buffer = DictReplayBuffer(25, KEYS)
    assert list(buffer.buffer["reward"]) == []
    everything: list[float] = []
    for number, length in enumerate((10, 8, 12, 3, 40, 6)):
        episode = make_episode(length, number)
        buffer.add(episode)
        everything += episode["reward"]
        kept = everything[-25:]
        assert len(buffer) == len(kept) == len(buffer.buffer["done"]) == buffer.episode_lens_prefix_sum.curr_max
        assert [float(reward) for reward in buffer.buffer["reward"]] == kept
        assert [float(nodes[0, 0]) for nodes in buffer.buffer["next_node_inputs"]] == [value + 1 for value in kept]
        assert {float(reward) for reward in buffer.sample(400)["reward"]} == set(kept)
    assert float(buffer.buffer["reward"][-1]) == everything[-1]
    assert [float(value) for value in buffer.buffer["reward"][:2]] == kept[:2]


@covers(105)
def test_a_compressed_episode_comes_as_a_list_of_one() -> None:
    buffer = DictReplayBuffer(100, ["gridmap_inputs", "done"], img_compressed=True)
    for number in range(3):
        frames = [gridmap(100 * number + t) for t in range(6)]
        buffer.add({"gridmap_inputs": [compress_image_seq(frames)], "done": [False] * 5 + [True]})
    assert len(buffer.buffer["gridmap_inputs"]) == 3
    whole = decompress_image_seq(buffer.buffer["gridmap_inputs"][1], (1, 24, 24), 6, dtype=np.float32)
    assert whole[:, 0, 0, 0].tolist() == [100, 101, 102, 103, 104, 105]
    batch = sample_batch(buffer.buffer, buffer.episode_lens_prefix_sum, {"batch_size": 18}, "cpu")
    assert len(batch[:, 0, 0, 0].unique()) == 18
    plain = DictReplayBuffer(100, {"gridmap_inputs": fledge.KeySpec((1, 24, 24), torch.float32), "done": None})
    plain.add({"gridmap_inputs": [lz4.frame.compress(np.stack(frames).tobytes())], "done": [False] * 6})
    assert plain.sample(10)["gridmap_inputs"].shape == (10, 1, 24, 24)
    with pytest.raises(InputError, match="KeySpec"):
        DictReplayBuffer(9).add({"gridmap_inputs": [lz4.frame.compress(b"abcd" * 6)], "done": [0] * 6})


@covers(106)
def test_text_stands_beside_images_and_graphs() -> None:
    buffer = DictReplayBuffer(100)
    buffer.add({"instruction": "to the door", "gridmap_inputs": [gridmap(t) for t in range(3)], "done": [0, 0, 1]})
    assert fledge.read_text(buffer.sample(2)["instruction"]) == ["to the door"] * 2


# ---- 3: the synchronous collector ---------------------------------------------------------------------------------------


@covers(107, 108, 123, 125, 126)
def test_a_rollout_has_envs_first_and_the_documented_names() -> None:
    collector = make_collector()
    data = collector.rollout()
    assert data.batch_size == (N, T)
    assert data["observation"]["lidar"].shape == (N, T, 1, 36, 4)
    assert data["observation"]["state"].shape == (N, T, 8)
    assert data["agents", "observation", "lidar"].data_ptr() == data["observation"]["lidar"].data_ptr()
    assert data["done"].shape == (N, T, 1)
    assert collector._fps > 0
    assert collector.env.observation_spec["lidar"].shape == (1, 36, 4)


@covers(109, 110, 113, 114)
def test_the_iterator_counts_batches_and_frames() -> None:
    training_frame_num, num_envs = T, N
    collector = make_collector(batches=3)
    assert collector.frames_per_batch == num_envs * training_frame_num
    numbers = []
    for data in collector.iterator():
        numbers.append((collector._iter, collector._frames))
        assert data.numel() == N * T
    assert numbers == [(0, N * T), (1, 2 * N * T), (2, 3 * N * T)]
    assert collector.total_frames == collector._frames


@covers(111, 112)
def test_trajectories_are_split_and_post_processed() -> None:
    data = make_collector(split_trajs=True).collect()
    assert int(data["mask"].sum()) == N * T
    marked = make_collector(postproc=lambda data: data.set("seen", data["reward"] + 1)).collect()
    assert torch.equal(marked["seen"], marked["reward"] + 1)


@covers(115, 117)
def test_the_same_object_is_updated_in_place() -> None:
    collector = make_collector(return_same_td=True)
    for i, data in enumerate(collector):
        if i == 0:
            data0, kept = data, data.clone()
            before = data["reward"].clone()
        elif i == 1:
            data1 = data
        else:
            break
    assert data0 is data1
    assert not torch.equal(data0["reward"], before)
    assert torch.equal(kept["reward"], before)


@covers(116)
def test_other_objects_stay_as_they_were() -> None:
    collector = make_collector(batches=2, return_same_td=False)
    data0, data1 = list(collector)
    assert data0 is not data1
    assert not torch.equal(data0["reward"], data1["reward"])


@covers(119, 120)
def test_exploration_is_off_inside_a_block() -> None:
    collector = make_collector(exploration_type=ExplorationType.RANDOM, return_same_td=True)

    def explored(data: Any) -> bool:
        obs = {name: value.flatten(0, 1) for name, value in data["obs"].items()}
        return not torch.allclose(collector.policy.act(obs), data["action"].flatten(0, 1), atol=1e-5)

    assert explored(collector.collect())
    with set_exploration_type(ExplorationType.MEAN):
        assert not explored(collector.collect())
    assert explored(collector.collect())
    torchrl = pytest.importorskip("torchrl.envs.utils")
    with torchrl.set_exploration_type(torchrl.ExplorationType.MEAN):
        assert not explored(collector.collect())
        with set_exploration_type(ExplorationType.RANDOM):
            assert explored(collector.collect())
    assert explored(collector.collect())


@covers(122)
def test_the_env_has_the_members_of_isaacs() -> None:
    env = NavigationEnv(make_env().cfg, seed=3)
    first = env._compute_state_and_obs()
    assert first["state"].shape == (N, 8)
    assert env.lidar_scan.shape == (N, 1, 36, 4)
    env.step(torch.ones(N, 3))
    env_ids = torch.tensor([1, 4])
    env.drone.pos[env_ids] = env.init_pos[env_ids]
    env.drone.vel[env_ids] = 0.0
    moved = env._compute_state_and_obs()
    assert torch.equal(env.drone.pos[env_ids], env.init_pos[env_ids])
    assert not moved["state"][1].equal(moved["state"][2])
    episodes = env.state["episode"].clone()
    env._reset_idx(env_ids)
    assert (env.state["episode"] - episodes).tolist() == [0, 1, 0, 0, 1, 0, 0, 0]


@covers(121, 129, 130)
def test_1024_envs_at_once() -> None:
    env = make_env(1024)
    collector = SyncDataCollector(env, make_policy(env), frames_per_batch=2048)
    assert collector.rollout().batch_size == (1024, 2)
    collector.shutdown()


# ---- 4.1: reuse ---------------------------------------------------------------------------------------------------------


@covers(128)
def test_the_loop_that_samples_an_episode_many_times() -> None:
    buffer = DictReplayBuffer(max_size=1000000)
    trained = []
    for episode in range(3):
        episode_data = make_episode(10, episode)
        buffer.add(episode_data)
        for _ in range(10):
            batch = buffer.sample(batch_size=256)
            trained.append(len(batch["reward"]))
    assert trained == [256] * 30


# ---- 6, 9: scripts ------------------------------------------------------------------------------------------------------


@covers(131)
def test_the_training_loop_that_saves(here: Path) -> None:
    collector = make_collector(batches=2)
    policy = collector.policy
    cfg = type("Config", (), {"save_interval": 1})
    before = weights(policy)
    checkpoint_saver = AsyncCheckpointSaver(max_queue_size=3)
    for i, data in enumerate(collector):
        policy.train(data)

        if i % cfg.save_interval == 0:
            checkpoint_saver.save_async(
                checkpoint={"model": policy.state_dict()},
                path=f"ckpt_{i}.pt",
                compress=True,
            )
    checkpoint_saver.shutdown()
    assert not torch.equal(weights(policy), before)
    loaded = load_checkpoint("ckpt_1.pt")["model"]
    assert all(torch.equal(loaded[name], value) for name, value in policy.state_dict().items())


def test_train_with_a_bool_or_nothing_sets_the_mode() -> None:
    policy = make_policy(make_env())
    assert policy.train() is policy
    assert policy.training
    assert policy.train(False) is policy
    assert not policy.training
    assert policy.train(True).network.training
    assert not policy.eval().network.training
    with pytest.raises(InputError, match="TensorDict"):
        policy.train({"reward": 1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="lacks"):
        policy.train(TensorDict({"reward": torch.zeros(3, 2)}, [3, 2]))


def test_a_native_rollout_and_its_view_with_envs_first_teach_the_same() -> None:
    env = make_env()
    found = []
    for kind in (fledge.SyncDataCollector, SyncDataCollector):
        env = make_env()
        policy = make_policy(env)
        torch.manual_seed(1)
        losses = policy.train(kind(env, policy, N * T).rollout())
        found.append((weights(policy), losses))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@covers(132, 133, 134, 148)
def test_the_pipelined_script(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env()
    policy = make_policy(env)
    before = weights(policy)

    base_collector = SyncDataCollector(
        env,
        policy,
        frames_per_batch=N * T,
        total_frames=3 * N * T,
        return_same_td=False,
    )
    pipelined_collector = PipelinedDataCollector(
        base_collector,
        device="cuda:0",
        prefetch_count=2,
    )
    seen = []
    for data in pipelined_collector:
        policy.train(data)
        seen.append(data.batch_size)
    pipelined_collector.shutdown()

    assert seen == [(N, T)] * 3
    assert not torch.equal(weights(policy), before)
    if not torch.cuda.is_available():
        assert "device=cuda:0, but PyTorch sees no CUDA device here: using the CPU." in capsys.readouterr().out


@covers(135)
def test_a_base_that_returns_the_same_object_is_refused_or_safe() -> None:
    class Foreign:
        return_same_td = True

        def __iter__(self) -> Iterator[TensorDict]:
            yield TensorDict({"reward": torch.zeros(N, T)}, [N, T])

    with pytest.raises(ConfigError, match="return_same_td=False"):
        PipelinedDataCollector(Foreign(), device="cpu", prefetch_count=2)
    with PipelinedDataCollector(make_collector(return_same_td=True), prefetch_count=2) as collector:
        first = next(iter(collector))
        kept = first["reward"].clone()
        collector.wait()  # the next two are ready
        assert torch.equal(first["reward"], kept)


@covers(137)
def test_the_queue_the_flag_and_the_thread_of_the_pipelined_collector() -> None:
    collector = PipelinedDataCollector(make_collector(), device="cpu", prefetch_count=2)
    assert collector.data_queue.maxsize == 2
    assert collector.data_queue.empty()
    assert collector.collector_thread is None
    collector._collect_worker()
    assert collector.collector_thread is not None
    assert collector.collector_thread.is_alive()
    collector.wait()
    assert collector.data_queue.full()
    seen = 0
    for _data in collector:
        seen += 1
        collector.stop_flag = seen == 2
    assert seen == 2
    collector.shutdown()
    assert collector.stop_flag
    assert not collector.collector_thread.is_alive()


@covers(139, 140)
@pytest.mark.parametrize("plain", [True, False])
def test_lidar_is_compressed_in_place(plain: bool) -> None:
    transform = CompressedLidarTransform(compression_level=1)
    lidar = torch.rand(N, 1, 36, 4)
    entries = {"state": torch.zeros(N, 8), "lidar": lidar}
    tensordict: Any = {"observation": entries} if plain else TensorDict({"observation": TensorDict(entries, [N])}, [N])
    assert transform(tensordict) is tensordict
    assert "lidar" not in tensordict["observation"].keys()  # noqa: SIM118
    compressed = tensordict["observation"]["lidar_compressed"]
    lidar_bytes = lz4.frame.decompress(compressed)
    assert torch.equal(torch.frombuffer(bytearray(lidar_bytes), dtype=torch.float32).reshape(-1, 1, 36, 4), lidar)


@covers(141)
def test_the_policy_decodes_what_it_is_given() -> None:
    env = make_env()
    policy = make_policy(env, PPOWithCompression)
    observation = dict(env.reset()["obs"].items())
    tensordict = CompressedLidarTransform(compression_level=1)({"observation": dict(observation)})
    raw = lz4.frame.compress(observation["lidar"].numpy().tobytes())  # by a program that says no shape
    with set_exploration_type(ExplorationType.MEAN):
        assert torch.equal(policy.forward(tensordict)["action"], policy.act(observation))
        named = {"agents": {"observation": {**tensordict["observation"], "lidar_compressed": raw}}}
        assert torch.equal(policy(named)["agents"]["action"], policy.act(observation))


@covers(147)
def test_the_checkpoint_script(here: Path) -> None:
    collector = make_collector(batches=2)
    policy: PPO = collector.policy

    saver = AsyncCheckpointSaver(max_queue_size=3)
    monitor = PerformanceMonitor()

    for i, data in enumerate(collector):
        with monitor.timer("training"):
            loss = policy.train(data)

        if i % 1000 == 0:
            saver.save_async(
                checkpoint={"model": policy.state_dict(), "iter": i},
                path=f"ckpt_{i}.pt",
                compress=True,
            )

    saver.shutdown()
    checkpoint = load_checkpoint("ckpt_0.pt")
    later = weights(policy)
    policy.load_state_dict(checkpoint["model"])
    assert checkpoint["iter"] == 0
    assert loss["policy_loss"] != 0
    assert not torch.equal(weights(policy), later)


@covers(149, 150)
def test_the_monitoring_script(capsys: pytest.CaptureFixture[str]) -> None:
    from fledge import evaluate

    collector = make_collector(batches=2)
    env, policy = make_env(max_episode_steps=20), collector.policy
    monitor = PerformanceMonitor()

    for i, data in enumerate(collector):
        with monitor.timer("data_collection"):
            pass

        with monitor.timer("training"):
            loss = policy.train(data)

        if i % 100 == 0:
            with monitor.timer("evaluation"):
                eval_reward = evaluate(env, policy)

        if i % 100 == 0:
            print(monitor.get_summary(window=100))

    assert loss
    assert eval_reward
    said = capsys.readouterr().out
    assert all(name in said for name in ("data_collection", "training", "evaluation"))
