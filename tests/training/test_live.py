"""Watching a training: frames are recorded only while a page is open, and learning does not depend on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from fledge.envs.placement import EnvPlacement
from fledge.storage import Recording
from fledge.tasks.registry import find_task
from fledge.training import live
from fledge.training.config import make_config
from fledge.training.live import FrameCapture, capture_files, newest_capture, request_frames
from fledge.training.loop import train
from fledge.training.ranks import Ranks

WORDS = [
    "env.num_envs=32",
    "env.num_maps=2",
    "ppo.rollout_steps=16",
    "total_frames=2048",
    "tensorboard=false",
    "save_interval=4",
]


def run(folder: Path, watched: bool, words: list[str]) -> dict[str, torch.Tensor]:
    """Train a little, and return the weights."""
    from fledge.storage import CheckpointHistory

    task = find_task("navigation")
    if watched:
        folder.mkdir()
        request_frames(folder)
    train(make_config(task, None, [*WORDS, *words]), folder, Ranks(), task=task)
    state, _ = CheckpointHistory(folder / "checkpoints").load_latest()
    return state["model"]


@pytest.mark.parametrize("mode", ["sync", "halves", "pipelined"])
def test_a_watched_training_learns_the_same_bit_for_bit(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FRESH_S", 1e9)
    words = [f"collect.mode={mode}"]
    alone, seen = run(tmp_path / "alone", False, words), run(tmp_path / "seen", True, words)
    assert alone.keys() == seen.keys()
    assert all(torch.equal(alone[name], seen[name]) for name in alone)
    assert newest_capture(tmp_path / "alone") is None
    recording = Recording(newest_capture(tmp_path / "seen"))
    assert len(recording) >= 1
    assert sum(episode.recorded for episode in recording) > 16
    assert recording.task == "navigation"
    maps = {episode.scene["map"] for episode in recording}
    assert len(maps) == 1, "all that are followed share a stage"


def capture_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FrameCapture, object]:
    task = find_task("navigation")
    cfg = task.config(num_envs=8, num_maps=1, max_episode_steps=30, decimation=10)
    env = task.make_env(cfg, EnvPlacement(seed=3))
    capture = FrameCapture(task, env)
    capture.folder = folder
    monkeypatch.setattr(live, "CHECK_S", 0.0)
    env.reset()
    return capture, env


def fly(capture: FrameCapture, env: object, steps: int) -> None:
    for _ in range(steps):
        capture.after_step(env.step(torch.full((8, 3), 0.9)))


def test_nothing_is_written_without_a_watcher_or_after_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, env = capture_on(tmp_path, monkeypatch)
    fly(capture, env, 3)
    assert not capture.on
    assert not (tmp_path / "live").exists()
    request_frames(tmp_path)
    fly(capture, env, 12)
    assert capture.on
    long_ago = time.time() - 60
    os.utime(tmp_path / "live" / "watch", (long_ago, long_ago))
    fly(capture, env, 1)
    assert not capture.on
    recording = Recording(newest_capture(tmp_path))
    assert recording.closed
    assert recording.outcomes().get("timeout", 0) >= live.FOLLOWED
    assert len({episode.facts["env"] for episode in recording}) >= live.FOLLOWED


def test_a_fast_training_is_filmed_at_every_third_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, env = capture_on(tmp_path, monkeypatch)
    monkeypatch.setattr(live, "CHECK_S", 3600.0)
    fly(capture, env, 1)
    request_frames(tmp_path)
    capture._rate = 3 * live.FRAMES_S
    capture._check_request()
    fly(capture, env, 9)
    capture.close()
    recording = Recording(newest_capture(tmp_path))
    assert sum(episode.recorded for episode in recording) == 3 * live.FOLLOWED
    assert recording.seconds_per_frame == pytest.approx(3 * env.decision_s)


def test_captures_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, env = capture_on(tmp_path, monkeypatch)
    monkeypatch.setattr(live, "MAX_EPISODES", 10)
    request_frames(tmp_path)
    fly(capture, env, 40)
    capture.close()
    assert 1 <= len(capture_files(tmp_path / "live")) <= live.KEPT
    assert all(len(Recording(path)) <= 10 for path in capture_files(tmp_path / "live"))


def test_a_broken_snapshot_stops_the_capture_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    capture, env = capture_on(tmp_path, monkeypatch)
    request_frames(tmp_path)
    fly(capture, env, 2)

    def broken(env: object, ids: list[int]) -> dict[str, object]:
        raise TypeError("a mistake in a user's view")

    monkeypatch.setattr(capture.task.view, "snapshot", broken)
    fly(capture, env, 2)
    assert not capture.on
    assert "cannot be watched live" in caplog.text


def test_a_link_in_a_run_is_neither_followed_nor_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "000001.frec").write_bytes(b"")
    for name in ("folder", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder" / "live").symlink_to(outside)
    (tmp_path / "files" / "live").mkdir()
    (tmp_path / "files" / "live" / "watch").symlink_to(outside / "made")
    (tmp_path / "files" / "live" / "000002.frec").symlink_to(outside / "000001.frec")
    for name in ("folder", "files"):
        request_frames(tmp_path / name)
        assert newest_capture(tmp_path / name) is None
    assert [path.name for path in outside.iterdir()] == ["000001.frec"]
