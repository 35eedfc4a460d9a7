"""Whatever is written can be read, as what it was; whatever cannot be kept is refused."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import FormatError, InputError
from fledge.storage import CheckpointHistory, convert_checkpoint, load_checkpoint, save_checkpoint
from fledge.storage.format import flattening, writer
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.tree import MAX_DEPTH, unflatten
from fledge.storage.format.writer import member_names
from fledge.storage.format.zip_archive import safe_name
from tests.storage.states import assert_same, state_at


@pytest.mark.parametrize(
    "value",
    [
        [0.0] * 20_000,
        "a" * 5_000_000,
        {str(i): 0 for i in range(10_000)},
        [[]] * 50_000,
        2**390_000,
        ["\ud800", "\x00", "\u202e"],
    ],
    ids=["zeros", "text", "keys", "lists", "number", "surrogates"],
)
def test_long_plain_values_come_back(tmp_path: Path, value: Any) -> None:
    assert load_checkpoint(save_checkpoint({"x": value, "w": torch.ones(3)}, tmp_path / "a"))["x"] == value
    history = CheckpointHistory(tmp_path / "run")
    for step in range(3):
        history.save({"model": torch.ones(3), "x": value}, step)
    assert history.load_latest()[0]["x"] == value


@pytest.mark.parametrize(
    "value", [[0] * 5_000_000, "\U0001f600" * 4_000_000, 2**500_000], ids=["list", "text", "number"]
)
def test_more_than_a_file_may_hold_is_refused_and_leaves_nothing(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError):
        save_checkpoint({"x": value}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_we_could_not_open_never_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = save_checkpoint(state_at(1), tmp_path / "a")
    before = kept.read_bytes()
    monkeypatch.setattr(writer, "member_names", lambda leaves: ["../up", *map(str, range(1, len(leaves)))])
    with pytest.raises(FormatError, match="only plain relative names"):
        save_checkpoint(state_at(2), tmp_path / "a")
    assert kept.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.fledge"]


def deep(levels: int) -> Any:
    state: Any = torch.ones(1)
    for _ in range(levels):
        state = {"x": state}
    return state


def test_the_deepest_state_that_is_taken_can_be_read_deep_in_a_program(tmp_path: Path) -> None:
    path = save_checkpoint(deep(MAX_DEPTH), tmp_path / "a")

    def further_down(levels: int) -> Any:
        return load_checkpoint(path) if levels == 0 else further_down(levels - 1)

    assert_same(further_down(200), deep(MAX_DEPTH))
    with pytest.raises(InputError, match="deep"):
        save_checkpoint(deep(MAX_DEPTH + 1), tmp_path / "b")


def test_cycles_and_endless_sharing_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flattening, "MAX_NODES", 2**16)  # the millions that are allowed take seconds
    cycle: list[Any] = [1]
    cycle.append(cycle)
    shared: Any = [0]
    for _ in range(60):
        shared = [shared, shared]
    for state in (cycle, shared):
        with pytest.raises(InputError, match="break the cycle"):
            save_checkpoint({"x": state}, tmp_path / "a")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.text(max_size=300), max_size=3), max_size=12))
def test_every_key_gives_a_member_name_that_the_reader_takes(keys: list[list[str]]) -> None:
    names = member_names([Leaf(tuple(path), "bytes", "uint8", (0,), 0) for path in keys])
    assert len(set(names)) == len(names)
    assert all(safe_name(name) and name != "manifest.json" for name in names), names


def test_thousands_of_keys_that_shorten_to_one_name_take_no_quadratic_time(tmp_path: Path) -> None:
    names = member_names([Leaf(("\u00e9" * 300,), "bytes", "uint8", (0,), 0)] * 30_000)
    assert len(set(names)) == 30_000


@pytest.mark.parametrize("dots", ["..", "."])
def test_a_key_that_is_cut_to_one_that_leads_upwards_is_harmless(tmp_path: Path, dots: str) -> None:
    state = {"x" * 300 + dots: {"y" * (200 - 1 - len(dots)): torch.ones(3)}}
    assert_same(load_checkpoint(save_checkpoint(state, tmp_path / "a")), state)


class Colour(str, enum.Enum):  # noqa: UP042 - str() of these gives their name, of a StrEnum its value
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


Point = namedtuple("Point", "x y")


def test_types_come_back_as_they_were(tmp_path: Path) -> None:
    ordered = OrderedDict(b=1, a=torch.ones(2))
    state = {
        "counter": Counter({3: 2, "x": 1}),
        "ordered": ordered,
        "default": defaultdict(list, {"a": [1]}),
        "default of dict": defaultdict(dict, {1: {"step": torch.tensor(1.0)}}),
        "no default": defaultdict(None, {"a": 1}),
        "size": torch.Size([2, 3]),
    }
    loaded = load_checkpoint(save_checkpoint(state, tmp_path / "a"))
    assert_same(loaded, state)
    assert loaded["default"]["new"] == []
    assert load_checkpoint(tmp_path / "a", keys=["ordered/a"])["ordered"].keys() == {"a"}


def test_enums_come_back_as_the_values_they_equal(tmp_path: Path) -> None:
    state = {"colour": Colour.RED, Colour.RED: Level.LOW}
    loaded = load_checkpoint(save_checkpoint(state, tmp_path / "a"))
    assert loaded == state == {"colour": "red", "red": 1}


def test_schedulers_go_on_after_a_resume(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    loaded = load_checkpoint(save_checkpoint(scheduler.state_dict(), tmp_path / "a"))
    assert type(loaded["milestones"]) is Counter
    scheduler.load_state_dict(loaded)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


class Versioned(torch.nn.Module):
    """Renames its weight when it loads what an older version saved."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.migrated = 0

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        self.migrated += local_metadata.get("version", 1) < 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


@pytest.mark.parametrize("suffix", ["", ".pt", ".safetensors"])
def test_versioned_modules_do_not_migrate_twice(tmp_path: Path, suffix: str) -> None:
    net = torch.nn.Sequential(Versioned())
    path = save_checkpoint({"model": net.state_dict()}, tmp_path / "a")
    if suffix:
        convert_checkpoint(path, tmp_path / f"b{suffix}")
        path = tmp_path / f"b{suffix}"
    loaded = load_checkpoint(path)["model"]
    assert loaded._metadata == net.state_dict()._metadata
    net.load_state_dict(loaded)
    assert net[0].migrated == 0
    history = CheckpointHistory(tmp_path / "run", keep_whole=1)
    for step in range(2):
        history.save({"model": net.state_dict(), "optimizer": torch.ones(3)}, step)
    thin = history.load(history.entries()[0])
    assert thin["model"]._metadata == net.state_dict()._metadata
    assert list(thin) == ["model"]


def with_attribute(value: Any) -> Any:
    value.unit = "m"
    return value


@pytest.mark.parametrize(
    "metadata",
    [
        OrderedDict(),
        OrderedDict({"": {"version": 2}, "a.b": {"version": 0}}),
        OrderedDict({"": {"version": 2**40}}),
        OrderedDict({"": {"version": True}}),
        OrderedDict({"": {"version": None}}),
        OrderedDict({"": {}}),
        OrderedDict({"": {"version": 1, "assign_to_params_buffers": True}}),
        OrderedDict({"": {"other": 1}}),
        OrderedDict({0: {"version": 1}}),
        {"": {"version": 1}},
        "text",
    ],
    ids=str,
)
def test_a_modules_metadata_of_any_kind_comes_back(tmp_path: Path, metadata: Any) -> None:
    state: Any = OrderedDict(w=torch.ones(2))
    state._metadata = metadata
    loaded = load_checkpoint(save_checkpoint(state, tmp_path / "a"))
    assert_same(loaded, state)
    assert_same(loaded._metadata, metadata)


CHANGING = {
    "namedtuple": Point(1, 2),
    "dict": type("Own", (dict,), {})(a=1),
    "list": type("Own", (list,), {})([1]),
    "factory": defaultdict(lambda: 1),
    "attributes": with_attribute(OrderedDict(a=1)),
    "counter": with_attribute(Counter("a")),
    "return type": torch.max(torch.ones(2, 2), 0),
}


@pytest.mark.parametrize("value", CHANGING.values(), ids=CHANGING)
def test_types_that_would_change_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match="come back as another type: convert it first"):
        save_checkpoint({"x": value}, tmp_path / "a")
    with pytest.raises(InputError):
        save_checkpoint({"x": UserDict()}, tmp_path / "a")


KEYS = st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20))
STATES = st.recursive(
    PLAIN,
    lambda inside: st.one_of(
        st.lists(inside, max_size=4),
        st.lists(inside, max_size=4).map(tuple),
        st.dictionaries(KEYS, inside, max_size=4),
        st.dictionaries(KEYS, inside, max_size=4).map(OrderedDict),
        st.dictionaries(KEYS, st.integers(), max_size=4).map(Counter),
        st.dictionaries(KEYS, inside, max_size=4).map(lambda content: defaultdict(int, content)),
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(STATES)
def test_every_plain_state_comes_back_equal_and_of_the_same_types(state: Any) -> None:
    import json

    node, leaves = flatten(state)
    again = unflatten(json.loads(json.dumps(node)), leaves.__getitem__)
    assert_same(again, state)
