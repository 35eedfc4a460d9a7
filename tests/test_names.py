"""Names that users already write, line by line: each is typed as they type it, imported from `fledge`, and must do what it
says. The order is that of the list they come from: checkpoints and monitoring, replay, collectors and learners, air
combat."""

from __future__ import annotations

import io
import logging
import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

import fledge
from fledge.agents.actor_critic import MLPActorCritic
from fledge.compat.tensor_env import TensorEnv
from fledge.core.errors import ConfigError, FormatError, InputError, NumericsError, StorageError
from fledge.core.specs import TensorSpec

N, T = 6, 5


@dataclass
class WorldConfig:
    num_envs: int = N


class World(fledge.TorchEnv):
    """LiDAR that mostly sees nothing, and a state that creeps; an episode takes 7 decisions, some end earlier."""

    outcomes = {0: "running", 1: "success", 2: "timeout"}
    max_steps = 7

    observation_spec = {  # type: ignore[assignment]
        "lidar": TensorSpec((1, 36, 4), torch.float32, 0.0, 4.0),
        "state": TensorSpec((8,), torch.float32, -9.0, 9.0),
    }
    action_spec = TensorSpec((3,), torch.float32, -1.0, 1.0)  # type: ignore[assignment]

    def begin(self, mask: Tensor) -> None:
        self.put("at", mask, self.uniform(8))

    def observe(self) -> dict[str, Tensor]:
        near = self.state["at"].sum(-1)[:, None, None, None] + torch.arange(36.0)[:, None] / 36 + torch.zeros(1, 36, 4)
        return {"lidar": near.remainder(9.0).clamp(max=4.0), "state": self.state["at"]}

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.state["at"] = self.state["at"] + 0.01 + 0.001 * action.sum(-1, keepdim=True)
        success = self.uniform() < 0.05
        return -action.square().sum(-1), success.to(torch.uint8)


def make_env(num_envs: int = N) -> World:
    return World(WorldConfig(num_envs), seed=3)


def make_policy() -> MLPActorCritic:
    torch.manual_seed(0)
    return MLPActorCritic(World.observation_spec, World.action_spec, hidden=(8,))  # type: ignore[arg-type]


def make_collector(**options: Any) -> Any:
    return fledge.SyncDataCollector(make_env(), make_policy(), frames_per_batch=N * T, **options)


def make_rollout() -> TensorDict:
    collector = make_collector()
    collector.rollout()
    return collector.rollout().clone()


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(20, 30)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    return model, optimizer


def assert_same(ours: Any, theirs: Any) -> None:
    keys = set(theirs.keys(include_nested=True, leaves_only=True))
    assert set(ours.keys(include_nested=True, leaves_only=True)) == keys
    for key in keys:
        assert ours[key].dtype == theirs[key].dtype, key
        assert torch.equal(ours[key].cpu(), theirs[key].cpu()), key


# ---- checkpoints and monitoring ----------------------------------------------------------------------------------------


def test_the_documented_saver_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = make_model()
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 100}
    want = model.weight.detach().clone()
    saver = fledge.AsyncCheckpointSaver(max_queue_size=3, verbose=True)
    saver.save_async(checkpoint, str(tmp_path / "checkpoint_100.pt"), compress=True)
    with torch.no_grad():
        model.weight.zero_()
    assert saver.shutdown(timeout=60)
    assert torch.equal(fledge.load_checkpoint(tmp_path / "checkpoint_100.pt")["model"]["weight"], want)
    assert "checkpoint_100.pt" in capsys.readouterr().out
    assert saver.get_stats()["saves"] == 1


def test_without_attach_everything_is_copied_before_the_call_returns(tmp_path: Path) -> None:
    model, optimizer = make_model()
    with fledge.AsyncCheckpointSaver(max_queue_size=3) as saver:
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        moments = {k: v["exp_avg"].clone() for k, v in state["optimizer"]["state"].items()}
        weights = model.weight.detach().clone()
        assert saver.save_async(state, tmp_path / "a.pt").staged
        optimizer.step()
        model.weight.data.zero_()
    loaded = fledge.load_checkpoint(tmp_path / "a.pt")
    assert all(torch.equal(loaded["optimizer"]["state"][k]["exp_avg"], moments[k]) for k in moments)
    assert torch.equal(loaded["model"]["weight"], weights)


def test_memory_for_the_first_save_is_made_ready_after_the_first_step() -> None:
    model = nn.Linear(1000, 600)
    optimizer = torch.optim.Adam(model.parameters())
    with fledge.AsyncCheckpointSaver() as saver:
        model(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
        optimizer.step()  # by now its state is there, and tells how much it will be
        give_up = time.monotonic() + 30
        while saver.get_stats()["buffer_bytes"] < 3 * 4 * 600_600:
            assert time.monotonic() < give_up
            time.sleep(0.001)


@pytest.mark.parametrize("how", [{"compress": False}, {"codec": "pt"}], ids=str)
def test_what_is_not_compressed_is_a_file_that_torch_load_reads(tmp_path: Path, how: dict[str, Any]) -> None:
    model, optimizer = make_model()
    with fledge.AsyncCheckpointSaver(max_queue_size=3) as saver:
        saver.save_async({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pt", **how)
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    assert torch.equal(state["model"]["weight"], model.weight)
    assert os.listdir(tmp_path) == ["x.pt"]


def test_codec_pt_of_the_saver_leaves_files_that_torch_load_reads(tmp_path: Path) -> None:
    with fledge.AsyncCheckpointSaver(codec="pt") as saver:
        saver.save_async({"a": torch.ones(3)}, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True)["a"], torch.ones(3))


@pytest.mark.parametrize("level", [0, 1, 9, 12, 16])
def test_codec_lz4_writes_name_pt_lz4_at_any_level_of_lz4(tmp_path: Path, level: int) -> None:
    with fledge.AsyncCheckpointSaver(codec="lz4", compression_level=level) as saver:
        handle = saver.save_async({"a": torch.zeros(1000)}, tmp_path / "name.pt")
    assert handle.path == tmp_path / "name.pt.lz4"
    plain = lz4.frame.decompress((tmp_path / "name.pt.lz4").read_bytes())
    assert torch.equal(torch.load(io.BytesIO(plain), weights_only=True)["a"], torch.zeros(1000))
    assert torch.equal(fledge.load_checkpoint(tmp_path / "name.pt")["a"], torch.zeros(1000))


def test_a_level_that_lz4_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"compression_level is 17.*0.*16"):
        fledge.AsyncCheckpointSaver(codec="lz4", compression_level=17)


def test_what_a_plain_file_cannot_keep_is_refused(tmp_path: Path) -> None:
    with fledge.AsyncCheckpointSaver() as saver, pytest.raises(ConfigError, match="metadata"):
        saver.save_async({"a": torch.ones(1)}, tmp_path / "x.pt", compress=False, metadata={"score": 1})


def test_statistics_print_in_three_lines_under_a_title(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fledge.AsyncCheckpointSaver(max_queue_size=3, compression_level=9) as saver:
        saver.save_async({"a": torch.zeros(100_000)}, tmp_path / "x.pt")
        saver.drain()
        stats = saver.get_stats()
        title, *lines = saver.get_summary().splitlines()
    assert title == "[Checkpoint Stats]"
    assert len(lines) == 3
    assert stats["compression_ratio"] == pytest.approx(stats["bytes_in"] / stats["bytes_out"])
    assert f"{stats['compression_ratio']:.2f}x" in lines[1]
    assert f"{stats['ratio']:.0%}" in lines[1]


def test_the_ratio_is_bytes_in_over_bytes_out() -> None:
    from fledge.storage.saving.summary import summary_of

    stats = {"saves": 3, "failures": 0, "dropped": 0, "skipped": 0, "bytes_in": 285, "bytes_out": 100}
    stats |= {"queue_size": 1, "waits": 0, "stall_p50_ms": 0.1, "stall_p99_ms": 0.2}
    assert "2.85x" in summary_of(stats, 3)
    assert "35%" in summary_of(stats, 3)


def test_a_verbose_saver_prints_its_statistics_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fledge.AsyncCheckpointSaver(verbose=True) as saver:
        saver.save_async({"a": torch.zeros(100_000)}, tmp_path / "x.pt")
    assert "[Checkpoint Stats]" in capsys.readouterr().out


def test_the_warning_of_a_full_queue_names_the_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    with fledge.AsyncCheckpointSaver(max_queue_size=1, full_queue="skip") as saver:
        for k in range(3):
            saver.submit({"a": torch.ones(1)}, tmp_path / str(k), lambda *_: go.wait(30) and None)  # type: ignore
            while k == 0 and saver.get_stats()["queue_size"]:
                pass
        go.set()
    assert "async_checkpoint_queue_size" in caplog.text


def test_a_waiting_caller_is_told_the_setting_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    with fledge.AsyncCheckpointSaver(max_queue_size=1) as saver:
        for k in range(3):
            threading.Timer(0.05, go.set).start()
            saver.submit({"a": torch.ones(1)}, tmp_path / str(k), lambda *_: go.wait(30) and None)  # type: ignore
    assert "async_checkpoint_queue_size" in caplog.text


def test_loggers_get_the_savers_statistics(tmp_path: Path) -> None:
    from fledge.training.log_row import checkpoint_metrics

    with fledge.AsyncCheckpointSaver() as saver:
        assert "checkpoint/saves" in checkpoint_metrics(saver.get_stats())  # nothing saved yet: no ratio, no age
        saver.save_async({"a": torch.zeros(1000)}, tmp_path / "x.pt")
        saver.drain()
        metrics = checkpoint_metrics(saver.get_stats())
    assert {
        "checkpoint/saves",
        "checkpoint/compression_ratio",
        "checkpoint/queue_size",
        "checkpoint/stall_p99_ms",
    } <= set(metrics)
    assert metrics["checkpoint/saves"] == 1
    assert all(isinstance(value, float | int) for value in metrics.values())


def test_the_summary_of_the_monitor_has_a_title_and_columns() -> None:
    monitor = fledge.PerformanceMonitor()
    for seconds in (0.010, 0.020):
        monitor.record("data_collection", seconds)
    monitor.record("policy_training", 0.1234)
    title, *lines = monitor.get_summary(window=100).splitlines()
    assert title == "=== Performance Summary ==="
    assert len(lines) == 2
    for line, mean, std in zip(lines, ("15.00", "123.40"), ("5.00", "0.00"), strict=True):
        assert re.search(rf"{mean} ms \(± +{std} ms\)", line)
    assert lines[0].index("ms") == lines[1].index("ms")
    assert lines[0].index("±") == lines[1].index("±")


@pytest.mark.parametrize("name", ["checkpoint_100.pt", "checkpoint_100", "checkpoint_000000100.fledge"])
@pytest.mark.parametrize("below", ["checkpoints", ""])
def test_a_runs_checkpoint_is_found_by_its_short_name_and_has_the_documented_entries(
    tmp_path: Path, name: str, below: str
) -> None:
    model, optimizer = make_model()
    state = {"model": model.state_dict(), "learner": {"optimizer": optimizer.state_dict()}, "task": "navigation"}
    history = fledge.CheckpointHistory(tmp_path / "checkpoints")
    for iteration in (99, 100):
        history.save({**state, "iteration": iteration, "frames": 64 * iteration}, step=iteration)
    loaded = fledge.load_checkpoint(str(tmp_path / below / name))
    assert loaded["iteration"] == 100
    assert loaded["env_frames"] == loaded["frames"] == 6400
    assert torch.equal(loaded["model_state_dict"]["weight"], model.weight)
    model.load_state_dict(loaded["model_state_dict"])
    part = fledge.load_checkpoint(str(tmp_path / below / name), keys=["model_state_dict", "env_frames"])
    assert set(part) == {"model_state_dict", "env_frames"}


def test_what_is_no_runs_checkpoint_is_loaded_as_it_is(tmp_path: Path) -> None:
    fledge.save_checkpoint({"model": {"a": torch.ones(1)}}, tmp_path / "x.pt")
    assert set(fledge.load_checkpoint(tmp_path / "x.pt")) == {"model"}
    with pytest.raises(StorageError, match="no checkpoint"):
        fledge.load_checkpoint(tmp_path / "checkpoint_100.pt")


def test_print_model_info(capsys: pytest.CaptureFixture[str]) -> None:
    fledge.print_model_info(nn.Linear(3, 4))
    assert "16 parameters" in capsys.readouterr().out


def test_get_model_size() -> None:
    assert fledge.get_model_size(nn.Linear(3, 4))["parameters"] == 16


def test_format_checkpoint_name() -> None:
    assert fledge.format_checkpoint_name(100) == "checkpoint_100.pt"
    assert fledge.format_checkpoint_name("final") == "checkpoint_final.pt"


# ---- replay ------------------------------------------------------------------------------------------------------------


def test_prefix_sum_by_the_documents_example() -> None:
    sums = fledge.PrefixSum(max_len=3)
    for length in (10, 20, 30):
        sums.add(length)
    assert sums.get_range_idx(25) == 1
    place = sums.get_range_relative_idx(25, 1)
    assert place == 15
    assert type(place) is int
    assert sums.get_range_relative_idx(25) == (1, 15)


def test_prefix_sum_takes_arrays_and_refuses_a_range_that_does_not_hold_the_number() -> None:
    sums = fledge.PrefixSum(3)
    for length in (10, 20, 30):
        sums.add(length)
    places = sums.get_range_relative_idx(np.array([25, 30]), np.array([1, 2]))
    assert places.tolist() == [15, 0]
    with pytest.raises(InputError, match="25"):
        sums.get_range_relative_idx(25, 2)


def test_prefix_sum_shows_its_lengths_and_sums() -> None:
    sums = fledge.PrefixSum(2)
    for length in (10, 20, 30):
        sums.add(length)
    assert list(sums.ar) == [20, 30]
    assert list(sums.prefix_sum) == [0, 20, 50]


IMAGE = (np.arange(24 * 24).reshape(24, 24) // 40 % 2).astype(np.uint8)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_images_compress_at_a_level(level: int) -> None:
    data = fledge.compress_image(IMAGE, level=level)
    assert np.array_equal(fledge.decompress_image(data), IMAGE)
    assert (len(data) >= IMAGE.nbytes) == (level == 0)


def test_an_image_compresses_harder_at_the_documented_default() -> None:
    assert fledge.compress_image(IMAGE) == fledge.compress_image(IMAGE, level=9)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_sequence_of_images_comes_back_by_shape_and_number(dtype: Any) -> None:
    images = np.stack([np.roll(IMAGE, k) for k in range(4)]).astype(dtype)
    data = fledge.compress_image_seq(images, level=9)
    back = fledge.decompress_image_seq(data, IMAGE.shape, 4, dtype=dtype)
    assert back.dtype == dtype
    assert np.array_equal(back, images)
    with pytest.raises(InputError, match="shape"):
        fledge.decompress_image_seq(data, (5, 5), 4, dtype=dtype)


def test_decompress_single_gridmap() -> None:
    assert np.array_equal(fledge.decompress_single_gridmap(fledge.compress_image(IMAGE), IMAGE.shape), IMAGE)
    frame = lz4.frame.compress(IMAGE.tobytes())
    assert np.array_equal(fledge.decompress_single_gridmap(frame, IMAGE.shape), IMAGE)


def test_plain_lz4_frames_of_the_old_design_are_read() -> None:
    images = np.stack([np.roll(IMAGE, k) for k in range(4)]).astype(np.float32)
    frame = lz4.frame.compress(images.tobytes(), compression_level=9)
    assert np.array_equal(fledge.decompress_image_seq(frame, IMAGE.shape, 4, dtype=np.float32), images)
    one = lz4.frame.compress(IMAGE.tobytes())
    assert np.array_equal(fledge.decompress_image(one, IMAGE.shape), IMAGE)


@pytest.mark.parametrize("damage", ["short", "bomb", "wrong size", "no shape"])
def test_an_lz4_frame_that_is_not_what_was_asked_for_is_refused(damage: str) -> None:
    frame = lz4.frame.compress(bytes(10**7) if damage == "bomb" else IMAGE.tobytes())
    frame = frame[:-9] if damage == "short" else frame
    shape = {"wrong size": (24, 25), "no shape": None}.get(damage, IMAGE.shape)
    with pytest.raises((FormatError, InputError)):
        fledge.decompress_image(frame, shape)


def episode(length: int = 6, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "image": np.stack([np.roll(IMAGE, k + seed) for k in range(length)]),
        "action": rng.random((length, 2), dtype=np.float32),
        "reward": rng.random(length, dtype=np.float32),
    }


def test_the_documented_replay_buffer_learns_its_keys_from_the_first_episode() -> None:
    with fledge.DictReplayBuffer(100, keys=None, device="cpu", img_compressed=False) as buffer:
        buffer.add(episode())
        batch = buffer.sample(batch_size=4)
        assert {"image", "action", "reward"} <= set(batch)
        assert len(buffer) == 6
        with pytest.raises(InputError, match="lacks"):
            buffer.add({"action": np.zeros((2, 2), np.float32)})


def test_a_buffer_without_keys_can_be_saved_and_restored_before_and_after_its_first_episode() -> None:
    for count in (0, 1):
        with fledge.DictReplayBuffer(100, seed=1) as one, fledge.DictReplayBuffer(100, seed=2) as other:
            for _ in range(count):
                one.add(episode())
            other.load_state_dict(one.state_dict())
            assert len(other) == 6 * count
            one.add(episode(seed=1))
            other.add(episode(seed=1))
            assert torch.equal(one.sample(5)["image"], other.sample(5)["image"])


def test_a_first_episode_that_is_refused_leaves_the_keys_open() -> None:
    with fledge.DictReplayBuffer(100) as buffer:
        with pytest.raises(InputError):
            buffer.add({"a": np.zeros((2, 2)), "b": np.zeros((3, 2))})
        with pytest.raises(InputError, match="empty"):
            buffer.sample(3)
        buffer.add(episode())
        assert "image" in buffer.sample(3)


def test_next_keys_are_derived_when_the_first_episode_brings_them() -> None:
    frames = episode(7)["image"]
    with fledge.DictReplayBuffer(100) as buffer:
        buffer.add({"image": frames[:-1], "next_image": frames[1:], "reward": np.arange(6, dtype=np.float32)})
        batch = buffer.sample(batch_size=8)
        at = batch["reward"].long()
        assert torch.equal(batch["next_image"], torch.from_numpy(frames)[at + 1])


def test_rollouts_name_the_keys_too() -> None:
    rollout = {"x": torch.arange(12.0).view(4, 3), "done": torch.zeros(4, 3, dtype=torch.bool)}
    rollout["done"][-1] = True
    with fledge.DictReplayBuffer(100) as buffer:
        assert buffer.add_rollout(rollout) == 3
        assert set(buffer.sample(2)) >= {"x", "done"}


@pytest.mark.parametrize(("compress_epi", "layout"), [(True, "episode"), (False, "frame")])
def test_compress_epi_chooses_episode_or_frame_mode(compress_epi: bool, layout: str) -> None:
    with fledge.DictReplayBuffer(100, img_compressed=True, compress_epi=compress_epi) as buffer:
        given = episode()
        buffer.add(given)
        assert buffer.layout == layout
        batch = buffer.get(range(6))
        assert np.array_equal(batch["image"].numpy(), given["image"])


def test_compress_epi_beside_another_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="compress_epi"):
        fledge.DictReplayBuffer(100, compress_epi=True, layout="frame")


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
@pytest.mark.parametrize("img_compressed", [True, False])
def test_img_compressed_decides_for_any_dtype(dtype: Any, img_compressed: bool) -> None:
    with fledge.DictReplayBuffer(100, img_compressed=img_compressed) as buffer:
        buffer.add({"image": episode()["image"].astype(dtype)})
        key = buffer.stats()["keys"]["image"]
        assert (key["ratio"] > 2) == img_compressed
        assert (key["codec"] == "raw") == (not img_compressed)


def test_sample_batch_is_sample() -> None:
    with fledge.DictReplayBuffer(100, seed=4) as one, fledge.DictReplayBuffer(100, seed=4) as other:
        one.add(episode())
        other.add(episode())
        assert torch.equal(one.sample(batch_size=5)["image"], other.sample_batch(5)["image"])
        assert torch.equal(one.sample(5)["image"], other.sample_batch(batch_size=5)["image"])


@pytest.mark.parametrize("form", ["list of ours", "object array", "sequence of ours", "list of lz4", "sequence in lz4"])
def test_episodes_that_hold_compressed_frames_are_taken_as_they_are(form: str) -> None:
    given = episode()
    frames = given["image"]
    packed: Any = {
        "list of ours": [fledge.compress_image(f) for f in frames],
        "object array": np.array([fledge.compress_image(f) for f in frames], dtype=object),
        "sequence of ours": fledge.compress_image_seq(frames),
        "list of lz4": [lz4.frame.compress(f.tobytes()) for f in frames],
        "sequence in lz4": lz4.frame.compress(frames.tobytes()),
    }[form]
    keys: Any = ["image", "action", "reward"]
    if "lz4" in form:  # such a frame does not say what it holds
        keys = {"image": fledge.KeySpec((24, 24), torch.uint8), "action": None, "reward": None}
    with fledge.DictReplayBuffer(100, keys, img_compressed=True) as buffer:
        buffer.add({**given, "image": packed})
        assert np.array_equal(buffer.get(range(6))["image"].numpy(), frames)


def test_compressed_frames_of_unknown_shape_are_refused_with_what_to_do() -> None:
    with fledge.DictReplayBuffer(100) as buffer, pytest.raises(InputError, match="KeySpec"):
        buffer.add({"image": [lz4.frame.compress(IMAGE.tobytes())] * 3})


def test_buffer_shows_its_episodes_by_key() -> None:
    one, two = episode(6), episode(4, seed=1)
    with fledge.DictReplayBuffer(100) as buffer:
        buffer.add(one)
        buffer.add(two)
        assert set(buffer.buffer) == {"image", "action", "reward"}
        assert len(buffer.buffer["image"]) == 2
        assert np.array_equal(buffer.buffer["image"][1], two["image"])
        assert np.array_equal(buffer.buffer["action"][-2], one["action"])
        assert [len(a) for a in buffer.buffer["reward"]] == [6, 4]
        with pytest.raises(KeyError):
            buffer.buffer["nothing"]
        with pytest.raises(IndexError):
            buffer.buffer["image"][2]


def test_episode_lens_prefix_sum_is_the_index() -> None:
    with fledge.DictReplayBuffer(100) as buffer:
        buffer.add(episode(6))
        buffer.add(episode(4))
        assert buffer.episode_lens_prefix_sum.get_range_relative_idx(7, 1) == 1
        assert list(buffer.episode_lens_prefix_sum.ar) == [6, 4]


@pytest.mark.parametrize("text", ["go left", ["go left", "go right", "über"]], ids=["one", "each"])
def test_small_text_is_kept_as_a_column_of_bytes(text: Any) -> None:
    with fledge.DictReplayBuffer(100) as buffer:
        buffer.add({"instruction": text, "reward": np.arange(3, dtype=np.float32)})
        buffer.add({"instruction": "a longer one than before", "reward": np.arange(2, dtype=np.float32)})
        batch = buffer.get(range(5))
        assert batch["instruction"].dtype == torch.uint8
        wanted = [text] * 3 if isinstance(text, str) else text
        assert fledge.read_text(batch["instruction"]) == [*wanted, *["a longer one than before"] * 2]
        with pytest.raises(InputError, match="bytes"):
            buffer.add({"instruction": "x" * 1000, "reward": np.arange(2, dtype=np.float32)})


# ---- collectors and learners -------------------------------------------------------------------------------------------


def test_the_collector_has_iterator_collect_and_rollout() -> None:
    batches = list(make_collector(total_frames=2 * N * T, return_same_td=False).iterator())
    assert len(batches) == 2
    torch.manual_seed(1)
    one, other = make_collector(), make_collector()
    torch.manual_seed(1)
    rollout = one.rollout().clone()
    torch.manual_seed(1)
    assert_same(other.collect(), rollout)
    assert rollout.batch_size == (T, N)


def test_collect_hands_out_what_iteration_does() -> None:
    collector = make_collector(postproc=lambda td: td.set("twice", 2 * td["reward"]), return_same_td=False)
    first = collector.collect()
    assert "twice" in first.keys()  # noqa: SIM118 - a TensorDict
    assert collector.collect()["reward"].data_ptr() != first["reward"].data_ptr()


def test_wrappers_have_iterator_and_collect_too() -> None:
    with fledge.PipelinedDataCollector(make_collector(total_frames=2 * N * T)) as collector:
        assert len([batch.numel() for batch in collector.iterator()]) == 2
    packed = fledge.CompressedDataCollector(make_collector())
    assert packed.collect().batch_size == (T, N)


@pytest.mark.parametrize("which", ["RANDOM", "MEAN"])
def test_exploration_types_of_a_collector(which: str) -> None:
    collector = make_collector(exploration_type=getattr(fledge.ExplorationType, which))
    rollout = collector.rollout()
    params, _ = collector.policy(rollout["input"][2])
    assert torch.allclose(rollout["raw_action"][2], collector.policy.head.mean(params)) == (which == "MEAN")


def test_set_exploration_type_is_a_context_that_collectors_follow() -> None:
    collector = make_collector()
    with fledge.set_exploration_type(fledge.ExplorationType.MEAN):
        rollout = collector.rollout()
    params, _ = collector.policy(rollout["input"][2])
    assert torch.allclose(rollout["raw_action"][2], collector.policy.head.mean(params))
    rollout = collector.rollout()
    params, _ = collector.policy(rollout["input"][2])
    assert not torch.allclose(rollout["raw_action"][2], collector.policy.head.mean(params))
    with pytest.raises(ConfigError, match="exploration_type is 'greedy'"):
        fledge.set_exploration_type("greedy")


def test_a_pipelined_batch_is_flown_as_it_was_when_it_was_begun() -> None:
    policy = make_policy()
    base = fledge.SyncDataCollector(make_env(), policy, N * T)

    def by_mean(rollout: TensorDict) -> bool:
        params, _ = policy(rollout["input"][2])
        return torch.allclose(rollout["raw_action"][2], policy.head.mean(params))

    with fledge.PipelinedDataCollector(base, prefetch_count=1) as collector:
        with fledge.set_exploration_type(fledge.ExplorationType.MEAN):
            assert by_mean(collector.rollout())
        assert by_mean(collector.rollout())  # begun inside
        assert not by_mean(collector.rollout())


def test_torchrls_own_exploration_types_are_understood() -> None:
    torchrl = pytest.importorskip("torchrl.envs.utils")
    assert make_collector(exploration_type=torchrl.ExplorationType.MEAN).deterministic
    assert not make_collector(exploration_type=torchrl.ExplorationType.RANDOM).deterministic


def test_torchrls_key_names_come_through_an_adapter() -> None:
    collector = make_collector(keys="navrl")
    for _ in range(2):
        data = collector.rollout()
        assert torch.equal(data["agents", "observation", "lidar"], data["obs", "lidar"])
        assert torch.equal(data["agents", "observation", "state"], data["obs", "state"])
        assert torch.equal(data["agents", "action"], data["action"])
        assert torch.equal(data["done"], (data["terminated"] | data["truncated"])[..., None])
        assert torch.equal(data["next", "done"], data["done"])
        assert torch.equal(data["next", "terminated"], data["terminated"][..., None])
        assert torch.equal(data["next", "agents", "reward"], data["reward"][..., None])
        assert torch.equal(data["sample_log_prob"], data["log_prob"])
        assert torch.equal(data["state_value"], data["value"][..., None])
    assert data["done"].any()
    with pytest.raises(ConfigError, match="keys is 'other'"):
        make_collector(keys="other")


def test_a_learner_learns_the_same_from_either_names() -> None:
    losses = []
    for keys in ("fledge", "navrl"):
        policy = make_policy()
        learner = fledge.PPO(policy, fledge.PPOConfig(rollout_steps=T, minibatch=10))
        collector = fledge.SyncDataCollector(make_env(), policy, N * T, keys=keys)
        losses.append(learner.train(collector.rollout()))
    assert losses[0] == losses[1]


def test_the_documents_loop_learns() -> None:
    env, policy = make_env(), make_policy()
    collector = fledge.SyncDataCollector(env, policy, frames_per_batch=N * T, total_frames=2 * N * T)
    learner = fledge.PPO(policy, fledge.PPOConfig(rollout_steps=T, minibatch=10))
    before = policy.critic.weight.detach().clone()
    for data in collector:
        assert "policy_loss" in learner.train(data)
    assert not torch.equal(policy.critic.weight, before)


def test_evaluate_takes_an_env_and_a_policy() -> None:
    env, policy = make_env(), make_policy()
    result = fledge.evaluate(env, policy)
    assert result.episodes >= N
    assert set(result.counts) == {"success", "timeout"}
    assert result.score == result.rate("success")
    assert fledge.evaluate(env=env, policy=policy, episodes=9).episodes == 9
    assert "mean_return" in result.as_dict()


def test_evaluate_leaves_the_env_where_it_was() -> None:
    torch.manual_seed(2)
    collector, other = make_collector(), make_collector()
    runs = []
    for one, judged in ((collector, True), (other, False)):
        torch.manual_seed(2)
        one.rollout()
        if judged:
            state = torch.get_rng_state()
            fledge.evaluate(one.env, one.policy, episodes=4)
            assert torch.equal(torch.get_rng_state(), state)
        runs.append(one.rollout())
    assert_same(*runs)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_prefetch_count_is_how_many_rollouts_may_be_ready_ahead(count: int) -> None:
    base = make_collector()
    with fledge.PipelinedDataCollector(base, torch.device("cpu"), prefetch_count=count) as collector:
        for k in range(4):
            batch = collector.rollout()
            before = batch.clone()
            collector.wait()
            assert base._frames == (k + 1 + count) * N * T
            assert_same(batch, before)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_is_flown_with_the_weights_of_prefetch_count_batches_before(count: int) -> None:
    policy = make_policy()
    base = fledge.SyncDataCollector(make_env(), policy, N * T)
    seen = []
    with fledge.PipelinedDataCollector(base, prefetch_count=count) as collector:
        for k in range(6):
            with torch.no_grad():
                policy.critic.bias.fill_(float(k))
                policy.critic.weight.zero_()
            seen.append(collector.rollout()["value"].unique().tolist())
    assert seen == [[float(max(k - count, 0))] for k in range(6)]


def test_a_collector_far_ahead_resumes_bit_for_bit() -> None:
    def make() -> Any:
        torch.manual_seed(4)
        return fledge.PipelinedDataCollector(make_collector(), prefetch_count=3)

    with make() as one, make() as other:
        one.rollout()
        with torch.no_grad():
            one.base_collector.policy.critic.bias.add_(0)
        state = one.state_dict()
        wanted = [one.rollout().clone() for _ in range(5)]
        other.load_state_dict(state)
        for batch in wanted:
            assert_same(other.rollout(), batch)


def test_none_ahead_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefetch_count is 0"):
        fledge.PipelinedDataCollector(make_collector(), prefetch_count=0)


@pytest.mark.parametrize("names", [None, ["time", None]], ids=["plain", "named"])
def test_the_lidar_transform_works_on_rollouts(names: Any) -> None:
    pytest.importorskip("torchrl")
    rollout = make_rollout()
    rollout.names = names
    transform = fledge.CompressedLidarTransform(compression_level=1)
    packed = transform(rollout)
    assert packed["obs", "lidar_packed"].dtype == torch.uint8
    assert_same(transform.inv(packed), rollout)


@pytest.mark.parametrize("batch", [(N,), ()], ids=["many envs", "one env"])
def test_the_lidar_transform_works_on_single_steps(batch: tuple[int, ...]) -> None:
    pytest.importorskip("torchrl")
    step = make_env().reset()["obs"]
    step = step if batch else step[0]
    transform = fledge.CompressedLidarTransform(compression_level=1)
    packed = transform(step)
    assert packed["lidar_packed"].dtype == torch.uint8
    assert "lidar" not in packed.keys()  # noqa: SIM118 - a TensorDict
    assert_same(transform.inv(packed), step)
    if batch:
        assert packed["lidar_packed"].nbytes < step["lidar"].nbytes
        assert_same(transform.inv(packed[[4, 1]]), step[[4, 1]])


def test_compressed_batches_decode_by_env() -> None:
    batch = fledge.CompressedDataCollector(make_collector(), compression_level=1).rollout()
    assert_same(batch.decode(envs=[3, 1]), batch.decode()[:, [3, 1]])


@pytest.mark.parametrize("form", ["list", "tensor", "mask", "slice", "none"])
def test_compressed_batches_decode_by_transition(form: str) -> None:
    batch = fledge.CompressedDataCollector(make_collector(), compression_level=1).rollout()
    whole = batch.decode().reshape(-1)
    chosen = [7, 0, T * N - 1, 7]
    asked: Any = {"list": chosen, "tensor": torch.tensor(chosen), "slice": slice(3, 20, 2), "none": []}.get(form)
    if form == "mask":
        asked = torch.zeros(T, N, dtype=torch.bool)
        asked[2, 1:3] = True
        chosen = [2 * N + 1, 2 * N + 2]
    index = torch.arange(T * N)[asked] if form == "slice" else torch.tensor([] if form == "none" else chosen).long()
    assert_same(batch.decode(transitions=asked), whole[index])
    with pytest.raises(InputError, match="transitions"):
        batch.decode(transitions=[T * N])
    with pytest.raises(InputError, match="both envs and transitions"):
        batch.decode(envs=[1], transitions=[1])


def test_ppo_with_compression_is_ppo_minibatch_by_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    from fledge.collect.packed import PackedTensor

    results = []
    for kind in (fledge.PPO, fledge.PPOWithCompression):
        policy = MLPActorCritic(
            World.observation_spec,
            World.action_spec,
            hidden=(8,),
            normalize=False,  # type: ignore[arg-type]
        )
        policy.load_state_dict(make_unnormalized().state_dict())
        collector = fledge.CompressedDataCollector(
            fledge.SyncDataCollector(make_env(), policy, N * T), compression_level=1
        )
        learner = kind(policy, fledge.PPOConfig(rollout_steps=T, minibatch=10))
        torch.manual_seed(9)
        batch = collector.rollout()
        if kind is fledge.PPOWithCompression:
            monkeypatch.setattr(PackedTensor, "unpack", lambda *args: pytest.fail("all of it was decoded"))
        results.append((learner.train(batch), policy.state_dict()))
    assert results[0][0] == results[1][0]
    for key, value in results[0][1].items():
        assert torch.equal(value, results[1][1][key]), key


def make_unnormalized() -> MLPActorCritic:
    torch.manual_seed(0)
    return MLPActorCritic(
        World.observation_spec,
        World.action_spec,
        hidden=(8,),
        normalize=False,  # type: ignore[arg-type]
    )


def test_ppo_with_compression_takes_plain_rollouts_and_policies_that_watch_their_inputs() -> None:
    policy = make_policy()
    collector = fledge.CompressedDataCollector(fledge.SyncDataCollector(make_env(), policy, N * T))
    learner = fledge.PPOWithCompression(policy, fledge.PPOConfig(rollout_steps=T, minibatch=10))
    assert "total_loss" in learner.train(collector.rollout())
    assert "total_loss" in learner.train(make_rollout())


def test_an_update_that_fails_can_be_repeated_from_plain_tensors() -> None:
    policy = make_unnormalized()
    batch = fledge.CompressedDataCollector(fledge.SyncDataCollector(make_env(), policy, N * T)).rollout()
    batch.rest["reward"].fill_(float("nan"))
    learner = fledge.PPOWithCompression(policy, fledge.PPOConfig(rollout_steps=T, minibatch=10))
    with pytest.raises(NumericsError) as caught:
        learner.train(batch)
    assert caught.value.cause is not None
    assert all(isinstance(tensor, Tensor) for tensor in caught.value.cause["rollout"].values())


def test_rollout_storage_makes_its_folder_at_once(tmp_path: Path) -> None:
    fledge.RolloutStorage(save_dir=str(tmp_path / "a" / "rollouts"), compression_level=9).close()
    assert (tmp_path / "a" / "rollouts").is_dir()


def test_what_rollout_storage_save_returns_is_usable_as_a_path(tmp_path: Path) -> None:
    with fledge.RolloutStorage(tmp_path) as storage:
        path = storage.save(make_rollout(), 100)
        assert os.path.getsize(path) > 0  # waits until it is there
        assert Path(path).name in os.listdir(tmp_path)
        with open(path, "rb") as stream:
            assert stream.read(2) == b"PK"
        assert str(path) == str(Path(path))


def test_rollouts_load_onto_a_device(tmp_path: Path) -> None:
    rollout = make_rollout()
    with fledge.RolloutStorage(tmp_path) as storage:
        storage.save(rollout, iteration=100)
        assert_same(storage.load(100, device="cpu"), rollout)
        assert_same(storage.load(iteration=100, device=torch.device("cpu")), rollout)


@pytest.mark.parametrize("what", ["dict", "TensorDict"])
def test_old_rollout_files_are_listed_and_loaded(tmp_path: Path, what: str) -> None:
    rollout = make_rollout()
    data = rollout.to_dict() if what == "dict" else rollout
    buffer = io.BytesIO()
    torch.save(data, buffer)
    (tmp_path / "rollout_000100.lz4").write_bytes(lz4.frame.compress(buffer.getvalue(), compression_level=9))
    with fledge.RolloutStorage(tmp_path) as storage:
        storage.save(rollout, 200)
        storage.drain()
        assert storage.list() == [100, 200]
        old = storage.load(100, device="cpu")
        assert old.batch_size == (T, N)
        assert_same(old, rollout)
        assert_same(storage.load(100, keys=["obs/lidar"], envs=[1]), rollout.select(("obs", "lidar"))[:, [1]])


def test_an_old_rollout_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return print, ("it ran",)

    buffer = io.BytesIO()
    torch.save({"a": Hostile()}, buffer)
    (tmp_path / "rollout_000100.lz4").write_bytes(lz4.frame.compress(buffer.getvalue()))
    with fledge.RolloutStorage(tmp_path) as storage, pytest.raises(FormatError):
        storage.load(100)


def test_a_verbose_storage_says_one_line_for_each_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fledge.RolloutStorage(tmp_path, verbose=True) as storage:
        for iteration in (1, 2):
            storage.save(make_rollout(), iteration)
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("[Rollout] ") for line in lines] == [True, True]
    assert "x)" in lines[0]


def test_compress_rollout_and_decompress_rollout() -> None:
    rollout = make_rollout()
    packed = fledge.compress_rollout(rollout, compression_level=9)
    assert packed.nbytes < packed.raw_nbytes
    assert_same(fledge.decompress_rollout(packed), rollout)
    assert_same(fledge.decompress_rollout(packed, device="cpu"), rollout)


def test_decompress_minibatch() -> None:
    rollout = make_rollout()
    packed = fledge.compress_rollout(rollout)
    index = torch.randperm(T * N)[:7]
    assert_same(fledge.decompress_minibatch(packed, index), rollout.reshape(-1)[index])
    assert_same(fledge.decompress_minibatch(packed, index.tolist(), device="cpu"), rollout.reshape(-1)[index])


@pytest.mark.parametrize("form", ["rollout", "compressed"])
def test_save_rollout_compressed(tmp_path: Path, form: str) -> None:
    rollout = make_rollout()
    data: Any = rollout if form == "rollout" else fledge.compress_rollout(rollout)
    path = fledge.save_rollout_compressed(data, tmp_path / "mine" / "flight.lz4", compression_level=9)
    assert os.path.exists(path)
    assert_same(fledge.load_rollout_compressed(tmp_path / "mine" / "flight.lz4"), rollout)
    assert_same(fledge.load_rollout_compressed(path, device="cpu"), rollout)


def test_rollouts_go_over_a_file_object() -> None:
    rollouts = [make_rollout(), make_rollout()[:3]]
    stream = io.BytesIO()
    sizes = [fledge.send(rollout, stream) for rollout in rollouts]
    assert sum(sizes) == stream.tell() < sum(t.nbytes for r in rollouts for t in r.flatten_keys().values())
    stream.seek(0)
    for rollout in rollouts:
        assert_same(fledge.receive(stream), rollout)
    assert fledge.receive(stream) is None  # a clean end


def test_rollouts_go_over_a_socket() -> None:
    rollout = make_rollout()
    one, other = socket.socketpair()
    with one, other:
        sender = threading.Thread(target=lambda: (fledge.send(rollout, one, compression_level=1), one.close()))
        sender.start()
        assert_same(fledge.receive(other, device="cpu"), rollout)
        assert fledge.receive(other) is None
        sender.join()


def sent() -> bytes:
    stream = io.BytesIO()
    fledge.send(make_rollout(), stream)
    return stream.getvalue()


@pytest.mark.parametrize("cut", [1, 11, 12, 40, -1])
def test_a_stream_that_breaks_off_is_told(cut: int) -> None:
    with pytest.raises(FormatError, match="the stream ended"):
        fledge.receive(io.BytesIO(sent()[:cut]))


def test_a_hostile_stream_costs_no_memory_and_gives_one_error() -> None:
    whole = sent()
    with pytest.raises(FormatError, match="max_bytes"):
        fledge.receive(io.BytesIO(whole[:4] + (2**60).to_bytes(8, "little") + whole[12:]))
    with pytest.raises(FormatError, match="max_bytes"):
        fledge.receive(io.BytesIO(whole), max_bytes=100)
    with pytest.raises(FormatError, match="the stream ended"):  # claims much, holds little: nothing is taken beforehand
        fledge.receive(io.BytesIO(whole[:4] + (2**29).to_bytes(8, "little") + whole[12:]))
    with pytest.raises(FormatError, match="are not a rollout"):
        fledge.receive(io.BytesIO(b"GET / HTTP/1.1\r\n\r\n"))
    with pytest.raises(FormatError):
        fledge.receive(io.BytesIO(whole[:4] + (50).to_bytes(8, "little") + bytes(50)))
    refused, wanted = 0, make_rollout()
    for place in range(12, len(whole), max(1, len(whole) // 40)):
        bad = bytearray(whole)
        bad[place] ^= 0x40
        try:
            assert_same(fledge.receive(io.BytesIO(bytes(bad))), wanted)  # in a zip, some bytes mean nothing
        except FormatError:
            refused += 1
    assert refused > 30


def test_what_expands_beyond_the_limit_is_refused() -> None:
    stream = io.BytesIO()
    fledge.send(TensorDict({"zeros": torch.zeros(100, 10_000)}, [100, 10_000]), stream)
    stream.seek(0)
    with pytest.raises(FormatError, match="max_bytes"):
        fledge.receive(stream, max_bytes=10**6)


def test_what_cannot_carry_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="stream"):
        fledge.send(make_rollout(), "somewhere")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="stream"):
        fledge.receive(42)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="TensorDict"):
        fledge.send({"a": 1}, io.BytesIO())  # type: ignore[arg-type]


# ---- the advisor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured() -> dict[str, Any]:
    from tests.advise.test_advise import numbers

    return numbers()


def test_the_bandwidth_below_which_sending_compressed_pays_is_measured() -> None:
    from fledge.advise.measure_storage import measure_stream

    rollout = make_rollout()
    found = measure_stream(rollout)
    assert found["raw_bytes"] > found["bytes"] > 0
    gained = found["raw_bytes"] - found["bytes"]
    assert found["break_even_bytes_per_s"] == pytest.approx(gained / (found["pack_s"] + found["unpack_s"]))


@pytest.mark.parametrize("break_even", [5e6, 5e9])
def test_the_advice_says_below_which_bandwidth_sending_compressed_pays(
    measured: dict[str, Any], break_even: float
) -> None:
    from fledge.advise.decide import decide

    measured["stream"]["break_even_bytes_per_s"] = break_even
    branch = next(b for b in decide(measured, 0.02)["branches"] if "between machines" in b["question"])
    assert branch["yes"] == (break_even > 1e9)
    assert f"{break_even / 1e6:,.0f} MB/s" in branch["because"]


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("A", {}),
        ("B", {"rollout_save_interval": 5}),
        ("C", {"available_bytes": 100_000_000}),
    ],
)
def test_schemes_have_their_documented_names(measured: dict[str, Any], scheme: str, changes: dict[str, Any]) -> None:
    from fledge.advise.decide import SCHEMES, decide

    assert SCHEMES == {"A": "none", "B": "archive", "C": "compressed in memory"}
    measured["settings"] |= {k: v for k, v in changes.items() if k in measured["settings"]}
    measured["packed"] |= {k: v for k, v in changes.items() if k in measured["packed"]}
    assert decide(measured, 0.02)["scheme"] == scheme


@pytest.mark.parametrize("words", ["smaller batch", "memory of the device", "speed critical"])
def test_the_advisors_tree_asks_the_documents_questions(measured: dict[str, Any], words: str) -> None:
    from fledge.advise.decide import decide

    answers = []
    for available, pack in ((8e9, 0.1), (4e8, 0.1), (1e8, 0.1), (1e8, 5.0)):
        measured["packed"] |= {"available_bytes": int(available), "pack_s": pack}
        branch = next(b for b in decide(measured, 0.02)["branches"] if words in b["question"])
        answers.append(branch["yes"])
    wanted = {
        "memory of the device": [True, False, False, False],
        "smaller batch": [False, True, False, False],
        "speed critical": [False, False, False, True],
    }
    assert answers == wanted[words]


# ---- air combat --------------------------------------------------------------------------------------------------------

SEEN = ["x", "y", "angle", "speed", "missiles", "alive"]
SEEN += ["enemy_distance", "enemy_relative_angle", "enemy_speed", "enemy_alive"]


def make_duels(num_envs: int = 3, **config: Any) -> Any:
    return TensorEnv({"spacetime": False, **config}, num_envs=num_envs, device="cpu")


def test_tensor_env_is_made_by_the_documented_call_and_stays_our_contract() -> None:
    env = TensorEnv({"spacetime": False}, num_envs=2, device="cpu")
    assert (env.num_envs, env.device) == (2, torch.device("cpu"))
    env.close()
    assert TensorEnv({"spacetime": False}).num_envs == 1
    ours = make_env()
    assert isinstance(ours, fledge.TensorEnv)
    assert issubclass(World, fledge.TensorEnv)
    assert not isinstance("an env", fledge.TensorEnv)

    class Mine(fledge.TensorEnv):  # type: ignore[misc, valid-type]
        """Not filled in."""

    with pytest.raises(TypeError, match="abstract"):
        Mine(2, "cpu", 0)
    assert not isinstance(ours, Mine)


def test_a_subclass_of_the_documented_name_is_an_env_of_ours() -> None:
    from fledge.envs.base import TensorEnv

    class Halved(World, fledge.TensorEnv):  # type: ignore[misc]
        """Both ways to the contract."""

    env = Halved(WorldConfig(4), seed=1)
    assert isinstance(env, TensorEnv)
    assert env.reset()["obs"]["state"].shape == (4, 8)


def test_tensor_env_states_are_tensors_of_envs_and_entities() -> None:
    env = make_duels()
    for name in ("x", "y", "vx", "vy", "angle", "speed", "alive", "is_active", "is_missile", "missile_count"):
        assert len(env.states[name]) == 3, name
    assert env.states["alive"][:, [env.P1_IDX, env.P2_IDX]].all()
    env.close()


def test_tensor_env_reset_with_and_without_a_mask_returns_a_dict() -> None:
    env = make_duels()
    for obs in (env.reset(), env.reset(env_mask=torch.tensor([True, False, True])), env.get_observations()):
        assert set(obs) == {"p1", "p2"}
    env.close()


@pytest.mark.parametrize("side", ["p1", "p2"])
@pytest.mark.parametrize("name", SEEN)
def test_tensor_env_observes_what_is_documented(side: str, name: str) -> None:
    env = make_duels()
    value = env.reset()[side][name]
    assert value.shape == (3,)
    assert value.dtype == torch.float32
    assert torch.isfinite(value).all()
    env.close()


def test_tensor_env_observes_ours_too() -> None:
    env = make_duels()
    seen = env.reset()["p2"]
    assert seen["state"].shape == (3, 15)
    assert seen["missile_tokens"].shape == (3, 12, 10)
    assert seen["mask"].shape == (3, 2)
    env.close()


def test_tensor_env_step_takes_six_actions_and_a_time_and_returns_four_things() -> None:
    time_scale = 2.0
    env = make_duels()
    env.reset()
    actions: dict[str, Tensor] = {}
    for side in ("p1", "p2"):
        actions |= {f"{side}_rudder": torch.linspace(-1, 1, 3), f"{side}_throttle": torch.linspace(0, 1, 3)}
        actions |= {f"{side}_fire": torch.tensor([True, False, False])}
    next_obs, rewards, dones, infos = env.step(actions, dt=time_scale / 60)
    assert set(next_obs["p1"]) >= set(SEEN)
    assert set(rewards) == {"p1", "p2"}
    assert rewards["p1"].shape == dones.shape == infos["winner"].shape == (3,)
    assert dones.dtype == torch.bool
    assert infos["winner"].tolist() == [0, 0, 0]
    assert infos["p1_alive"].all()
    assert infos["p2_alive"].all()
    assert env.duel.state["time"].tolist() == pytest.approx([2 / 60] * 3)
    assert next_obs["p1"]["missiles"].tolist() == pytest.approx([5 / 6, 1, 1])
    env.step(actions)
    assert env.duel.state["time"].tolist() == pytest.approx([3 / 60] * 3)
    env.close()


def test_tensor_env_compute_rewards_takes_the_documented_masks() -> None:
    env = make_duels()
    env.reset()
    done = torch.tensor([True, True, True])
    paid = env.compute_rewards(done_mask=done, winner_mask=torch.tensor([0, 1, 2]))
    survives = 0.1
    assert paid["p1"].tolist() == pytest.approx([-50 + survives, 500 + survives, -500 + survives])
    assert paid["p2"].tolist() == pytest.approx([-50 + survives, -500 + survives, 500 + survives])
    assert set(env.compute_rewards(done)) == {"p1", "p2"}
    env.close()


def test_the_documented_loop_runs_and_counts_its_fights() -> None:
    """Both sides fly by agents, a reward of one's own is added, and ended fights are reset by mask."""
    num_envs, device = 4, "cpu"
    env = make_duels(num_envs, max_episode_s=8.0)
    agent = fledge.create_agent("random", device, num_envs)
    opponent = fledge.create_agent("placeholder", device, num_envs)
    reward_fn = fledge.create_reward("zero", device)
    obs = env.reset()
    agent.reset()
    opponent.reset()
    reward_fn.reset()
    fights = 0
    for _ in range(40):
        action_p1, action_p2 = agent.act(obs["p1"]), opponent.act(obs["p2"])
        full = {f"p1_{k}": v for k, v in action_p1.items()} | {f"p2_{k}": v for k, v in action_p2.items()}
        next_obs, rewards, dones, infos = env.step(full, dt=30 / 60)
        more = reward_fn.compute(
            obs_before=obs["p1"], obs_after=next_obs["p1"], action=action_p1, done=dones, info=infos
        )
        assert (rewards["p1"] + more).shape == (num_envs,)
        obs = next_obs
        if dones.any():
            fights += int(dones.sum())
            obs = env.reset(env_mask=dones)
            agent.reset(env_mask=dones)
            opponent.reset(env_mask=dones)
            assert torch.equal(env.done, torch.zeros(num_envs, dtype=torch.bool))
    assert fights == 8
    env.close()


def test_gym_wrapper_is_the_same_env_with_arrays() -> None:
    env = fledge.GymWrapper({"spacetime": False}, num_envs=2, device="cpu")
    obs, info = env.reset(seed=1)
    assert set(obs) == set(SEEN)
    assert set(info) == {"p1_alive", "p2_alive"}
    assert set(env.action_space.spaces) == {f"p{n}_{part}" for n in (1, 2) for part in ("rudder", "throttle", "fire")}
    obs, rewards, dones, truncated, info = env.step(env.action_space.sample())
    assert isinstance(obs["x"], np.ndarray)
    assert rewards["p2"].shape == dones.shape == truncated.shape == (2,)
    assert set(info) == {"winner", "p1_alive", "p2_alive"}
    env.close()


def test_base_agent_as_users_derive_from_it() -> None:
    class Turning(fledge.BaseAgent):  # type: ignore[name-defined, misc]
        def __init__(self, device: str = "cpu") -> None:
            super().__init__(device)
            self.resets = 0

        def act(self, observation: dict[str, Tensor]) -> dict[str, Tensor]:
            still = torch.zeros(observation["x"].shape[0], device=self.device)
            return {"rudder": still + 1.0, "throttle": still + 1.0, "fire": still.bool()}

        def reset(self, env_mask: Tensor | None = None) -> None:
            self.resets += 1

    agent = Turning(device="cpu")
    assert (agent.device, agent.num_envs) == (torch.device("cpu"), 1)
    agent.num_envs = 3
    assert agent.to("cpu") is agent
    assert agent.train() is agent
    assert agent.eval() is agent
    assert agent.to("meta").device == torch.device("meta")
    assert agent.to("meta").to(torch.float64).device == torch.device("meta")
    agent = Turning()
    env = make_duels()
    obs = env.reset()
    agent.reset(env_mask=torch.ones(3, dtype=torch.bool))
    env.step({f"p1_{part}": value for part, value in agent.act(obs["p1"]).items()})
    assert env.states["rudder"][:, 0].tolist() == [1.0, 1.0, 1.0]
    assert agent.get_name() == "Turning"
    env.close()


def test_placeholder_agent_flies_straight() -> None:
    agent = fledge.PlaceholderAgent(device="cpu")
    action = agent.act({"x": torch.zeros(5)})
    assert action["rudder"].tolist() == [0.0] * 5
    assert action["throttle"].tolist() == [1.0] * 5
    assert action["fire"].tolist() == [False] * 5
    assert isinstance(agent, fledge.BaseAgent)
    assert agent.train() is agent.eval() is agent.to("cpu")


def test_base_reward_and_zero_reward_as_documented() -> None:
    class Close(fledge.BaseReward):  # type: ignore[name-defined, misc]
        def compute(self, obs_before: Any, obs_after: Any, action: Any, done: Tensor, info: Any) -> Tensor:
            return obs_before["enemy_distance"] - obs_after["enemy_distance"]

    env = make_duels()
    before = env.reset()
    after, _, dones, infos = env.step({}, dt=1.0)
    for reward in (Close(device="cpu"), fledge.ZeroReward(device="cpu"), fledge.ZeroReward()):
        assert reward.device == torch.device("cpu")
        assert reward.to("cpu") is reward
        reward.reset()
        paid = reward.compute(before["p1"], after["p1"], {}, dones, infos)
        assert paid.shape == (3,)
        assert (paid > 0).all() == isinstance(reward, Close)
    env.close()


@pytest.mark.parametrize(
    "name", ["placeholder", "random", "pursuit", "crank", "drag", "notch", "envelope", "rule_based"]
)
def test_create_agent_knows_every_pilot(name: str) -> None:
    agent = fledge.create_agent(name, "cpu", 8)
    assert isinstance(agent, fledge.BaseAgent)
    assert (agent.num_envs, agent.device.type) == (8, "cpu")


@pytest.mark.parametrize("name", ["zero", "win_loss", "shaped", "shots", "win_loss+0.5*shaped"])
def test_create_reward_knows_every_term_and_sums(name: str) -> None:
    reward = fledge.create_reward(name, "cpu")
    assert isinstance(reward, fledge.BaseReward)
    env = make_duels()
    obs = env.reset()
    after, _, dones, infos = env.step({"p1_fire": True}, dt=1.0)
    paid = reward.compute(obs["p1"], after["p1"], {}, dones, infos)
    assert paid.shape == (3,)
    assert (paid == 1).all() == (name == "shots")
    env.close()


FLAGS = """agent=ppo opponent=crank reward=shaped num_envs=4096 time_scale=1 device=cpu max_steps=10000 lr=3e-4
    n_steps=2048 batch_size=64 n_epochs=10 gamma=0.99 gae_lambda=0.95 clip_epsilon=0.2 value_loss_coef=0.5 entropy_coef=0.01
    save_interval=10000 log_interval=100 episode_max_steps=3600 seed=1 verbose=true render=true"""


@pytest.mark.parametrize("as_options", [False, True])
def test_every_documented_flag_of_training_is_understood(as_options: bool) -> None:
    from click.testing import CliRunner

    from fledge.cli import main

    words = FLAGS.split()
    if as_options:
        pairs = [word.split("=") for word in words]
        words = [f"--{pair[0].replace('_', '-')}" if i % 2 == 0 else pair[1] for pair in pairs for i in range(2)]
        words = [*words[:-3], "--render"]  # the last two are switches
    shown = CliRunner().invoke(main, ["train", "aircombat", *words, "--help-config"])
    assert shown.exit_code == 0, shown.output
    told = {line.split("  #")[0] for line in shown.output.splitlines() if not line.startswith(" ")}
    expected = """env.opponent=crank env.reward=shaped env.num_envs=4096 total_frames=40960000 ppo.lr=0.0003 ppo.clip=0.2
        ppo.rollout_steps=2048 ppo.minibatch=64 ppo.epochs=10 ppo.value_coef=0.5 ppo.entropy_coef=0.01 log_interval=100
        save_interval=10000 env.max_episode_s=60.0 seed=1 device=cpu algo=ppo"""
    assert set(expected.split()) <= told


def test_a_shut_fight_is_reset_alone_and_seen_anew() -> None:
    """Faults that are not copied: done cleared everywhere, and the old observation after a reset."""
    env = make_duels(2, max_episode_s=2.0)
    env.step({}, dt=1.0)
    env.reset(env_mask=torch.tensor([False, True]))
    last, _, dones, _ = env.step({}, dt=1.0)
    assert dones.tolist() == [True, False]
    first = env.reset(env_mask=torch.tensor([False, False]))
    assert env.done.tolist() == [True, False]
    assert torch.equal(first["p1"]["x"], last["p1"]["x"])
    first = env.reset(env_mask=dones)
    assert env.done.tolist() == [False, False]
    assert first["p1"]["x"][0].item() == pytest.approx(0.2)
    assert first["p1"]["x"][1] == last["p1"]["x"][1]
    env.close()


@pytest.mark.parametrize("name", ["small", "medium", "large"])
def test_hardware_profiles_have_their_documented_names(name: str) -> None:
    from fledge.training.config import make_config

    cfg = make_config("aircombat", None, [f"hardware={name}"])
    assert cfg.env.num_envs >= 1024


def test_the_documents_names_are_found_and_listed() -> None:
    names = """AsyncCheckpointSaver BaseAgent BaseReward CompressedDataCollector CompressedLidarTransform DictReplayBuffer
        ExplorationType GymWrapper PPOWithCompression PerformanceMonitor PipelinedDataCollector PlaceholderAgent
        PrefixSum RolloutStorage SyncDataCollector TensorEnv ZeroReward create_agent create_reward
        compress_image compress_image_seq compress_rollout decompress_image decompress_image_seq
        decompress_minibatch decompress_rollout decompress_single_gridmap evaluate format_checkpoint_name
        get_model_size load_checkpoint print_model_info receive save_rollout_compressed send
        set_exploration_type"""
    assert set(names.split()) <= set(fledge.__all__) == set(dir(fledge))
    logging.getLogger("fledge.storage")
