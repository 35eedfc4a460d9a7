"""Films: what the page gets of an episode, and what a stranger's recording cannot do."""

from __future__ import annotations

import gc
import json
import struct
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.app.exporters.html import slim
from fledge.app.exporters.json import episode_as_json
from fledge.app.recordings import trajectory
from fledge.app.recordings.episode_payload import NOTHING_HIT, list_episodes, pack_beams, pack_episode
from fledge.app.recordings.recording_cache import RecordingCache
from fledge.app.recordings.trajectory import task_of
from fledge.app.runs.file_index import FileIndex
from fledge.core.errors import FormatError, InputError
from fledge.core.overrides import from_plain
from fledge.envs.placement import EnvPlacement
from fledge.storage import Recording, RecordingWriter
from fledge.tasks.aircombat.view.view import with_energy
from fledge.tasks.registry import find_task
from fledge.tasks.view.objects import objects_in
from fledge.tasks.view.trajectory import Trajectory
from tests.app.recorded import record_flights, record_generic


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Head and arrays, read as the page does."""
    assert data[:4] == b"EPIS"
    length = struct.unpack("<I", data[4:8])[0]
    head = json.loads(data[8 : 8 + length])
    behind = -(-(8 + length) // 8) * 8
    found = {}
    for name, (kind, shape, offset) in head["arrays"].items():
        assert (behind + offset) % 8 == 0
        found[name] = np.frombuffer(data, f"<{kind}", int(np.prod(shape)), behind + offset).reshape(shape)
    return head, found


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return Recording(record_flights(tmp_path_factory.mktemp("recordings") / "flights.frec"))


def test_a_payload_holds_what_was_recorded(flown: Recording) -> None:
    task = task_of(flown)
    told = list_episodes(flown, task)
    assert told["task"] == "navigation"
    assert len(told["episodes"]) == len(flown)
    assert {row["outcome"] for row in told["episodes"]} == set(told["outcomes"])
    head, arrays = unpack(pack_episode(flown, task, 1))
    frames = flown[1].frames()
    np.testing.assert_array_equal(arrays["0/pos"], frames["pos"])
    np.testing.assert_allclose(arrays["time"], flown[1].times(), rtol=1e-6)
    np.testing.assert_allclose(arrays["crowd/pos"], frames["crowd"] / 1000, atol=1e-6)
    assert [actor["kind"] for actor in head["actors"]] == ["drone", "goal"]
    assert {each["name"]: each["unit"] for each in head["instruments"]}["speed"] == "m/s"
    assert not head["flat"]
    assert head["beams"]


def test_boxes_are_the_columns_of_the_map(flown: Recording) -> None:
    from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, SOLID

    _, arrays = unpack(pack_episode(flown, task_of(flown), 0))
    cells = flown[0].scene["cells"].reshape(CELLS, CELLS)
    drawn = np.zeros((CELLS, CELLS))
    for x, y, z, w, d, h in arrays["stage/boxes"]:
        x0, y0 = round((x - w / 2 + HALF_M) / CELL_M), round((y - d / 2 + HALF_M) / CELL_M)
        part = drawn[x0 : x0 + round(w / CELL_M), y0 : y0 + round(d / CELL_M)]
        assert not part.any(), "boxes do not overlap"
        part += h
        assert z == pytest.approx(h / 2)
    np.testing.assert_allclose(
        drawn, np.where(cells >= SOLID, (cells.astype(float) - SOLID) * HEIGHT_STEP, 0), atol=1e-4
    )
    assert len(arrays["stage/boxes"]) < 200


@pytest.mark.parametrize(("sees_movers", "world"), [(False, ""), (True, ""), (False, "pillars")])
def test_beams_are_what_the_drone_observed(sees_movers: bool, world: str) -> None:
    task = find_task("navigation")
    plain = {"num_envs": 8, "num_maps": 1, "starts": "mixed", "inside_share": 1.0, "lidar_sees_movers": sees_movers}
    plain |= {"world": world}
    env = task.make_env(from_plain(task.config, plain), EnvPlacement(seed=5, num_threads=1))
    observed = env.reset()["obs"]["lidar"].numpy()[:, 0]
    frames, scenes = task.view.snapshot(env, range(8)), task.view.scene(env, range(8))
    env.close()
    for k in range(8):
        track = Trajectory({name: value[k][None] for name, value in frames.items()}, scenes[k], "running")
        beams = task.view.beams(track)
        assert beams is not None
        error = np.abs((beams.range_m - beams.distance[0]) - observed[k])
        # beams walk in small steps, and boxes of the crowd count as round: single ones at corners may differ
        assert np.quantile(error, 0.97) < 0.05, k


@pytest.mark.parametrize("name", ["d435", "ouster16"])
def test_beams_of_a_named_sensor_are_some_of_those_that_the_drone_observed(name: str) -> None:
    task = find_task("navigation")
    plain = {"num_envs": 8, "num_maps": 1, "starts": "mixed", "inside_share": 1.0}
    sensor = task.presets.load("sensor", name) | {"perception": {}, "randomize": {}}
    env = task.make_env(from_plain(task.config, plain | sensor), EnvPlacement(seed=5, num_threads=1))
    env.reset()
    for _ in range(8):
        observed = env.step(torch.tensor([0.9, 0.3, 0.5]).expand(8, 3))["obs"]["lidar"].numpy()[:, 0]
    frames, scenes = task.view.snapshot(env, range(8)), task.view.scene(env, range(8))
    env.close()
    assert np.abs(frames["tilt"]).max() > 0.1
    across, up = (-(-size // most) for size, most in zip(observed.shape[1:], (32, 12), strict=True))
    for k in range(8):
        scene = {**scenes[k], "lidar": json.loads(json.dumps(scenes[k]["lidar"]))}
        beams = task.view.beams(Trajectory({key: value[k][None] for key, value in frames.items()}, scene, "running"))
        assert beams is not None
        error = np.abs((beams.range_m - beams.distance[0]) - observed[k, across // 2 :: across, up // 2 :: up])
        assert np.quantile(error, 0.8) < 0.1, k  # the crowd around is that of the twelve nearest movers


def test_packed_beams_are_bytes_of_the_range(flown: Recording) -> None:
    task = task_of(flown)
    head, arrays = unpack(pack_beams(flown, task, 0, 4, 12))
    assert arrays["distance"].shape == (8, 36, 4)
    whole = task.view.beams(Trajectory(**flown.track(0)))
    assert whole is not None
    near = whole.distance[4:12]
    hit = arrays["distance"] != NOTHING_HIT
    np.testing.assert_array_equal(hit, near < whole.range_m * 0.9999)
    np.testing.assert_allclose(arrays["distance"][hit] / 254 * head["beams"]["range_m"], near[hit], atol=0.01)


def test_a_payload_in_pieces_is_the_payload(flown: Recording) -> None:
    task = task_of(flown)
    _, whole = unpack(pack_episode(flown, task, 0))
    half = flown[0].length // 2
    head, rest = unpack(pack_episode(flown, task, 0, start=half, with_stage=False))
    assert head["stage_shapes"] is None
    np.testing.assert_array_equal(rest["0/pos"], whole["0/pos"][half:])
    np.testing.assert_array_equal(rest["time"], whole["time"][half:])
    head, none = unpack(pack_episode(flown, task, 0, start=flown[0].length))
    assert head["frames_here"] == len(none["time"]) == 0


def test_a_long_episode_is_thinned_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(record_generic(tmp_path / "long.frec"))
    monkeypatch.setattr(trajectory, "MAX_FRAMES", 20)
    head, arrays = unpack(pack_episode(recording, task_of(recording), 0))
    assert head["stride"] == 3
    np.testing.assert_allclose(arrays["time"], np.arange(0, 60, 3) * 0.5)


def test_a_world_whose_code_is_not_here_shows_positions_and_figures(tmp_path: Path) -> None:
    recording = Recording(record_generic(tmp_path / "else.frec"))
    head, arrays = unpack(pack_episode(recording, task_of(recording), 0))
    assert head["flat"]
    assert [actor["kind"] for actor in head["actors"]] == ["aircraft", "aircraft", "missile", "missile"]
    assert arrays["0/pos"].shape == (60, 3)
    assert [mark["t"] for mark in head["marks"]] == [5.0]
    assert {each["name"] for each in head["instruments"]} >= {"speed", "fuel kg"}
    assert episode_as_json(recording, task_of(recording), 0)["arrays"]["figure/0"][5] == pytest.approx(600.0)


def test_what_a_stranger_writes_is_text_of_bounded_length(tmp_path: Path) -> None:
    path = tmp_path / "evil.frec"
    frame = {"pos": np.zeros(3, np.float32)}
    with RecordingWriter(
        path, "x" * 5000, frame, 1.0, facts={"a": "\x1b[2J" + "y" * 9000, "n": float("nan")}
    ) as writer:
        episode = writer.begin({"clock_s": float("nan"), "lidar": "no"}, {"<script>": "</script>"})
        writer.add(episode, {"pos": np.float32([np.nan, np.inf, 1e38])})
        writer.end(episode, "</script><script>alert(1)</script>", float("inf"))
    recording = Recording(path)
    task = task_of(recording)
    told = json.dumps(list_episodes(recording, task), allow_nan=False)
    assert "\x1b" not in told
    assert len(told) < 3000
    _, arrays = unpack(pack_episode(recording, task, 0))
    assert np.isfinite(arrays["0/pos"]).all()
    assert not arrays["0/present"].any()


def test_frames_that_are_not_the_tasks_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "false.frec"
    with RecordingWriter(path, "navigation", {"pos": np.zeros(2, np.float32)}, 1.0) as writer:
        episode = writer.begin({"cells": np.zeros(7, np.uint8), "goal": "there"})
        writer.add(episode, {"pos": np.zeros(2, np.float32)})
        writer.end(episode, "success")
    cache = RecordingCache(FileIndex([path]))
    id = cache.files.recordings()[0].id
    assert cache.list(id)["episodes"][0]["outcome"] == "success"
    with pytest.raises(FormatError, match="names the task navigation") as error:
        cache.episode(id, 0)
    assert str(tmp_path) not in cache.files.hide_path(str(error.value), id)
    with pytest.raises(InputError, match="no episode 7"):
        cache.episode(id, 7)
    with pytest.raises(InputError, match="does not exist any more"):
        cache.episode("../../etc/passwd", 0)


def test_a_recording_that_is_being_written_grows_in_the_library(tmp_path: Path) -> None:
    frame = {"pos": np.zeros(3, np.float32)}
    writer = RecordingWriter(tmp_path / "grows.frec", "mine", frame, 1.0)
    episode = writer.begin()
    writer.add(episode, frame)
    writer.drain()
    cache = RecordingCache(FileIndex([tmp_path]))
    id = cache.files.recordings()[0].id
    assert unpack(cache.episode(id, 0))[0]["running"]
    writer.add(episode, frame)
    writer.end(episode, "done")
    writer.close()
    head, arrays = unpack(cache.episode(id, 0, start=1))
    assert not head["running"]
    assert len(arrays["time"]) == 1
    assert cache.list(id)["closed"]


def test_a_training_that_began_another_file_still_answers_about_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "run" / "live").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("task: navigation")
    cache = RecordingCache(FileIndex([tmp_path / "run"]))
    id = cache.files.runs()[0].id
    assert "Asking" in cache.list(id)["waiting"]
    assert (tmp_path / "run" / "live" / "watch").exists(), "asking for the list is watching"
    record_flights(tmp_path / "run" / "live" / "000001.frec")
    assert cache.list(id)["generation"] == "000001.frec"
    record_generic(tmp_path / "run" / "live" / "000002.frec")
    assert cache.list(id)["generation"] == "000002.frec"
    assert unpack(cache.episode(id, 5, generation="000001.frec"))[0]["task"] == "navigation"
    assert unpack(cache.episode(id, 0))[0]["task"] == "elsewhere.py:task"
    with pytest.raises(InputError, match="already deleted"):
        cache.episode(id, 0, generation="../../../etc/passwd")
    (tmp_path / "run" / "live" / "000001.frec").unlink()  # as a training removes its old ones
    cache.list(id)
    assert [Path(path).name for path, _, _ in cache._open] == ["000002.frec"], "what is gone is not kept open"


def test_a_recording_that_is_gone_leaves_memory_without_the_garbage_collector(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "live"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("task: navigation")
    record_flights(folder / "000001.frec")
    cache = RecordingCache(FileIndex([tmp_path / "run"]))
    id = cache.files.runs()[0].id
    assert cache.list(id)["episodes"]
    gone = weakref.ref(next(iter(cache._open.values())).recording)
    record_flights(folder / "000002.frec")
    gc.disable()
    try:
        with cache._find(id, 0, "000001.frec") as (recording, _):
            (folder / "000001.frec").unlink()
            cache.list(id)
            assert len(recording[0].frames()["pos"]) > 1, "another request is still reading it"
        del recording
        assert gone() is None
    finally:
        gc.enable()


def test_a_missile_has_the_energy_that_its_speed_leaves_it() -> None:
    speeds = np.float32([[[150.0, 200.0]], [[700.0, 1200.0]], [[1300.0, 0.0]]])  # [T, side, slot]
    pos = np.zeros((3, 1, 2, 2), np.float32)
    frames = {"pos": np.zeros((3, 1, 2), np.float32), "missile_pos": pos, "missile_speed": speeds}
    track = with_energy(Trajectory(frames, {}, "win"))
    energies = [thing.energy for thing in objects_in(track)]
    assert energies[0] is None, "a fighter has a speed, no energy of this kind"
    assert np.allclose(energies[1], [0.0, 0.3214, 1.0], atol=1e-3)
    assert np.allclose(energies[2], [0.0, 1.0, 0.0])


def test_a_graph_is_saved_without_what_is_not_drawn_and_short() -> None:
    graph = {
        "range_m": 29_400.37,
        "closing": np.float32(0.1234),
        "sides": [{"rings": [1], "hit_s": None, "words": "a"}],
    }
    graph["sides"] += [{"reach_m": [1.0, float("nan")], "points": [[1, 2]], "told": True}]
    assert slim(graph) == {
        "range_m": 29_400,
        "closing": 0.12,
        "sides": [{"hit_s": None, "words": "a"}, {"reach_m": [1, None], "told": True}],
    }
