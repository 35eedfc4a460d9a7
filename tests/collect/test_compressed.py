"""Compressed batches: every bit comes back, of all envs or of some, over our collectors and TorchRL's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from fledge.collect import CompressedBatch, CompressedDataCollector, PipelinedDataCollector, SyncDataCollector
from fledge.collect.packed import PackedTensor
from fledge.core.errors import ConfigError, InputError
from fledge.learn.ppo import PPO, PPOConfig
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy

N, T = 40, 16
CFG = NavigationConfig(num_envs=N, num_maps=2, decimation=5, static_obstacles=100, moving_obstacles=16)
CFG.max_episode_steps = 100
LIDAR: list[Any] = [("obs", "lidar"), "input"]


def sync(**options: Any) -> SyncDataCollector:
    torch.manual_seed(5)
    return SyncDataCollector(NavigationEnv(CFG, seed=2, num_threads=1), FeaturePolicy(hidden=(16,)), N * T, **options)


def assert_same(ours: TensorDictBase, theirs: TensorDictBase) -> None:
    keys = set(theirs.keys(include_nested=True, leaves_only=True))
    assert set(ours.keys(include_nested=True, leaves_only=True)) == keys
    assert ours.batch_size == theirs.batch_size
    for key in keys:
        assert ours[key].dtype == theirs[key].dtype
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("level", [0, 1, 4, 9])
def test_a_batch_decodes_to_what_was_collected(level: int) -> None:
    collector, plain = CompressedDataCollector(sync(), level), sync()
    for _ in range(2):
        torch.manual_seed(7)
        batch = collector.rollout()
        torch.manual_seed(7)
        assert_same(batch.decode(), plain.rollout())
        assert sorted(map(str, batch.packed)) == sorted(map(str, LIDAR))
    assert batch.ratio > 3 if level else batch.ratio == 1
    collector.shutdown()
    plain.shutdown()


@pytest.mark.parametrize(
    "envs",
    [
        [3, 17, 39],
        [39, 3, 3, 17],
        slice(10, 30),
        slice(0, 40),
        torch.tensor([0]),
        torch.arange(N) % 7 == 0,
        [],
        [-1],
        [True, False] * 20,
    ],
    ids=str,
)
def test_some_envs_decode_alone_in_the_order_asked_for(envs: Any) -> None:
    collector = CompressedDataCollector(sync())
    batch = collector.rollout()
    whole = batch.decode()
    kind = torch.bool if True in (envs if isinstance(envs, list) and len(envs) == N else []) else torch.long
    index = envs if isinstance(envs, slice | torch.Tensor) else torch.tensor(envs, dtype=kind)
    assert_same(batch.decode(envs), whole[:, index])
    collector.shutdown()


def test_only_the_blocks_of_the_chosen_envs_are_decoded_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedTensor.pack(torch.zeros(T, N, 9), group=8)
    decoded: list[int] = []
    right = PackedTensor._decode

    def note(self: PackedTensor, number: int) -> torch.Tensor:
        decoded.append(number)
        return right(self, number)

    monkeypatch.setattr(PackedTensor, "_decode", note)
    packed.unpack([1, 33, 2, 34])
    assert decoded == [0, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(5, 7), (1, 33, 2), (64, 3, 2, 2), (6, 1, 0)])
def test_every_type_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    if dtype.is_floating_point and tensor.numel():
        tensor.view(-1)[0], tensor.view(-1)[-1] = float("nan"), -0.0
    for time_dim in (0, 1):
        back = PackedTensor.pack(tensor, time_dim).unpack()
        assert back.dtype == dtype
        assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_batches_stay_valid_over_a_base_that_updates_one_object_in_place() -> None:
    collector, plain = CompressedDataCollector(sync(total_frames=3 * N * T)), sync(total_frames=3 * N * T)
    torch.manual_seed(7)
    batches = list(collector)
    torch.manual_seed(7)
    expected = [rollout.clone() for rollout in plain]
    assert collector._frames == 3 * N * T
    for batch, whole in zip(batches, expected, strict=True):
        assert_same(batch.decode(), whole)


def test_a_learner_reads_a_batch_as_it_reads_a_rollout() -> None:
    results = []
    for compressed in (True, False):
        collector: Any = CompressedDataCollector(sync()) if compressed else sync()
        policy = (collector.base_collector if compressed else collector).policy
        learner = PPO(policy, PPOConfig(rollout_steps=T, epochs=1, minibatch=160))
        torch.manual_seed(1)
        learner.update(collector.rollout())
        results.append(learner.flat.values.detach().clone())
        collector.shutdown()
    assert torch.equal(*results)


def test_entries_can_be_chosen_and_left_out() -> None:
    collector = CompressedDataCollector(sync(), keys=[("obs", "lidar"), "value"])
    batch = collector.rollout()
    part = batch.decode(keys=["value"])
    assert "lidar" not in part["obs"]
    assert torch.equal(part["value"], batch["value"])
    assert {("obs", "lidar"), "value", "input"} <= set(batch.keys())
    with pytest.raises(InputError, match="not compressed"):
        batch.decode(keys=["reward"])
    with pytest.raises(InputError, match="slice"):
        batch["obs", "lidar"], batch.packed["value"].unpack(torch.tensor(3))
    collector.shutdown()


def test_state_dict_continues_bit_for_bit() -> None:
    collector = CompressedDataCollector(PipelinedDataCollector(sync()))
    collector.rollout()
    state = collector.state_dict()
    expected = [collector.rollout().decode() for _ in range(2)]
    other = CompressedDataCollector(PipelinedDataCollector(sync()))
    other.load_state_dict(state)
    for whole in expected:
        assert_same(other.rollout().decode(), whole)
    assert other.latest.decode().shape == (T, N)
    assert (other._frames, other._fps > 0, other.simulate_s > 0) == (3 * N * T, True, True)
    collector.shutdown()
    other.shutdown()


def test_misuse_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match="compression_level is 10"):
        CompressedDataCollector(sync(), 10)
    with pytest.raises(ConfigError, match="already"):
        CompressedDataCollector(CompressedDataCollector(sync()))
    with pytest.raises(ConfigError, match="split_trajs"):
        CompressedDataCollector(sync(split_trajs=True))
    with pytest.raises(ConfigError, match="sonar"):
        CompressedDataCollector(sync(), keys=["sonar"]).rollout()
    with pytest.raises(ConfigError, match="wraps another collector"):
        PipelinedDataCollector(CompressedDataCollector(sync()))
    with pytest.raises(InputError, match="batch has size"):
        CompressedDataCollector([TensorDict({"lidar": torch.zeros(3)}, [3])]).rollout()


def test_the_modules_import_without_torchrl() -> None:
    code = (
        "import sys; sys.modules['torchrl'] = None; import fledge.collect.compressed, fledge.collect.pipelined, "
        "fledge.collect.halves; from fledge.collect import CompressedDataCollector"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- TorchRL -----------------------------------------------------------------------------------------------------------


def torchrl_collector(**options: Any) -> Any:
    pytest.importorskip("torchrl")
    from torchrl.collectors import Collector

    from fledge.envs.adapters.torchrl import TorchRLEnv

    env = TorchRLEnv(NavigationEnv(CFG, seed=2, num_threads=1))
    torch.manual_seed(3)
    return Collector(env, None, frames_per_batch=N * T, total_frames=2 * N * T, **options)


@pytest.mark.parametrize("same", [True, False])
def test_torchrls_batches_keep_their_axes_and_decode_bit_for_bit(same: bool) -> None:
    batches: list[CompressedBatch] = list(CompressedDataCollector(torchrl_collector(return_same_td=same)))
    expected = [batch.clone() for batch in torchrl_collector()]
    for batch, whole in zip(batches, expected, strict=True):
        assert set(batch.packed) == {"lidar", ("next", "lidar")}
        assert batch.time_dim == 1
        assert_same(batch.decode(), whole)
        assert_same(batch.decode([5, 1]), whole[[5, 1]])
