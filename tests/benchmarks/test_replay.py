"""The replay bench runs, checks its candidates against each other, and reports what it was asked for."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks import replay, replay_images
from benchmarks.baselines.lz4_replay import LZ4Replay
from benchmarks.image_episodes import CONTENTS, Content
from benchmarks.replay_candidates import Candidate, check_parity, doubled, torchrl
from benchmarks.replay_flights import FLIGHT, STEP, fly, split
from benchmarks.replay_images import KEYS, Ring
from benchmarks.replay_memory import measure_memory
from fledge.core.errors import FledgeError, InputError
from fledge.replay import DictReplayBuffer


@pytest.mark.slow
def test_the_bench_runs_and_can_be_printed() -> None:
    pytest.importorskip("torchrl")
    said: list[str] = []
    result = replay.run(quick=True, on_progress=said.append)
    assert json.loads(json.dumps(result))["bars"] == result["bars"]
    assert said
    console = Console(file=io.StringIO(), width=80)
    console.print(*replay.render(result))
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]  # it fits
    for part in result["parts"].values():
        assert len(part["buffers"]) == 7
        for row in part["keys"].values():
            assert row["fledge"] <= row["raw"]
    assert result["parts"]["flight"]["keys"]["lidar"]["raw"] >= 8 * result["parts"]["flight"]["keys"]["lidar"]["fledge"]


def candidate(offset: int, name: str = "reward") -> Candidate:
    return Candidate(lambda: None, lambda numbers: {name: torch.arange(10.0)[numbers] + offset}, 1.0, 1.0, 10)


def test_a_buffer_that_returns_other_data_is_not_timed() -> None:
    flat = {"reward": torch.arange(10.0)}
    check_parity({"a": candidate(0)}, flat, np.random.default_rng(0))
    with pytest.raises(FledgeError, match="b returns other"):
        check_parity({"a": candidate(0), "b": candidate(1)}, flat, np.random.default_rng(0))


@pytest.mark.parametrize("level", [0, 9])
def test_the_lz4_baseline_is_written_faithfully(level: int) -> None:
    rng = np.random.default_rng(0)
    episodes = [{"x": rng.normal(size=(n, 3)), "id": np.arange(n)} for n in (5, 9)]
    replay = LZ4Replay(2, level=level)
    for episode in episodes:
        replay.add(episode)
    got = replay.get(np.array([0, 4, 5, 13]))
    assert got["id"].tolist() == [0, 4, 0, 8]
    assert np.array_equal(got["x"][2], episodes[1]["x"][0])


def test_episodes_are_cut_where_they_ended_and_get_their_own_final_observation() -> None:
    steps, envs = 5, 2
    tag = np.arange(steps + 1)[:, None] * 10 + np.arange(envs)  # step and env of every frame
    arrays: dict[str, Any] = {k: tag[:-1].astype(float) for k in STEP} | {"seen": tag}
    finals = {(1, 0): {"seen": np.array(-1)}, (4, 1): {"seen": np.array(-2)}}
    episodes = split(arrays, ("seen",), finals)
    assert [e["seen"].tolist() for e in episodes] == [[0, 10, -1], [20, 30, 40, 50], [1, 11, 21, 31, 41, -2]]
    assert [e["reward"].tolist() for e in episodes] == [[0, 10], [20, 30, 40], [1, 11, 21, 31, 41]]


def test_flown_episodes_line_up_and_every_storage_returns_them(tmp_path: Any) -> None:
    pytest.importorskip("torchrl")
    episodes = fly(256, 0, "fledge-reflex", 5)
    assert sum(len(e["reward"]) for e in episodes) == 256
    assert all(len(e["lidar"]) == len(e["reward"]) + 1 for e in episodes)
    assert np.concatenate([e["lidar"] for e in episodes]).any()  # among the trees
    both = doubled(episodes, FLIGHT)
    flat = {k: torch.from_numpy(np.concatenate([e[k] for e in both])) for k in both[0]}
    check_parity(torchrl(flat, str(tmp_path)), flat, np.random.default_rng(0))


def test_memory_is_watched_at_even_steps() -> None:
    episode = {"x": np.zeros((11, 4), np.float32), "reward": np.zeros(10, np.float32)}
    found = measure_memory([episode], ["x", "reward", "next_x"], 2_000, lambda line: None)
    assert found["frames"] == 2_000
    assert found["capacity"] == 20
    assert [p["frames"] for p in found["points"]] == list(range(100, 2_001, 100))


def made_up(lidar: float, rate: float, growth: float) -> dict[str, Any]:
    names = ("Fledge", "LZ4-1 episodes", "LZ4-9 episodes", "CompressedListStorage", "LazyTensorStorage")
    rates = (rate, 1_000.0, 900.0, 2_000.0, 100_000.0)
    buffers = {n: {"sample_rate": r, "bytes_per_frame": lidar} for n, r in zip(names, rates, strict=True)}
    keys = {"lidar": {"raw": 576, "fledge": lidar, "lz4": 100.0, "codec": "packed"}}
    memory = {"frames": 10_000_000, "growth_bytes": growth}
    return {"parts": {"flight": {"keys": keys, "buffers": buffers}}, "memory": memory}


def test_bars_say_what_was_met_and_what_was_not() -> None:
    assert all(row["met"] for row in replay.bars(made_up(50.0, 60_000.0, 0.0)))
    missed = {row["bar"] for row in replay.bars(made_up(90.0, 15_000.0, 2e9)) if not row["met"]}
    assert missed == {
        "flight: LiDAR, raw / ours",
        "flight: transition, LZ4 (each frame once) / ours",
        "flight: sampling, ours / CompressedListStorage",
        "flight: sampling, ours / LazyTensorStorage",
        "memory: growth over 10.0 million frames, MiB",
    }


@pytest.mark.parametrize("name", list(CONTENTS))
def test_contents_are_what_they_say(name: str) -> None:
    episode = next(CONTENTS[name].episodes(30, 0))
    images, title = episode["image"], CONTENTS[name].title
    assert "x".join(map(str, images.shape[1:])) + f" {images.dtype}" in title
    assert len(images) == 31 == len(episode["reward"]) + 1
    again = next(CONTENTS[name].episodes(30, 0))["image"]
    assert np.array_equal(images, again)  # the seed decides
    changed = (images[20] != images[21]).mean()
    assert 0.001 < changed < 0.15 if name == "arcade_rgb" else changed > (0.5 if CONTENTS[name].hard else 0.001)
    if "stack" in name:
        assert np.array_equal(images[1:, ..., :-1], images[:-1, ..., 1:])


def test_the_ring_buffer_is_written_faithfully() -> None:
    content = Content("", lambda rng, n: rng.integers(0, 256, (n, 4, 4), np.uint8), True)
    episodes = list(content.episodes(2_000, 0))
    longest = max(len(e["reward"]) for e in episodes)
    ring = Ring(longest + 300, episodes[0], 0)
    for episode in episodes:  # over the end, more than once
        ring.add(episode)
        with DictReplayBuffer(longest, KEYS) as buffer:
            buffer.add(episode)
            got = ring.get(np.arange(ring.can_sample.sum()))
            begin = int((got["reward"] == float(episode["reward"][0])).nonzero()[0])
            for key, values in buffer.get(np.arange(len(buffer))).items():
                assert key == "index" or torch.equal(got[key][begin : begin + len(buffer)], values)


def test_images_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Content("", lambda rng, n: rng.integers(0, 9, (n, 8, 8), np.uint8), True)
    found = replay_images.measure(content, 1_000, 1, 0)
    assert found["transitions"] == 1_000
    assert json.loads(json.dumps(found)) == found
    get = Ring.get
    monkeypatch.setattr(Ring, "get", lambda self, rows: {**get(self, rows), "reward": -get(self, rows)["reward"]})
    with pytest.raises(FledgeError, match="other 'reward'"):
        replay_images.measure(content, 1_000, 1, 0)


def test_too_little_to_measure_is_refused() -> None:
    with pytest.raises(InputError, match="at least 3000"):
        replay.run(frames=10)
