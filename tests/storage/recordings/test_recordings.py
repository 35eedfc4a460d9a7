"""Recordings are read back as written, completely or in part, and are small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fledge.core.errors import ConfigError, InputError
from fledge.storage import Recording, RecordingWriter, is_recording
from fledge.storage.recordings import layout, values
from tests.storage.recordings.flights import FRAME, STEP, check, frames_of, same, scene_of, write

DUEL = {
    "pos": ((2, 2), "f4"), "heading": ((2,), "f4"), "speed": ((2,), "f4"), "alive": ((2,), "?"),
    "missile_pos": ((2, 6, 2), "f4"), "missile_heading": ((2, 6), "f4"), "missile_speed": ((2, 6), "f4"),
    "missile_alive": ((2, 6), "?"), "time_s": ((), "f4"),
}  # fmt: skip


def test_episodes_come_back_with_scene_outcome_return_facts_and_every_frame(tmp_path: Path) -> None:
    stats = write(tmp_path / "a.frec", [300, 20, 0, 1, 600])
    with Recording(tmp_path / "a.frec") as recording:
        assert (recording.task, recording.facts, recording.seconds_per_frame) == ("toy", {"seed": 7}, STEP)
        assert recording.closed
        assert recording.damage is None
        assert [e.length for e in recording] == [e.recorded for e in recording] == [300, 20, 0, 1, 600]
        assert [e.outcome for e in recording] == ["loss", "win", "loss", "win", "loss"]
        assert [e.total_return for e in recording] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert [e.facts["episode"] for e in recording] == [0, 1, 2, 3, 4]
        assert recording.outcomes() == {"loss": 3, "win": 2}
        assert recording[-1].seconds == 600 * STEP
        assert all(e.complete for e in recording)
        assert check(recording) == 921 == stats["frames"]
        assert same(recording[4].scene, scene_of(4))


def test_a_part_of_an_episode_is_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.frec", [1000], block_frames=100)
    recording = Recording(tmp_path / "a.frec")
    read = []
    monkeypatch.setattr(recording, "_unpack", lambda b, f, own=recording._unpack: read.append((b, [*f])) or own(b, f))
    part = recording[0].frames(["n"], start=250, stop=410)
    assert part["n"].tolist() == list(range(250, 410))
    assert [(block.head.first, names) for block, names in read] == [(200, ["n"]), (300, ["n"]), (400, ["n"])]
    assert recording[0].times(250, 252).tolist() == [250 * STEP, 251 * STEP]
    assert len(recording[0].frames(start=5000)["pos"]) == 0


def test_a_map_that_many_episodes_share_is_stored_once(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
    with RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP) as writer:
        for k in range(20):
            writer.end(writer.begin({"cells": noise, "deep": [{"again": noise}], "k": k}), "win")
    assert (tmp_path / "a.frec").stat().st_size < 110_000
    recording = Recording(tmp_path / "a.frec")
    assert all(np.array_equal(e.scene["cells"], noise) for e in recording)
    assert recording[3].scene["deep"][0]["again"] is recording[3].scene["cells"]


def test_a_duel_with_missiles_fits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = {k: (rng.normal(size=(90, *shape)) > 0.2).astype(d) for k, (shape, d) in DUEL.items()}
    with RecordingWriter(tmp_path / "a.frec", "duel", {k: v[0] for k, v in frames.items()}, 1.0) as writer:
        episode = writer.begin()
        for t in range(90):
            writer.add(episode, {k: v[t] for k, v in frames.items()})
        writer.end(episode, "draw")
    back = Recording(tmp_path / "a.frec")[0].frames()
    for name, value in frames.items():
        assert back[name].dtype == value.dtype
        assert np.array_equal(back[name], value)


def test_smooth_paths_take_a_fraction_of_their_bytes(tmp_path: Path) -> None:
    t = np.arange(2000)[:, None] * 0.1
    path = np.concatenate([t * 2.0, np.sin(t), 1.0 + 0.1 * np.cos(t)], axis=1).astype(np.float32)
    with RecordingWriter(tmp_path / "a.frec", "toy", {"pos": path[0]}, 0.1) as writer:
        episode = writer.begin()
        writer.add_many(episode, {"pos": path})
        writer.end(episode, "win")
    assert writer.stats()["file_bytes"] < 0.6 * path.nbytes


dtypes = st.sampled_from(["f2", "f4", "f8", "i1", "u2", "i4", "u8", "?"])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 40), block=st.integers(1, 17))
def test_any_field_of_any_type_and_shape_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, count: int, block: int
) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    values = data.draw(hnp.arrays(data.draw(dtypes), (count, *shape)))
    path = tmp_path_factory.mktemp("any") / "a.frec"
    frame = {"x": values[0], "clock": np.float32(0)}
    with RecordingWriter(path, "toy", frame, 1.0, block_frames=block, when_full="wait") as writer:
        episode = writer.begin()
        writer.add_many(episode, {"x": values, "clock": np.zeros(count, np.float32)})
        writer.end(episode, "win")
    back = Recording(path)[0].frames()["x"]
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(scene=st.dictionaries(st.text("xyz", max_size=4), plain, max_size=4))
def test_any_plain_scene_comes_back(tmp_path_factory: pytest.TempPathFactory, scene: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("any") / "a.frec"
    with RecordingWriter(path, "toy", FRAME, STEP) as writer:
        writer.end(writer.begin(scene), "win")
    assert repr(Recording(path)[0].scene) == repr(scene)  # repr: nan is nan


def test_a_new_recording_takes_the_place_of_an_old_one_whose_readers_read_on(tmp_path: Path) -> None:
    write(tmp_path / "a.frec", [50])
    old = Recording(tmp_path / "a.frec")
    write(tmp_path / "a.frec", [9, 9])
    assert check(old) == 50
    assert len(Recording(tmp_path / "a.frec")) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.frec"]


def test_a_recording_is_told_from_other_files(tmp_path: Path) -> None:
    write(tmp_path / "a.frec", [5])
    (tmp_path / "b").write_text("fledge")
    assert is_recording(tmp_path / "a.frec")
    assert not is_recording(tmp_path / "b")
    assert not is_recording(tmp_path / "nothing")
    assert not is_recording(tmp_path)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        ({}, "has 0 entries"),
        ({"a b\n": 1.0}, "entry named"),
        ({"x": np.array(["text"])}, "numbers and booleans only"),
        ({"x": np.zeros((0, 3))}, "0 bytes"),
        ({"x": np.zeros((1,) * 9)}, "axes"),
    ],
)
def test_frames_that_cannot_be_recorded_are_refused_in_a_sentence(
    tmp_path: Path, frame: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        RecordingWriter(tmp_path / "a.frec", "toy", frame, 1.0)
    assert not list(tmp_path.iterdir())


def test_misuse_gets_a_sentence_and_leaves_the_recording_whole(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP) as writer:
        episode = writer.begin()
        frame = {k: v[0] for k, v in frames_of(0, 0, 1).items()}
        for wrong, sentence in (
            ({**frame, "pos": np.zeros(3, np.float32)}, "but must be"),
            ({**frame, "n": 1.5}, "but must be"),
            ({"pos": frame["pos"]}, "but must have"),
        ):
            with pytest.raises(InputError, match=sentence):
                writer.add(episode, wrong)
        with pytest.raises(InputError, match="the same number"):
            writer.add_many(episode, {**frames_of(0, 0, 3), "n": np.zeros(2, np.int32)})
        with pytest.raises(InputError, match="is not running"):
            writer.add(99, frame)
        with pytest.raises(InputError, match="holds a set"):
            writer.begin({"x": {"y": {1, 2}}})
        with pytest.raises(InputError, match="begin with"):
            writer.begin({"$array": 1})
        with pytest.raises(InputError, match="characters"):
            writer.end(episode, "x" * 100)
        writer.add(episode, frame)
        writer.end(episode, "win")
    recording = Recording(tmp_path / "a.frec")
    assert recording.outcomes() == {"win": 1}
    with pytest.raises(InputError, match="no episode 1"):
        recording[1]
    with pytest.raises(InputError, match="no field 'speed'"):
        recording[0].frames(["speed"])


@pytest.mark.parametrize("option", ["max_bytes", "max_episodes", "max_frames", "block_frames", "queue_bytes"])
def test_bounds_below_one_are_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is 0"):
        RecordingWriter(tmp_path / "a.frec", "toy", FRAME, 1.0, **{option: 0})


BIG = np.broadcast_to(np.float32(0), (17, 2**20))  # 68 MiB without memory of its own


@pytest.mark.parametrize(
    ("scene", "sentence"),
    [
        ({"a": BIG}, r"scene\['a'\] is an array .* at most 8 axes and 67108864 bytes"),
        ({"a": [{"b": np.zeros((1,) * 9)}]}, "at most 8 axes"),
        ({"a": [BIG[:16]] * 17}, "the arrays of an episode's scene and facts take 1140850688 bytes"),
        ({"a": "x" * 2**22}, "at most 4194304 are allowed"),
        ({"a": "\ud800"}, "half of a surrogate pair"),
    ],
    ids=["array", "axes", "arrays", "text", "surrogate"],
)
def test_what_a_reader_would_refuse_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: dict[str, object], sentence: str
) -> None:
    monkeypatch.setattr(values.np, "array", lambda array, *_, **__: array)  # no copies of large arrays
    with RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP) as writer:
        for scene_and_facts in ((scene, {}), ({}, scene)):
            with pytest.raises(InputError, match=sentence.replace("scene\\[", r"(scene|facts)\[")):
                writer.begin(*scene_and_facts)
        writer.end(writer.begin({"ok": 1}), "win")
    assert Recording(tmp_path / "a.frec")[0].scene == {"ok": 1}


def test_facts_may_hold_arrays(tmp_path: Path) -> None:
    small, large = np.arange(3), np.arange(1000)
    with RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP, facts={"a": small}) as writer:
        writer.end(writer.begin({}, {"a": large}), "win")
    recording = Recording(tmp_path / "a.frec")
    assert np.array_equal(recording.facts["a"], small)
    assert np.array_equal(recording[0].facts["a"], large)
    with pytest.raises(InputError, match="facts holds an array of 8000 bytes"):
        RecordingWriter(tmp_path / "b.frec", "toy", FRAME, STEP, facts={"a": large})


def test_a_block_of_noise_of_the_largest_size_is_written(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, layout.MAX_BLOCK_BYTES, np.uint8)
    assert len(layout.record(layout.ARRAY, values.pack_array(noise))) > layout.MAX_BLOCK_BYTES


@pytest.mark.parametrize(("start", "stop"), [(-5, None), (0, -5), (-500, 3), (15, 100), (5, 2), (None, None)])
def test_a_range_of_frames_means_what_a_slice_means(tmp_path: Path, start: int, stop: int | None) -> None:
    write(tmp_path / "a.frec", [20], block_frames=6)
    episode = Recording(tmp_path / "a.frec")[0]
    assert np.array_equal(episode.frames(["n"], start, stop)["n"], episode.frames(["n"])["n"][start:stop])
    assert episode.index(start, stop).tolist() == list(range(20))[start:stop]
    with pytest.raises(InputError, match="must be whole numbers"):
        episode.frames(start=1.5)  # type: ignore[arg-type]


def test_wrong_types_get_a_sentence(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "a.frec", "toy", {"x": np.float32(0)}, STEP) as writer:
        episode = writer.begin()
        writer.add(episode, {"x": torch.tensor(2.0, requires_grad=True)})  # its value is recorded
        writer.add_many(episode, {"x": torch.ones(3)})  # type: ignore[dict-item]
        for wrong in (torch.ones((), dtype=torch.bfloat16), [[1], [2, 3]]):
            with pytest.raises(InputError, match="frame entry x cannot be converted"):
                writer.add(episode, {"x": wrong})
        with pytest.raises(InputError, match="frame entry x is float32"):
            writer.add_many(episode, {"x": np.float32(1)})  # type: ignore[dict-item]
        for outcome in (None, 3):
            with pytest.raises(InputError, match=f"outcome is {outcome}, but must be a text"):
                writer.end(episode, outcome)  # type: ignore[arg-type]
        for total in ("a", None, [1, 2]):
            with pytest.raises(InputError, match=r"total_return is .*, but must be one number"):
                writer.end(episode, "win", total)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="surrogate"):
            writer.end(episode, "\ud800")
        writer.end(episode, "win", 1.0)
    recording = Recording(tmp_path / "a.frec")
    assert recording[0].frames()["x"].tolist() == [2, 1, 1, 1]
    for wrong in (slice(0, 1), "0", 0.5):
        with pytest.raises(InputError, match="must be a number"):
            recording[wrong]  # type: ignore[index]
