"""Recordings and runs that were forged end in one sentence, and take a bounded amount of memory."""

from __future__ import annotations

import copy
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge.app.recordings import trajectory
from fledge.app.recordings.recording_cache import MAX_OPEN, RecordingCache
from fledge.app.runs.file_index import FileIndex, make_id
from fledge.app.runs.runs import RunCache, as_page, collect, compare_settings, describe_fully, examine
from fledge.core.errors import FledgeError
from fledge.storage import RecordingWriter
from fledge.storage.recordings.layout import BEGIN, END, HEAD_BYTES, HEADER, LINE, MAX_FRAME, read_head, record
from tests.app.recorded import record_generic
from tests.app.runs.test_runs import make_run

ODD = [
    *("<img src=x onerror=alert(1)>", "\x1b[2J", "\ud800", "x" * 5000, "", None, True, [], {}, -1, 0, 10**400, 1e308),
    *(float("nan"), float("inf"), 2**63, {"$float": "nan"}, {"$array": 10**9}, {"$array": True}, [[[[[1]]]]]),
    *({"$array": ["<f4", [0], ""]}, {"$array": ["<f8", [1], "AAAAAAAA8H8="]}, {"__proto__": 1}, "../../etc/passwd"),
]
Records = list[tuple[int, bytes, int, int, int]]  # kind, payload, episode, first frame, number of frames


def records_of(path: Path) -> Records:
    data, place, found = path.read_bytes(), len(LINE), []
    while place < len(data):
        head = read_head(data[place : place + HEAD_BYTES])
        place += HEAD_BYTES
        found.append((head.kind, data[place : place + head.length], head.episode, head.first, head.frames))
        place += head.length
    return found


def forge(path: Path, records: Records, kind: int, change: Callable[[Any], Any]) -> None:
    """Write the records with valid checksums, after changing the JSON of those of a kind."""
    changed = [(k, json.dumps(change(json.loads(p))).encode() if k == kind else p, *rest) for k, p, *rest in records]
    path.write_bytes(LINE + b"".join(record(*each) for each in changed))


def ask_everything(path: Path) -> list[str]:
    """Ask for everything that a page shows, as JSON; return the sentences of refusals."""
    from starlette.responses import JSONResponse

    cache, id, refused = RecordingCache(FileIndex([path.parent])), make_id(path), []
    questions: list[Callable[[], Any]] = [
        lambda: JSONResponse(cache.list(id)),
        lambda: JSONResponse(cache.summary(cache.entry(id))),
        lambda: cache.episode(id, 0),
        lambda: cache.beams(id, 0, 0, 128),
        lambda: JSONResponse(cache.graph(id, 0, 3)),
    ]
    for question in questions:
        try:
            question()
        except FledgeError as error:
            refused.append(cache.files.hide_path(str(error), id))
    cache.close()
    return refused


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return records_of(record_generic(tmp_path_factory.mktemp("valid") / "x.frec", episodes=1))


def replaced(node: Any, rng: random.Random) -> Any:
    """Return a copy of JSON with an odd value somewhere."""
    node = copy.deepcopy(node)
    at = node
    while True:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.3:
            at[key] = copy.deepcopy(rng.choice(ODD))
            return node
        at = at[key]


@pytest.mark.parametrize("kind", [HEADER, BEGIN, END])
def test_a_recording_with_odd_values_anywhere_is_shown_or_refused_in_a_sentence(
    tmp_path: Path, records: Records, kind: int
) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        forge(tmp_path / "x.frec", records, kind, lambda node, rng=rng: replaced(node, rng))
        for sentence in ask_everything(tmp_path / "x.frec"):
            assert str(tmp_path) not in sentence
            assert sentence.isprintable()


@pytest.mark.parametrize("part", ["scene", "facts"])
@pytest.mark.parametrize("value", [{"$float": "nan"}, {"$array": ["<f4", [0], ""]}])
def test_a_scene_that_is_no_dict_is_damage(tmp_path: Path, records: Records, part: str, value: Any) -> None:
    forge(tmp_path / "x.frec", records, BEGIN, lambda node: {**node, part: value})
    assert any("must be a dict" in sentence for sentence in ask_everything(tmp_path / "x.frec"))


def test_an_array_whose_name_is_no_text_is_shown(tmp_path: Path, records: Records) -> None:
    def change(node: Any) -> Any:
        return {**node, "scene": {"\ud800": {"$array": ["|u1", [99], "A" * 132]}}}

    forge(tmp_path / "x.frec", records, BEGIN, change)
    assert ask_everything(tmp_path / "x.frec") == []


def test_an_episode_that_claims_two_billion_frames_is_read_once(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.storage.recordings.episode import Episode

    calls = []
    monkeypatch.setattr(Episode, "_cut", lambda self, *a, cut=Episode._cut: calls.append(1) or cut(self, *a))
    forge(tmp_path / "x.frec", records, END, lambda node: {**node, "frames": MAX_FRAME})
    assert ask_everything(tmp_path / "x.frec") == []
    assert len(calls) < 20


def test_an_episode_of_large_frames_takes_no_more_memory_than_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory, "MAX_FRAME_BYTES", 2 * 2**20)
    frame = {"pos": np.zeros(3, np.float32), "picture": np.zeros(50_000, np.uint8)}
    with RecordingWriter(tmp_path / "x.frec", "mine", frame, 1.0, when_full="wait") as writer:
        number = writer.begin()
        for _ in range(1500):  # 75 MB, of which every 36th frame is shown
            writer.add(number, frame)
        writer.end(number, "done")
    tracemalloc.start()
    assert ask_everything(tmp_path / "x.frec") == []
    assert tracemalloc.get_traced_memory()[1] < 40e6
    tracemalloc.stop()


def test_as_many_recordings_as_there_are_leave_few_files_open(tmp_path: Path, records: Records) -> None:
    for number in range(30):
        forge(tmp_path / f"{number}.frec", records, HEADER, lambda node: node)
    cache = RecordingCache(FileIndex([tmp_path]))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for entry in cache.files.recordings():
            assert "episodes" in cache.summary(entry)
    assert len(os.listdir("/proc/self/fd")) <= before + MAX_OPEN
    cache.close()


CONFIGS = [
    "total_frames: 0b" + "1" * 20_000,
    "total_frames: .nan",
    'task: "\\uD800"',
    "task: !!binary aGVsbG8=",
    "? [a, b]\n: 1",
    "? {a: 1}\n: 1",
    "a: 2001-13-45",
    "a: !!python/object/apply:os.system [id]",
    "a: " + "[" * 20_000,
    "a: &x [1]\nb: *x",
    "%YAML 9.9\n---\na: 1",
    "a: 1\n---\nb: 2",
    "\x00",
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_run_with_odd_settings_and_metrics_is_shown(tmp_path: Path, config: str) -> None:
    from starlette.responses import JSONResponse

    entry = make_run(tmp_path / "x", config, rows=1100, **{"huge": 1e308, "__proto__": 1, "\ud800": 1, "_recent": 2})
    with open(entry.path / "metrics.jsonl", "ab") as stream:
        stream.write(
            b'[1,2]\n\xff\xfe\n{"step":NaN}\n{"step":1' + b"0" * 400 + b'}\n{"step":1,"lr":' + b"[" * 9999 + b"\n"
        )
    curves = RunCache().curves(entry)
    JSONResponse(
        [RunCache().summaries([entry]), describe_fully(entry, curves), curves.since(), compare_settings([entry])]
    )
    as_page(collect([entry])).encode()


def test_one_verification_at_a_time_does_not_keep_other_requests_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.app.runs import runs

    class Busy:
        def acquire(self, timeout: float) -> bool:
            return False

    entry = make_run(tmp_path / "x")
    (entry.path / "checkpoints").mkdir()
    monkeypatch.setattr(runs, "_examining", Busy())
    assert "Try again" in examine(entry)["trouble"]
