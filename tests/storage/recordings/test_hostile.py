"""A damaged or hostile file gives one FormatError, or plays up to the damage; it never runs away."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from fledge.core.errors import FledgeError, FormatError, StorageError
from fledge.storage import Recording
from fledge.storage.recordings import layout
from tests.storage.recordings.flights import check, write

ROUNDS = 400
LENGTHS = [60, 25, 3]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.frec"
    write(path, LENGTHS, block_frames=20)
    return path.read_bytes()


def records(data: bytes) -> list[tuple[layout.Head, bytes]]:
    place, found = len(layout.LINE), []
    while place < len(data):
        head = layout.read_head(data[place : place + layout.HEAD_BYTES])
        place += layout.HEAD_BYTES
        found.append((head, data[place : place + head.length]))
        place += head.length
    return found


def seal(found: list[tuple[layout.Head, bytes]]) -> bytes:
    """A file of these records, with checksums that fit, whatever is in them."""
    data = layout.LINE
    for head, payload in found:
        check = xxhash.xxh3_64_intdigest(payload)
        start = struct.pack(
            "<2sBxIIIIQ", b"\x89R", head.kind, head.episode, head.first, head.frames, len(payload), check
        )
        data += start + struct.pack("<I", xxhash.xxh3_64_intdigest(start) & 0xFFFFFFFF) + payload
    return data


def play(path: Path) -> list[FledgeError]:
    """Read all that can be read; returns what was wrong."""
    wrong = []
    try:
        with Recording(path) as recording:
            recording.outcomes()
            for episode in recording:
                try:
                    assert isinstance(episode.scene, dict)
                    assert isinstance(episode.facts, dict)
                    assert all(len(value) == episode.recorded for value in episode.frames().values())
                    assert len(episode.index()) == len(episode.times()) == episode.recorded
                except FledgeError as error:
                    wrong.append(error)
            if recording.damage:
                wrong.append(FormatError(f"{path}: {recording.damage}"))
    except FledgeError as error:
        wrong.append(error)
    return wrong


def check_errors(wrong: list[FledgeError], path: Path) -> None:
    for error in wrong:
        assert isinstance(error, FormatError)
        assert str(path) in str(error)
        assert "\n" not in str(error)
        assert len(str(error)) < 600


def test_a_file_cut_anywhere_plays_up_to_there(tmp_path: Path, whole: bytes) -> None:
    path, seen, heads = tmp_path / "cut.frec", 0, 0
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        try:
            recording = Recording(path)
        except FormatError:
            heads += 1
            continue
        with recording:
            assert recording.damage is None
            assert not recording.closed
            now = check(recording)
        assert now >= seen
        seen = now
    assert heads * 3 < 400  # only a file without its head is none
    assert seen == sum(LENGTHS)


def test_a_changed_byte_anywhere_is_noticed_and_what_is_before_it_plays(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "changed.frec"
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        noticed = False
        try:
            with Recording(path) as recording:
                noticed = recording.damage is not None or not recording.closed
                for episode in recording:
                    try:
                        episode.frames()
                        assert isinstance(episode.scene, dict)
                    except FormatError:
                        noticed = True
                    else:
                        assert episode.frames()["n"].tolist() == (100_000 * episode.number + episode.index()).tolist()
        except FormatError:
            noticed = True
        assert noticed, f"byte {place}"


def mutate(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(max(1, len(out)))
        kind = chance.randrange(5)
        if kind == 0:
            out[place : place + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del out[place : place + chance.randint(1, 40)]
        elif kind == 2:
            out[place:place] = chance.randbytes(chance.randint(1, 40))
        elif kind == 3:
            out[place : place + 4] = struct.pack("<I", chance.choice([0, 1, 2**31, 2**32 - 1, 2**20]))
        else:
            start = chance.randrange(max(1, len(out)))
            out[place:place] = out[start : start + 60]
    return bytes(out)


def test_mutated_files_give_one_error_or_play(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "mutated.frec"
    for seed in range(ROUNDS):
        path.write_bytes(mutate(whole, random.Random(seed)))
        check_errors(play(path), path)


def test_mutated_records_with_fitting_checksums_give_one_error_or_play(tmp_path: Path, whole: bytes) -> None:
    """Checksums are no secret: whoever forges a file forges them too."""
    path, found = tmp_path / "forged.frec", records(whole)
    tracemalloc.start()
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        forged = list(found)
        for _ in range(chance.randint(1, 3)):
            k = chance.randrange(len(forged))
            head, payload = forged[k]
            if chance.random() < 0.3:
                field = chance.choice(["kind", "episode", "first", "frames"])
                limit = 7 if field == "kind" else chance.choice([4, 100, 2**31])
                head = head._replace(**{field: chance.randrange(limit)})
            else:
                payload = mutate(payload, chance)
            forged[k] = (head, payload)
        if chance.random() < 0.2:
            chance.shuffle(forged)
        path.write_bytes(seal(forged))
        check_errors(play(path), path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * 2**20


def forge(whole: bytes, kind: int, **change: Any) -> bytes:
    """The file with values of its first record of a kind changed."""
    found = records(whole)
    k = next(k for k, (head, _) in enumerate(found) if head.kind == kind)
    head, payload = found[k]
    if "json" in change:
        payload = json.dumps({**json.loads(payload), **change.pop("json")}).encode()
    if "payload" in change:
        payload = change.pop("payload")
    found[k] = (head._replace(**change), payload)
    return seal(found)


DEEP = b'{"scene":' + b"[" * 100_000 + b"]" * 100_000 + b',"facts":{}}'
NESTED = b'{"scene":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b',"facts":{}}'
FORGED: dict[str, dict[str, Any]] = {
    "huge frames": {"kind": layout.HEADER, "json": {"fields": [["x", "<f8", [2**40]]]}},
    "objects": {"kind": layout.HEADER, "json": {"fields": [["x", "|O", [1]]]}},
    "no fields": {"kind": layout.HEADER, "json": {"fields": []}},
    "empty fields": {"kind": layout.HEADER, "json": {"fields": [["x", "<f8", [0]]]}},
    "twins": {"kind": layout.HEADER, "json": {"fields": [["x", "<f8", []]] * 2}},
    "a path": {"kind": layout.HEADER, "json": {"fields": [["../../x", "<f8", []]]}},
    "no time": {"kind": layout.HEADER, "json": {"seconds_per_frame": 0.0}},
    "no task": {"kind": layout.HEADER, "json": {"task": 3}},
    "facts": {"kind": layout.HEADER, "json": {"facts": {"$array": 0}}},
    "no JSON": {"kind": layout.HEADER, "payload": b"\xff\xfe"},
    "long number": {"kind": layout.HEADER, "payload": b'{"task":' + b"9" * 10_000 + b"}"},
    "deep": {"kind": layout.BEGIN, "payload": DEEP},
    "nested": {"kind": layout.BEGIN, "payload": NESTED},
    "no scene": {"kind": layout.BEGIN, "json": {"scene": 3}},
    "array of nowhere": {"kind": layout.BEGIN, "json": {"scene": {"x": {"$array": 12}}}},
    "array before the first": {"kind": layout.BEGIN, "json": {"scene": {"x": {"$array": -1}}}},
    "array without bytes": {"kind": layout.BEGIN, "json": {"scene": {"x": {"$array": ["<f4", [2**23], ""]}}}},
    "array of objects": {"kind": layout.BEGIN, "json": {"scene": {"x": {"$array": ["|O", [1], "AAAAAAAA"]}}}},
    "array of text": {"kind": layout.BEGIN, "json": {"scene": {"x": {"$array": ["<f4", [1], "!!!"]}}}},
    "array that unfolds": {"kind": layout.ARRAY, "payload": b'["|u1",[67000000]]\n' + struct.pack("<BI", 4, 40) + b"x" * 40},
    "frames that unfold": {"kind": layout.FRAMES, "frames": 2**31 - 1},
    "frames of no episode": {"kind": layout.FRAMES, "episode": 77},
    "frames of no field": {"kind": layout.FRAMES, "payload": b""},
    "an endless outcome": {"kind": layout.END, "json": {"outcome": "x" * 1000}},
    "a negative length": {"kind": layout.END, "json": {"frames": -3}},
    "an endless length": {"kind": layout.END, "json": {"frames": 2**60}},
    "a return of text": {"kind": layout.END, "json": {"return": "much"}},
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_forged_records_are_refused_without_taking_memory(tmp_path: Path, whole: bytes, case: str) -> None:
    change = dict(FORGED[case])
    path = tmp_path / "forged.frec"
    path.write_bytes(forge(whole, change.pop("kind"), **change))
    tracemalloc.start()
    wrong = play(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert wrong
    check_errors(wrong, path)
    assert peak < 32 * 2**20


def test_a_scene_that_names_one_array_many_times_unpacks_it_once(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "many.frec"
    path.write_bytes(forge(whole, layout.BEGIN, json={"scene": {"x": [{"$array": 0}] * 10_000}}))
    scene = Recording(path)[0].scene
    assert len({id(array) for array in scene["x"]}) == 1


def test_a_foreign_file_and_a_newer_version_get_one_sentence_each(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.frec"
    for data in (b"", b"\n", b"PK\x03\x04" + bytes(100), b"fledge-record", np.random.default_rng(0).bytes(5000)):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"is not a Fledge recording: give one"):
            Recording(path)
    for version in (2, 10, 999_999):
        path.write_bytes(b"fledge-recording %d\n" % version + whole[19:])
        with pytest.raises(FormatError, match=rf"of version {version}, but this Fledge reads version 1: use"):
            Recording(path)
    path.write_bytes(b"fledge-recording x\n" + whole[19:])
    with pytest.raises(FormatError, match="damaged in its first line"):
        Recording(path)
    with pytest.raises(StorageError, match="cannot be read"):
        Recording(tmp_path / "nothing.frec")
    with pytest.raises(StorageError, match="cannot be read"):
        Recording(tmp_path)
