"""The TorchRL transform: every bit comes back, of all envs or of some, and what it cannot do is refused."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.storage.format import codecs
from fledge.tasks.navigation.env import NavigationEnv
from tests.collect.test_compressed import CFG, N, T, assert_same, sync, torchrl_collector


def test_the_transform_and_its_inverse_restore_every_bit() -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs.transforms import Compose

    from fledge.collect import CompressTransform

    transform = Compose(CompressTransform(4))
    batches = list(torchrl_collector(postproc=transform))
    expected = list(torchrl_collector())
    for batch, whole in zip(batches, expected, strict=True):
        assert "lidar" not in batch.keys()  # noqa: SIM118 - a TensorDict is no dict
        assert batch["lidar_packed"].nbytes < whole["lidar"].nbytes / 2
        assert_same(transform.inv(batch), whole)
        assert_same(CompressTransform().inv(batch[[7, 2]]), whole[[7, 2]])


def test_the_transform_works_on_our_rollouts_too() -> None:
    pytest.importorskip("torchrl")
    from fledge.collect import CompressTransform

    transform = CompressTransform()
    collector = sync()
    rollout = collector.rollout()
    packed = transform(rollout)
    assert packed.shape == (T, N)
    assert_same(transform.inv(packed[:, 3:9]), rollout[:, 3:9])
    assert ("obs", "lidar") in rollout.keys(include_nested=True)  # what was given stays
    with pytest.raises((InputError, FormatError), match="index the batch by env, not by step"):
        transform.inv(packed[:5])
    collector.shutdown()


def test_the_transform_refuses_an_envs_single_steps() -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs import TransformedEnv

    from fledge.collect import CompressTransform
    from fledge.envs.adapters.torchrl import TorchRLEnv

    env = TransformedEnv(TorchRLEnv(NavigationEnv(CFG, seed=2, num_threads=1)), CompressTransform())
    with pytest.raises(ConfigError, match="inside an env"):
        env.reset()
    env.close()


def test_bytes_that_are_none_of_ours_are_refused() -> None:
    pytest.importorskip("torchrl")
    from fledge.collect import CompressTransform

    names = [None, "time"]
    for junk in (torch.zeros(2, 4, 1), torch.full((2, 4, 9), 255), torch.zeros(2, 4, 8)):
        batch = TensorDict({"lidar_packed": junk.to(torch.uint8)}, [2, 4], names=names)
        with pytest.raises((FormatError, InputError)):
            CompressTransform().inv(batch)
    assert len(codecs.CODEC_NAMES) < 256


def test_the_transform_refuses_what_it_cannot_compress_and_leaves_other_entries_alone() -> None:
    pytest.importorskip("torchrl")
    from fledge.collect import CompressTransform

    batch = next(iter(torchrl_collector()))
    with pytest.raises(ConfigError, match="nope"):
        CompressTransform(keys=["nope"])(batch)
    with pytest.raises(InputError, match="rollout is empty"):
        CompressTransform()(batch[:, :0])
    batch["my_packed"] = torch.arange(float(N * T)).reshape(N, T)
    transform = CompressTransform()
    again = transform.inv(transform(batch))
    assert torch.equal(again["my_packed"], batch["my_packed"])
    assert torch.equal(again["lidar"], batch["lidar"])
