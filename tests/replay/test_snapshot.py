"""Saved with the checkpoint and restored: the same data and the same draws; damage is told, and changes nothing."""

from __future__ import annotations

import copy
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import FledgeError, FormatError, InputError
from fledge.replay import DictReplayBuffer
from fledge.storage import load_checkpoint, save_checkpoint
from tests.replay.counters import KEYS as ROLLOUT_KEYS
from tests.replay.counters import Counters
from tests.replay.golden import FOLDER, LENGTHS, golden_buffer, golden_episode
from tests.replay.plain import KEYS, everything, make_episode


def filled(**options: Any) -> DictReplayBuffer:
    buffer = DictReplayBuffer(90, KEYS, seed=3, **options)
    for number, length in enumerate([20, 35, 7, 30, 18]):  # the first is evicted
        buffer.add(make_episode(number + 1, length))
    return buffer


@pytest.mark.parametrize("layout", ["frame", "chunk", "episode"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_restored_it_continues_the_same_draws(layout: str, prioritized: bool, tmp_path: Path) -> None:
    one = filled(layout=layout, prioritized=prioritized)
    first = one.sample(16)
    if prioritized:
        one.update_priorities(first["index"], torch.arange(1.0, 17.0))
    path = save_checkpoint({"replay": one.state_dict()}, tmp_path / "state.fledge")
    other = DictReplayBuffer(90, KEYS, seed=99, layout=layout, prioritized=prioritized)
    other.load_state_dict(load_checkpoint(path)["replay"])
    for _ in range(3):
        for buffer in (one, other):
            buffer.add(make_episode(50, 25))
        a, b = one.sample(16), other.sample(16)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) for k in a)
        c, d = one.sample_sequences(4, 6), other.sample_sequences(4, 6)
        assert all(torch.equal(c[k], d[k]) for k in c)
    a, b = everything(one), everything(other)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert one.index.evicted_total == other.index.evicted_total
    one.close()
    other.close()


def test_open_episodes_are_saved_too() -> None:
    envs = Counters(3, 1, 0.1)
    one = DictReplayBuffer(500, ROLLOUT_KEYS)
    one.add_rollout(envs.rollout(15))
    other = DictReplayBuffer(500, ROLLOUT_KEYS)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    more = envs.rollout(30)
    for buffer in (one, other):
        buffer.add_rollout(more)
        buffer.flush()
    a, b = (x.get(np.arange(len(x))) for x in (one, other))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_an_empty_buffer_is_saved_and_restored() -> None:
    with DictReplayBuffer(10, KEYS) as one, DictReplayBuffer(10, KEYS) as other:
        other.load_state_dict(one.state_dict())
        assert len(other) == 0
        other.add(make_episode(1, 4))
        assert len(other.sample(3)["id"]) == 3


def test_saving_shares_the_chunks_and_later_adds_do_not_touch_them() -> None:
    buffer = filled()
    state = buffer.state_dict()
    packed = state["stores"][0]["blobs"]["segments"]
    assert all(np.shares_memory(a, b) for a, b in zip(packed, buffer.stores[0].blobs._segments.values(), strict=True))
    kept = [s.copy() for s in packed]
    for number in range(20):
        buffer.add(make_episode(100 + number, 30))
    assert all(np.array_equal(a, b) for a, b in zip(packed, kept, strict=True))


def test_a_state_of_another_buffer_is_refused() -> None:
    state = filled().state_dict()
    with pytest.raises(InputError, match="keys"):
        DictReplayBuffer(90, ["a"]).load_state_dict(state)
    with pytest.raises(FledgeError, match=r"transitions|lengths"):
        DictReplayBuffer(30, KEYS).load_state_dict(state)
    with pytest.raises(InputError, match="no priorities"):
        DictReplayBuffer(90, KEYS, prioritized=True).load_state_dict(state)
    other = DictReplayBuffer(90, KEYS)
    other.add({**make_episode(1, 5), "state": torch.zeros(6, 2)})
    with pytest.raises(InputError, match="state"):
        other.load_state_dict(state)
    assert len(other) == 5


@pytest.mark.parametrize("version", [1, 2])
def test_what_an_older_version_saved_is_read_and_continued(version: int) -> None:
    with golden_buffer(filled=False) as buffer, golden_buffer() as now:
        buffer.load_state_dict(load_checkpoint(FOLDER / f"golden_v{version}.fledge")["replay"])
        episodes = [golden_episode(number) for number in range(1, len(LENGTHS))]
        got = everything(buffer)
        for key in ("map", "image", "stack", "state", "reward"):
            whole = [torch.from_numpy(e[key]) for e in episodes]
            assert torch.equal(
                got[key], torch.cat([v[: len(e["reward"])] for v, e in zip(whole, episodes, strict=True)])
            )
            if key != "reward":
                assert torch.equal(got[f"next_{key}"], torch.cat([v[1:] for v in whole]))
        for _ in range(3):  # the same draws and weights as a buffer that was never saved
            a, b = buffer.sample(32), now.sample(32)
            assert all(torch.equal(a[k], b[k]) for k in b)
            for one in (buffer, now):
                one.add(golden_episode(1))
        state = buffer.state_dict()
        assert state["version"] == 2
        now.load_state_dict(state)


@pytest.mark.parametrize("how", ["size", "level", "short"])
def test_damaged_maps_of_version_1_are_refused(how: str) -> None:
    state = load_checkpoint(FOLDER / "golden_v1.fledge")["replay"]
    place = [row["codec"] for row in state["plan"]].index("bits")
    blobs = state["stores"][place]["blobs"]
    if how == "short":
        blobs["end"][1] -= 4
    else:
        blobs["segments"][0][int(blobs["begin"][0]) + (0 if how == "size" else 4 * 8)] ^= 1
    with golden_buffer(filled=False) as buffer, pytest.raises(FormatError, match="damaged"):
        buffer.load_state_dict(state)


def damage(state: dict[str, Any], how: str) -> None:
    store = state["stores"][0]
    if how == "version":
        state["version"] = 7
    elif how in ("index", "measured"):
        del state[how]
    elif how == "lengths":
        state["index"]["values"] = state["index"]["values"] - 1
    elif how == "outside":
        store["blobs"]["end"] = store["blobs"]["end"] + 10**9
    elif how == "bits":
        store["blobs"]["segments"] = [np.full_like(s, 255) for s in store["blobs"]["segments"]]
    elif how == "shift":
        store["first"] = store["first"] + 1
    elif how == "codec":
        state["plan"][0]["codec"] = "pickle"
    elif how == "rows":
        state["plan"][0]["rows"] = 33
    elif how == "keys":
        state["plan"][0]["keys"] = state["plan"][0]["keys"][1:]
    elif how == "rng":
        state["rng"] = {"bit_generator": "none"}


@pytest.mark.parametrize(
    "how", ["version", "index", "measured", "lengths", "outside", "bits", "shift", "codec", "rows", "keys", "rng"]
)
def test_a_damaged_state_is_refused_and_the_buffer_is_as_it_was(how: str) -> None:
    state = copy.deepcopy(filled().state_dict())
    damage(state, how)
    with filled() as buffer:
        before = everything(buffer)
        with pytest.raises((FormatError, InputError)):
            buffer.load_state_dict(state)
        after = everything(buffer)
        assert all(torch.equal(before[k], after[k]) for k in before)


ODD_VALUES = (
    torch.tensor(3), torch.tensor([1.5, 2.5]), torch.zeros(2**24, dtype=torch.uint8), torch.zeros(10, 0, dtype=torch.uint8),
    np.arange(3), np.array(["a"]), np.float32("nan"), float("nan"), float("inf"), -1, 1, 2**31, 2**62, 2**63, 10**400, 1.5, 1j,
    True, None, "x" * 10_000, b"ab", [], {}, [1, 2], "int64",
)  # fmt: skip


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a state."""
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*above, key))


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    """The same state with another value in one place."""
    if not place:
        return by
    if isinstance(value, dict):
        return {**value, place[0]: replaced(value[place[0]], place[1:], by)}
    return [replaced(item, place[1:], by) if i == place[0] else item for i, item in enumerate(value)]


def read_all(buffer: DictReplayBuffer, state: Any) -> None:
    buffer.load_state_dict(state)
    buffer.flush()
    everything(buffer)
    buffer.sample(4)
    buffer.state_dict()


def forge(layout: str, chosen: Callable[[list[Any]], list[Any]]) -> int:
    """Put odd values into places of a state: each is refused in one short sentence, or the buffer can be used."""
    options: dict[str, Any] = {"layout": layout, "prioritized": layout == "chunk", "decode_threads": 1}
    state = copy.deepcopy(filled(**options).state_dict())
    refused = []
    for place, odd in chosen([(place, odd) for place in places(state) for odd in ODD_VALUES]):
        with DictReplayBuffer(90, KEYS, **options) as buffer:
            try:
                read_all(buffer, replaced(state, place, odd))
            except FledgeError as error:
                refused.append(str(error))
    assert all(len(text) < 400 and "\n" not in text for text in refused)
    return len(refused)


def test_other_values_in_some_places_of_a_state_are_refused_in_one_sentence() -> None:
    assert forge("chunk", lambda cases: random.Random(0).sample(cases, 150)) > 130


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["frame", "chunk", "episode"])
def test_other_values_in_every_place_of_a_state_are_refused_in_one_sentence(layout: str) -> None:
    assert forge(layout, lambda cases: cases) > 1000


@pytest.mark.parametrize(
    ("place", "odd"),
    [
        (("specs", "id", "shape"), torch.zeros(2**26, dtype=torch.uint8)),
        (("index", "evicted_total"), torch.tensor(3)),
        (("stores", 0, "blobs", "segments", 0), np.zeros((10**6, 0), np.uint8)),
        (("stores", 0, "length"), torch.tensor([1.5])),
        (("plan", 0, "rows"), torch.tensor(8)),
        (("keys",), torch.zeros(2**26, dtype=torch.uint8)),
    ],
)
def test_an_array_where_something_else_belongs_is_named_and_costs_no_memory(place: tuple[Any, ...], odd: Any) -> None:
    state = replaced(copy.deepcopy(filled().state_dict()), place, odd)
    with DictReplayBuffer(90, KEYS) as buffer:
        tracemalloc.start()
        with pytest.raises(FormatError, match=f"{'/'.join(map(str, place))}.* instead of .*damaged"):
            buffer.load_state_dict(state)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**22


def test_frames_that_no_chunk_can_hold_are_refused() -> None:
    """The shape of a frame comes from the file too: without a bound, a batch would take any memory."""
    images = {"image": torch.zeros(6, 64, 64)}
    with DictReplayBuffer(90, layout="episode") as buffer:
        buffer.add(images)
        state = copy.deepcopy(buffer.state_dict())
    with DictReplayBuffer(90, layout="episode") as buffer:
        state["specs"]["image"]["shape"] = [2**14, 2**14]
        with pytest.raises(FormatError, match="too small for their frames"):
            buffer.load_state_dict(state)
