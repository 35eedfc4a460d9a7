"""Rows 152 to 195: compressed rollouts in memory, on disk and between machines, typed as document 002 has them."""

from __future__ import annotations

import pickle
import re
import socket
import threading
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import fledge
from fledge.compat.checkpoint_utils import PerformanceMonitor
from fledge.compat.compressed_collector import CompressedDataCollector
from fledge.compat.replay_buffer import compress_image_seq, decompress_image_seq
from fledge.compat.rollout_storage import (
    RolloutStorage,
    compress_rollout,
    compress_rollout_for_storage,
    decompress_minibatch,
    decompress_rollout,
    load_rollout_compressed,
    make_batches,
    save_rollout_compressed,
    save_to_disk,
    sender_to,
)
from fledge.core.errors import InputError, StorageError
from fledge.training.config import make_config
from tests.compat.conformance.rows import covers
from tests.compat.conformance.worlds import N, T, make_collector, weights


@pytest.fixture(scope="module")
def policy_and_data() -> tuple[Any, TensorDict]:
    collector = make_collector()
    collector.rollout()
    return collector.policy, collector.rollout().clone()


@pytest.fixture
def data(policy_and_data: tuple[Any, TensorDict]) -> TensorDict:
    return policy_and_data[1]


@pytest.fixture
def policy(policy_and_data: tuple[Any, TensorDict]) -> Any:
    return policy_and_data[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_same(found: Any, data: Any) -> None:
    keys = set(data.keys(True, True))
    assert set(found.keys(True, True)) == keys
    for key in keys:
        assert found[key].dtype == data[key].dtype, key
        assert torch.equal(found[key], data[key]), key


# ---- 1, 2: data and codec -----------------------------------------------------------------------------------------------


@covers(152, 153)
def test_the_batch_and_its_observations(data: TensorDict) -> None:
    num_envs, training_frame_num = N, T
    assert data.numel() == num_envs * training_frame_num
    assert data.reshape(-1).batch_size == (num_envs * training_frame_num,)
    observation = data["agents", "observation"]
    assert set(observation.keys()) == {"state", "lidar", "direction", "dynamic_obstacle"}
    assert make_config("navigation", "navrl", ["algo.training_frame_num=32"]).ppo.rollout_steps == 32


@covers(156, 157)
def test_decompress_image_seq_by_position_and_by_name() -> None:
    images = np.arange(5 * 3 * 4, dtype=np.float32).reshape(5, 3, 4)
    compressed = compress_image_seq(images, level=9)
    assert np.array_equal(decompress_image_seq(compressed, (3, 4), 5, np.float32), images)
    named = decompress_image_seq(compressed_data=compressed, image_shape=(3, 4), batch_size=5, dtype=np.float32)
    assert np.array_equal(named, images)
    plain = lz4.frame.compress(images.astype(np.uint8).tobytes())
    assert np.array_equal(decompress_image_seq(plain, (3, 4), 5), images)


# ---- 3, 4: compressed in memory -----------------------------------------------------------------------------------------


@covers(159, 160, 161, 162)
def test_ppo_trains_on_decompressed_minibatches(data: TensorDict, policy: Any) -> None:
    before = weights(policy)
    compressed_data = compress_rollout(data)
    seen = []
    for _epoch in range(2):
        for minibatch_idx in make_batches(data, 16):
            decompressed = decompress_minibatch(compressed_data, minibatch_idx)
            loss = policy.train(decompressed)
            seen.append(minibatch_idx)
            assert torch.equal(decompressed["reward"], data["reward"].reshape(-1)[minibatch_idx])
    assert len(seen) == 32
    assert torch.equal(torch.cat(seen[:16]).sort().values, torch.arange(N * T))
    assert all(abs(value) < float("inf") for value in loss.values())
    assert not torch.equal(weights(policy), before)
    with pytest.raises(InputError, match="num_minibatches"):
        list(make_batches(data, 0))


@covers(164, 168)
def test_a_history_of_compressed_rollouts_and_training_without_any() -> None:
    collector = make_collector(batches=3, return_same_td=True)
    policy, rollout_history, plain = collector.policy, [], []
    for data in collector:
        compressed = compress_rollout(data)
        rollout_history.append(compressed)
        plain.append(data.clone())
        decompressed = decompress_rollout(compressed)
        policy.train(decompressed)
    for compressed, rollout in zip(rollout_history, plain, strict=True):
        assert_same(decompress_rollout(compressed), rollout)
    policy.train(plain[0])  # scheme A: as it is


@covers(165, 166)
def test_another_machine_trains_on_what_is_sent(data: TensorDict, policy: Any) -> None:
    received: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def machine_b() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(fledge.receive(connection))
                received.append(fledge.receive(connection))

        thread = threading.Thread(target=machine_b)
        thread.start()
        send_to_machine_B = sender_to("127.0.0.1", server.getsockname()[1])
        compressed_data = compress_rollout(data)
        assert send_to_machine_B(compressed_data) < sum(v.nbytes for v in data.values(True, True)) / 3
        send_to_machine_B(data)
        thread.join(timeout=60)
    for compressed in received:
        arrived = decompress_rollout(compressed)
        assert_same(arrived, data)
        assert arrived.batch_size == (N, T)
        assert policy.train(arrived)
    with pytest.raises(StorageError, match="cannot be reached"):
        sender_to("127.0.0.1", 1)


# ---- 5: schemes ---------------------------------------------------------------------------------------------------------


@covers(170, 195)
def test_scheme_b_saves_a_rollout_now_and_then(here: Path, data: TensorDict) -> None:
    i = 0
    compressed = compress_rollout_for_storage(data)
    save_to_disk(compressed, f"rollout_{i}.lz4")
    assert_same(load_rollout_compressed("rollout_0.lz4"), data)
    distinct = {value.data_ptr(): value.nbytes for value in data.values(True, True)}
    assert len(compressed) < 0.3 * sum(distinct.values())
    with pytest.raises(InputError, match="compress_rollout_for_storage"):
        save_to_disk(data, "x.lz4")  # type: ignore[arg-type]


@covers(171, 172, 173, 174, 175, 176, 178)
def test_scheme_c_keeps_lidar_compressed() -> None:
    base = make_collector(batches=2, return_same_td=False)
    collector = CompressedDataCollector(base, compression_level=1)
    for data in collector:
        lidar = data["agents", "observation", "lidar"]
        assert lidar.shape == (N, T, 1, 36, 4)
        compressed_lidar = data["_compressed_lidar"]
        assert len(compressed_lidar) == collector.num_envs == N
        env_lidar = np.frombuffer(lz4.frame.decompress(compressed_lidar[3]), dtype=np.float32).reshape(T, 1, 36, 4)
        assert np.array_equal(env_lidar, lidar[3].numpy())
        minibatch_indices = torch.randperm(N * T)[:16]
        found = collector._decompress_observations(data, minibatch_indices)
        for row, idx in zip(found, minibatch_indices.tolist(), strict=True):
            env_id = idx // 32
            step = idx % 32
            assert torch.equal(row, lidar[env_id, step])
            assert env_id in collector._cache
        assert collector.device == lidar.device
        assert data.ratio > 3.5  # 35 MB to 10 MB
        base.policy.train(data)
    again = collector._compress_observations(make_collector().rollout())
    assert torch.equal(again["agents", "observation", "lidar"][0], collector._decompress_observations(again, range(T)))
    with pytest.raises(InputError, match="minibatch_indices"):
        collector._decompress_observations(again, [N * T])


def test_batches_of_other_collectors_have_envs_first_too() -> None:
    plain = TensorDict({"observation": {"lidar": torch.rand(N, T, 1, 36, 4)}}, [N, T])
    (data,) = CompressedDataCollector([plain])
    collector = CompressedDataCollector([])
    found = collector._decompress_observations(data, [5 * T + 7])
    assert torch.equal(found[0], plain["observation", "lidar"][5, 7])
    base = make_collector()
    native = fledge.SyncDataCollector(base.env, base.policy, N * T, total_frames=N * T)
    (data,) = CompressedDataCollector(native)
    assert data.batch_size == (N, T)
    assert base.policy.train(data)


# ---- 7, 8: files --------------------------------------------------------------------------------------------------------


@covers(179, 180)
def test_save_rollout_compressed_writes_the_named_file(
    here: Path, data: TensorDict, capsys: pytest.CaptureFixture[str]
) -> None:
    save_rollout_compressed(data, "rollouts/rollout_0.lz4")
    size = (here / "rollouts" / "rollout_0.lz4").stat().st_size
    assert capsys.readouterr().out == f"Saved compressed rollout: {size / 1e6:.2f} MB\n"
    assert [path.name for path in (here / "rollouts").iterdir()] == ["rollout_0.lz4"]
    assert_same(load_rollout_compressed("rollouts/rollout_0.lz4"), data)


def write_by_tuples(data: TensorDict, path: Path, protocol: int | None = None) -> None:
    """Write a rollout as scripts without fledge do: NumPy arrays by nested key, pickled, in an LZ4 frame."""
    arrays = {key: value.cpu().numpy() for key, value in data.items(True, True)}
    path.write_bytes(lz4.frame.compress(pickle.dumps(arrays, protocol=protocol), compression_level=9))


def write_by_paths(data: TensorDict, path: Path) -> None:
    """The same with keys such as agents/observation/lidar, and text beside the arrays."""
    keys = list(data.keys(True, True))
    arrays: dict[str, Any] = {key if isinstance(key, str) else "/".join(key): data[key].cpu().numpy() for key in keys}
    path.write_bytes(
        lz4.frame.compress(pickle.dumps({**arrays, "note": "first flight"}, protocol=4), compression_level=9)
    )


@covers(181)
def test_files_that_scripts_without_fledge_write_are_read(here: Path, data: TensorDict, policy: Any) -> None:
    for protocol in (None, 3, 5):
        write_by_tuples(data, here / "rollout_0.lz4", protocol)
        assert_same(load_rollout_compressed("rollout_0.lz4"), data)
    write_by_paths(data, here / "rollout_000100.lz4")
    for storage in (RolloutStorage(here), fledge.RolloutStorage(here)):
        assert storage.list() == [0, 100]
        assert_same(storage.load(0), data)
        found = storage.load(100)
        assert found["note"] == "first flight"
        assert_same(found.exclude("note"), data)
        assert found.batch_size == (N, T)
        assert policy.train(found)
    part = fledge.RolloutStorage(here).load(100, keys=["agents/observation/lidar"], envs=[2], steps=slice(0, 4))
    assert torch.equal(part["agents", "observation", "lidar"], data["agents", "observation", "lidar"][2:3, :4])


@covers(183, 184, 185, 186, 187)
def test_the_archive_writes_and_says_what_the_document_shows(
    here: Path, data: TensorDict, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = RolloutStorage(save_dir="./rollout_data", compression_level=9)
    assert (here / "rollout_data").is_dir()
    save_path = storage.save(data, iteration=100)
    assert isinstance(save_path, Path)
    assert save_path.name == "rollout_000100.lz4"
    saved = capsys.readouterr().out.splitlines()
    assert saved[0] == "[Rollout] Saved: rollout_000100.lz4"
    assert re.fullmatch(r"          Size: \d+\.\d\d MB → \d+\.\d\d MB", saved[1])
    assert re.fullmatch(r"          Compression: \d+\.\d\dx", saved[2])
    assert len(saved) == 3
    storage.load(100)
    assert capsys.readouterr().out == "[Rollout] Loaded: rollout_000100.lz4\n"
    read = pickle.loads(lz4.frame.decompress(save_path.read_bytes()))
    assert np.array_equal(read["agents/observation/lidar"], data["agents", "observation", "lidar"].numpy())
    with pytest.raises(InputError, match="iteration"):
        storage.save(data, iteration=-1)


@covers(188, 189)
def test_a_loaded_rollout_has_its_nested_keys_and_batch(
    here: Path, data: TensorDict, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = RolloutStorage("rollout_data")
    storage.save(data, iteration=3)
    found = storage.load(3, device="cuda:0")
    assert_same(found.cpu(), data)
    assert found["agents"]["observation"]["lidar"].shape == (N, T, 1, 36, 4)
    assert found.batch_size == (N, T)
    if not torch.cuda.is_available():
        assert "using the CPU" in capsys.readouterr().out
    with fledge.RolloutStorage("rollout_data") as native:
        native.save(data, iteration=4)
    assert_same(storage.load(4), data)
    with pytest.raises(StorageError, match="no rollout 5"):
        storage.load(5)


@covers(190, 191, 192)
def test_the_lines_added_to_the_training_script(here: Path) -> None:
    cfg = {"rollout_save_interval": 2}
    collector = make_collector(batches=3)
    policy, perf_monitor = collector.policy, PerformanceMonitor()
    rollout_storage = RolloutStorage(save_dir=here / "rollouts", compression_level=9)

    for i, data in enumerate(collector):
        with perf_monitor.timer("policy_training"):
            train_loss_stats = policy.train(data)

        if i % cfg.get("rollout_save_interval", 100) == 0:
            with perf_monitor.timer("rollout_save"):
                rollout_storage.save(data, iteration=i)

    assert "policy_loss" in train_loss_stats
    assert rollout_storage.list() == [0, 2]
    assert perf_monitor.get_stats(window=100)["rollout_save"]["count"] == 2
    assert make_config("navigation", "fast", ["rollout_save_interval=100"]).rollout_save_interval == 100
