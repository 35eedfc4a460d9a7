"""Rows 1 to 73: asynchronous checkpoints, LZ4 files and the performance monitor, typed as document 000 has them."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import torch
from click.testing import CliRunner
from omegaconf import OmegaConf
from torch import nn

import fledge
from fledge.cli import main
from fledge.compat import async_checkpoint
from fledge.compat.async_checkpoint import AsyncCheckpointSaver, load_checkpoint
from fledge.compat.checkpoint_utils import (
    PerformanceMonitor,
    format_checkpoint_name,
    get_model_size,
    print_model_info,
)
from fledge.storage.saving import saver as saver_module
from fledge.training.config import make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks
from tests.compat.conformance.rows import ROOT, covers, docs_page


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))


class SlowDisk:
    """Holds back every write until `go` is set; notes the threads that write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.threads, real = threading.Event(), [], saver_module.write_state

        def write(*args: Any, **kwargs: Any) -> Any:
            self.threads.append(threading.current_thread())
            assert self.go.wait(60)
            return real(*args, **kwargs)

        monkeypatch.setattr(saver_module, "write_state", write)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    slow = SlowDisk(monkeypatch)
    yield slow
    slow.go.set()


# ---- 1.1 the saver -----------------------------------------------------------------------------------------------------


@covers(1, 2, 3, 5, 6)
def test_a_save_returns_at_once_and_a_thread_writes_the_state_of_the_call(tmp_path: Path, disk: SlowDisk) -> None:
    model = make_model()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    path = str(tmp_path / "checkpoint_1000.pt")
    saver = AsyncCheckpointSaver(max_queue_size=3)
    saver.save_async(checkpoint={"model_state_dict": model.state_dict()}, path=path, compress=True)
    assert not Path(f"{path}.lz4").exists()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    disk.go.set()
    saver.shutdown()
    saver.shutdown()
    assert disk.threads[0] is not threading.current_thread()
    loaded = load_checkpoint(path)["model_state_dict"]
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())


@covers(4, 51, 60, 61)
def test_a_fourth_checkpoint_waits_with_the_documented_warning_and_none_is_lost(
    tmp_path: Path, disk: SlowDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"a": torch.ones(250_000)}  # 1 MB
    saver = AsyncCheckpointSaver(max_queue_size=3)
    for k in range(3):
        saver.save_async(state, str(tmp_path / f"{k}.pt"))
    assert "[Warning]" not in capsys.readouterr().out
    threading.Timer(0.1, disk.go.set).start()
    saver.save_async(state, str(tmp_path / "3.pt"))
    assert disk.go.is_set()
    assert "[Warning] Save queue is full, checkpoint may be delayed\n" in capsys.readouterr().out
    held = saver.get_stats()["buffer_bytes"]
    saver.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{k}.pt.lz4" for k in range(4)]
    assert 3e6 <= held <= 3.3e6  # three checkpoints in memory, as the document reckons: 3 x 200 MB


@covers(8, 50)
def test_what_checkpoints_cost_a_run_is_measured_and_stated() -> None:
    page = " ".join((ROOT / "docs" / "storage" / "checkpoint_costs.md").read_text().split())
    assert "python -m benchmarks checkpoint" in page
    assert "`torch.save` / LZ4-9 in a thread | +8.5 %" in page  # row 8: what a loop gains by saving in the background
    assert "A history of 50 checkpoints takes 0.305 of 50 `torch.save` files" in page  # row 50: 65 % are promised


@covers(145)
def test_the_memory_of_a_training_is_logged_and_stated(run: tuple[Path, str, list[dict[str, Any]]]) -> None:
    assert run[2][-1]["memory_mb"] > 0
    assert "0.67, 0.69 and 0.77 GB for 1024 drones" in docs_page().read_text()


# ---- 1.2 files ---------------------------------------------------------------------------------------------------------


@covers(12, 13, 14, 15, 16, 31)
def test_a_compressed_checkpoint_is_an_lz4_file_of_level_9_beside_the_name(tmp_path: Path) -> None:
    path = str(tmp_path / "ckpt.pt")
    saver = AsyncCheckpointSaver(max_queue_size=3)
    assert saver.compression_level == 9
    saver.save_async({"weights": torch.zeros(1000)}, path, True)
    saver.shutdown(timeout=60)
    assert [file.name for file in tmp_path.iterdir()] == ["ckpt.pt.lz4"]
    content = lz4.frame.decompress((tmp_path / "ckpt.pt.lz4").read_bytes())
    plain = torch.load(io.BytesIO(content), weights_only=True)["weights"]
    for loaded in (load_checkpoint(path)["weights"], load_checkpoint(f"{path}.lz4")["weights"], plain):
        assert torch.equal(loaded, torch.zeros(1000))


@covers(36, 62)
@pytest.mark.parametrize("level", [0, 6, 9, 12, 16])
def test_levels_0_to_16_are_accepted_by_the_saver_and_by_a_run(tmp_path: Path, level: int) -> None:
    saver = AsyncCheckpointSaver(max_queue_size=5, compression_level=level)
    saver.save_async({"a": torch.zeros(1000)}, tmp_path / "ckpt.pt")
    saver.shutdown()
    assert torch.equal(load_checkpoint(tmp_path / "ckpt.pt")["a"], torch.zeros(1000))
    words = [f"save_compression_level={level}", "async_checkpoint_queue_size=5", "save_interval=2000"]
    cfg = make_config("navigation", None, words)
    assert (cfg.save_compression_level, cfg.async_checkpoint_queue_size, cfg.save_interval) == (level, 5, 2000)


@covers(49, 71)
def test_without_compression_torch_load_reads_the_file_and_old_files_load(tmp_path: Path) -> None:
    saver = AsyncCheckpointSaver()
    saver.save_async({"a": torch.ones(3)}, str(tmp_path / "plain.pt"), compress=False)
    saver.shutdown()
    assert torch.equal(torch.load(tmp_path / "plain.pt", weights_only=True)["a"], torch.ones(3))
    torch.save({"model_state_dict": make_model().state_dict()}, tmp_path / "old.pt")
    assert set(load_checkpoint(str(tmp_path / "old.pt"))) == {"model_state_dict"}
    assert make_config("navigation", None, ["compress_checkpoint=False"]).compress_checkpoint is False


@covers(69)
def test_a_differential_checkpoint_needs_its_base_only_to_load(tmp_path: Path) -> None:
    first = {"a": torch.randn(100_000)}
    second = {"a": first["a"] * (1 + 1e-7)}
    with AsyncCheckpointSaver(codec="native") as saver:
        base = saver.save_async(first, tmp_path / "1.pt").wait()
        delta = saver.save_async(second, tmp_path / "2.pt", base=base).wait()
    assert delta.stat().st_size < 0.7 * base.stat().st_size
    assert torch.equal(load_checkpoint(tmp_path / "2.pt")["a"], second["a"])
    assert make_config("navigation", None, ["save_delta=all"]).save_delta == "all"


@covers(38, 39, 57, 58)
def test_statistics_are_kept_under_the_documented_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saver = AsyncCheckpointSaver(verbose=True)
    assert saver.get_stats()["total_saved"] == 0
    saver._save_checkpoint({"a": torch.zeros(100_000)}, str(tmp_path / "a.pt"), True)
    saver.save_async({"a": torch.zeros(100_000)}, str(tmp_path / "b.pt"), metadata={"iteration": 7})
    saver.shutdown()
    stats = saver.get_stats()
    print(stats)
    assert stats["total_saved"] == stats["save_count"] == 2
    assert stats["compression_ratio"] == stats["total_saved_bytes"] / stats["total_compressed_bytes"] > 10
    assert stats["queue_size"] == 0
    assert "a.pt.lz4" in capsys.readouterr().out
    assert load_checkpoint(tmp_path / "b.pt")["metadata"] == {"iteration": 7}


@covers(53)
def test_the_statistics_print_as_documented(tmp_path: Path) -> None:
    saver = AsyncCheckpointSaver(max_queue_size=3)
    for k in range(10):
        saver.save_async({"a": torch.zeros(10_000)}, tmp_path / f"{k}.pt")
    saver.shutdown()
    ratio = saver.get_stats()["compression_ratio"]
    lines = ["[Checkpoint Stats]", "  Total saved: 10", f"  Compression ratio: {ratio:.2f}x", "  Queue size: 0"]
    assert saver.get_summary().splitlines() == lines


# ---- 1.3 the monitor and helpers -----------------------------------------------------------------------------------------


@covers(17, 18, 19, 20, 21, 22, 23)
def test_the_monitor_measures_and_prints_as_documented() -> None:
    monitor = PerformanceMonitor()
    with monitor.timer("policy_training"):
        time.sleep(0.001)
    stats = monitor.get_stats(window=100)
    assert stats["policy_training"]["mean"] >= 0.001
    assert {"mean", "std", "min", "max"} <= set(stats["policy_training"])
    monitor = PerformanceMonitor()
    for name, seconds in {"policy_training": 0.04523, "evaluation": 0.12345, "checkpoint_save": 0.00085}.items():
        monitor.record(name, seconds)
    assert monitor.get_summary().splitlines() == [
        "=== Performance Summary ===",
        "policy_training          :   45.23 ms (±  0.00 ms) [ 45.23,  45.23]",
        "evaluation               :  123.45 ms (±  0.00 ms) [123.45, 123.45]",
        "checkpoint_save          :    0.85 ms (±  0.00 ms) [  0.85,   0.85]",
    ]
    monitor.start_timer("by_hand")
    assert monitor.end_timer("by_hand") == monitor.get_stats()["by_hand"]["total"]
    assert monitor.end_timer("by_hand") is None


@covers(26, 40, 41)
def test_helpers_name_checkpoints_and_tell_a_models_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert format_checkpoint_name("ckpts", 1000) == "ckpts/checkpoint_iter_1000.pt"
    assert format_checkpoint_name("ckpts", 1000, "reward", 123.45) == "ckpts/checkpoint_iter_1000_reward_123.45.pt"
    assert fledge.format_checkpoint_name(1000) == "checkpoint_1000.pt"
    size = get_model_size(make_model())
    assert (size["total_params"], size["trainable_params"]) == (5560, 5560)
    assert size["size_mb"] == 4 * 5560 / 2**20
    print_model_info(make_model(), "DummyModel")
    assert capsys.readouterr().out.splitlines() == [
        "",
        "=== DummyModel Info ===",
        "Total parameters: 5,560",
        "Trainable parameters: 5,560",
        "Estimated size: 0.02 MB",
    ]


# ---- 2 the training script ---------------------------------------------------------------------------------------------


@covers(25)
@pytest.mark.parametrize(
    "line",
    [
        "from fledge.compat.async_checkpoint import AsyncCheckpointSaver, load_checkpoint",
        "from fledge.compat.checkpoint_utils import PerformanceMonitor, print_model_info",
        "from fledge.compat.pipelined_collector import PipelinedDataCollector",
        "from fledge.compat.rollout_storage import RolloutStorage",
        "from fledge.compat.replay_buffer import DictReplayBuffer, PrefixSum",
    ],
)
def test_every_module_is_there_under_its_own_name(line: str) -> None:
    exec(line, {})


@covers(27, 28, 29, 30, 32, 48)
def test_the_training_snippet_runs_as_typed(tmp_path: Path) -> None:
    from fledge.compat.ppo import PPO

    env = fledge.NavigationEnv(
        fledge.NavigationConfig(num_envs=4, num_maps=1, static_obstacles=10, moving_obstacles=0), num_threads=1
    )
    cfg = OmegaConf.create({"save_interval": 2})
    policy = PPO(None, env.observation_spec, env.action_spec, "cpu")
    collector = fledge.SyncDataCollector(env, policy, frames_per_batch=32, total_frames=96)

    checkpoint_saver = AsyncCheckpointSaver(max_queue_size=3)
    perf_monitor = PerformanceMonitor()
    for i, data in enumerate(collector):
        before = {name: value.clone() for name, value in policy.state_dict().items()}
        with perf_monitor.timer("policy_training"):
            train_loss_stats = policy.train(data)
        if i % cfg.save_interval == 0:
            checkpoint = {
                "model_state_dict": policy.state_dict(),
                "iteration": i,
                "env_frames": collector._frames,
            }
            ckpt_path = str(tmp_path / f"checkpoint_{i}.pt")
            checkpoint_saver.save_async(checkpoint, path=ckpt_path, compress=True)
    checkpoint_saver.shutdown(timeout=60)

    assert all(isinstance(value, float) for value in train_loss_stats.values())
    changed = [name for name, value in policy.state_dict().items() if not torch.equal(value, before[name])]
    assert changed
    assert perf_monitor.get_stats()["policy_training"]["count"] == 3
    checkpoint = load_checkpoint(str(tmp_path / "checkpoint_2.pt"))
    assert (checkpoint["iteration"], checkpoint["env_frames"]) == (2, 96)
    policy.load_state_dict(checkpoint["model_state_dict"])
    collector.shutdown()


@covers(33, 34, 35, 37, 72, 73)
@pytest.mark.parametrize(
    "text",
    [
        "compress_checkpoint: True\nasync_checkpoint_queue_size: 3\nsave_compression_level: 9\nsave_interval: 1000",
        "compress_checkpoint: False\nasync_checkpoint_queue_size: 1\nsave_interval: 100",
        "headless: True\nenv:\n  num_envs: 1024\n  num_obstacles: 350\nenv_dyn:\n  num_obstacles: 80\n"
        "algo:\n  training_frame_num: 32\nmax_frame_num: 1000000\nsave_compression_level: 16",
    ],
)
def test_the_documented_yaml_files_are_understood(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.yaml").write_text(text)
    cfg = make_config("navigation", str(tmp_path / "train.yaml"), [])
    given = OmegaConf.create(text)
    for name in ("compress_checkpoint", "async_checkpoint_queue_size", "save_compression_level", "save_interval"):
        assert getattr(cfg, name) == given.get(name, getattr(cfg, name))
    if "env" in given:
        assert (cfg.env.static_obstacles, cfg.env.moving_obstacles, cfg.total_frames) == (350, 80, 1_000_000)


@covers(42, 43, 44, 45, 46, 47)
def test_the_training_command_takes_every_documented_word() -> None:
    words = "headless=True env.num_envs=1024 env.num_obstacles=350 env_dyn.num_obstacles=80 wandb.mode=online"
    words += " compress_checkpoint=True"
    shown = CliRunner().invoke(main, ["train", "navigation", *words.split(), "--help-config"])
    assert shown.exit_code == 0, shown.output
    told = {line.split("  #")[0] for line in shown.output.splitlines() if not line.startswith(" ")}
    expected = "env.num_envs=1024 env.static_obstacles=350 env.moving_obstacles=80 wandb.mode=online"
    assert set(expected.split()) <= told


# ---- 6 monitoring a run ------------------------------------------------------------------------------------------------


class FakeWandb:
    """Keeps what a run logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def init(self, **options: Any) -> FakeWandb:
        return self

    def log(self, row: dict[str, Any], **options: Any) -> None:
        self.rows.append(row)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[dict[str, Any]]]:
    """A run of 201 iterations of a small env of our own: its folder, what it printed, and what W&B was given."""
    from tests.test_names import World, WorldConfig

    folder, wandb = tmp_path_factory.mktemp("runs") / "r", FakeWandb()
    task = fledge.Task("toy", WorldConfig, World)
    words = ["total_frames=1206", "ppo.rollout_steps=1", "ppo.epochs=1", "eval_interval=100", "eval_episodes=2"]
    words += ["save_interval=100", "wandb.mode=offline", "tensorboard=false", "save_compression_level=12"]
    words += ["env.num_envs=6", "log_interval=50"]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", wandb)
        patch.setattr(sys, "stderr", printed)
        train(make_config(task, "", words), folder, Ranks(), task=task)
    return folder, printed.getvalue(), wandb.rows


@covers(24, 54, 55, 56)
def test_a_run_times_its_phases_and_logs_them_to_wandb(run: tuple[Path, str, list[dict[str, Any]]]) -> None:
    rows = run[2]
    assert {"perf/policy_training", "perf/evaluation", "perf/checkpoint_save"} <= set(rows[-1])
    assert {"checkpoint/saves", "checkpoint/compression_ratio", "checkpoint/queue_size"} <= set(rows[-1])


@covers(52)
def test_a_run_prints_the_summary_every_100_iterations(run: tuple[Path, str, list[dict[str, Any]]]) -> None:
    text = run[1]
    assert text.count("=== Performance Summary ===") == text.count("[Checkpoint Stats]") == 2
    for name in ("policy_training          :", "evaluation               :"):
        assert text.count(name) == 2
    for name in ("  Total saved: ", "  Compression ratio: ", "  Queue size: 0"):
        assert name in text


def test_a_runs_checkpoint_has_the_documented_entries(run: tuple[Path, str, list[dict[str, Any]]]) -> None:
    checkpoint = load_checkpoint(run[0] / "checkpoint_200.pt")
    assert (checkpoint["iteration"], checkpoint["env_frames"]) == (200, 1200)
    assert checkpoint["model_state_dict"] is checkpoint["model"]


# ---- 7 troubleshooting -------------------------------------------------------------------------------------------------

WITHOUT_LZ4 = """
import sys
sys.modules["lz4"] = sys.modules["lz4.frame"] = None
from fledge.compat.async_checkpoint import AsyncCheckpointSaver, load_checkpoint
import torch
saver = AsyncCheckpointSaver(max_queue_size=3, verbose=False)
saver.save_async({"a": torch.ones(3)}, sys.argv[1], compress=True)
saver.shutdown()
print(load_checkpoint(sys.argv[1])["a"].tolist())
"""

INTERRUPTED = """
import os, signal, sys, time
import torch
from fledge.compat.async_checkpoint import AsyncCheckpointSaver
from fledge.storage.saving import saver as module
real = module.write_state
module.write_state = lambda *args, **options: (time.sleep(0.2), real(*args, **options))[1]
signal.signal(signal.SIGINT, signal.default_int_handler)
checkpoint_saver = AsyncCheckpointSaver(max_queue_size=3, verbose=False)

def signal_handler(sig, frame):
    print("\\n[NavRL] Interrupted! Waiting for checkpoints...")
    checkpoint_saver.shutdown()
    sys.exit(0)

signal.signal(signal.SIGINT, signal_handler)
for i in range(3):
    checkpoint_saver.save_async({"i": i, "a": torch.ones(3)}, f"{sys.argv[1]}/checkpoint_{i}.pt", compress=True)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


def run_script(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@covers(59)
def test_without_lz4_the_module_says_so_and_saves_plain_files(tmp_path: Path) -> None:
    done = run_script(WITHOUT_LZ4, tmp_path / "x.pt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[Warning] lz4 not installed. Run: pip install lz4", "[1.0, 1.0, 1.0]"]
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]
    assert async_checkpoint.LZ4_AVAILABLE


@covers(63)
def test_the_documented_signal_handler_saves_everything(tmp_path: Path) -> None:
    done = run_script(INTERRUPTED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[NavRL] Interrupted! Waiting for checkpoints..." in done.stdout
    assert [load_checkpoint(tmp_path / f"checkpoint_{i}.pt")["i"] for i in range(3)] == [0, 1, 2]


# ---- 8 what was planned ------------------------------------------------------------------------------------------------


@covers(67)
def test_pinned_memory_and_one_object_for_all_rollouts_go_together() -> None:
    from fledge.compat.collector import SyncDataCollector
    from tests.test_names import make_env, make_policy

    options: dict[str, Any] = {"frames_per_batch": 30, "return_same_td": True}
    pinned = iter(SyncDataCollector(make_env(), make_policy(), pin_memory=True, **options))
    torch.manual_seed(0)
    first = next(pinned)
    rewards = first["reward"].clone()
    assert next(pinned) is first
    plain = iter(SyncDataCollector(make_env(), make_policy(), **options))
    torch.manual_seed(0)
    assert torch.equal(next(plain)["reward"], rewards)


@covers(66)
def test_rollouts_are_prefetched(tmp_path: Path) -> None:
    from tests.test_names import make_collector

    pipelined = fledge.PipelinedDataCollector(make_collector(return_same_td=False), device="cpu", prefetch_count=2)
    assert len([data for data, _ in zip(pipelined, range(3), strict=False)]) == 3
    pipelined.shutdown()
    assert make_config("navigation", None, ["collect.mode=pipelined"]).collect.mode.name == "pipelined"
