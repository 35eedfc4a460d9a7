"""RolloutStorage keeps what TensorDicts hold: any axes, any keys, any plain values; parts of it are what was asked for."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, tensorclass

from fledge.core.errors import FledgeError, InputError
from fledge.storage import RolloutStorage, receive, send
from fledge.storage.format import rollout as rollout_format
from tests.storage.states import assert_same

T, N = 4, 3


def there_and_back(folder: Path, data: Any, **part: Any) -> Any:
    """Return a rollout after saving and loading; sending and receiving must give the same."""
    with RolloutStorage(folder) as storage:
        storage.save(data, 1).wait(60)
        got = storage.load(1, **part)
    if not part:
        wire = io.BytesIO()
        send(data, wire)
        wire.seek(0)
        sent = receive(wire)
        assert sent is not None
        assert_alike(sent, got)
    return got


def assert_alike(one: Any, other: Any) -> None:
    assert one.batch_size == other.batch_size
    assert one.names == other.names
    assert list(one.keys(True, True)) == list(other.keys(True, True))
    for key in one.keys(True, True):
        a, b = one.get(key), other.get(key)
        if isinstance(a, torch.Tensor):
            assert_same(a.resolve_conj().contiguous(), b, str(key))
        else:
            assert a.batch_size == b.batch_size
            assert a.tolist() == b.tolist()


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape))).reshape(shape)


# ---- axes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["time", None, None], [None, "time", None], ["agent", "env", "time"]])
def test_time_may_be_any_axis_of_the_batch(tmp_path: Path, names: list[str | None]) -> None:
    data = TensorDict({"a": numbers(2, 3, 5, 7), "b": numbers(2, 3, 5)}, [2, 3, 5], names=names)
    assert_alike(data, there_and_back(tmp_path, data))
    axis = names.index("time")
    part = there_and_back(tmp_path, data, steps=[0, -1])
    assert torch.equal(part["a"], data["a"].index_select(axis, torch.tensor([0, data.shape[axis] - 1])))
    env = 1 if axis == 0 else 0  # the first other axis
    part = there_and_back(tmp_path, data, envs=slice(1, None))
    assert torch.equal(part["a"], data["a"].narrow(env, 1, data.shape[env] - 1))
    assert part.names == data.names


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (-1, [2]), (0, [0]), ([-1, 0], [2, 0]), ([], []), (slice(None, None, -1), [2, 1, 0]), (slice(-2, None), [1, 2]),
        (slice(1, 99), [1, 2]), ([True, False, True], [0, 2]), (torch.tensor([False, True, False]), [1]), (range(2), [0, 1]),
        (torch.tensor(1), [1]), (np.int64(2), [2]), (np.array([2, 2]), [2, 2]), (torch.tensor([1], dtype=torch.int32), [1]),
    ],
)  # fmt: skip
def test_rows_are_counted_as_python_counts(tmp_path: Path, rows: Any, expected: list[int]) -> None:
    square = TensorDict({"a": numbers(N, N), "s": NonTensorStack.from_list([["x", "y", "z"]] * N)}, [N, N])
    for axis, part in ((1, {"envs": rows}), (0, {"steps": rows})):
        got = there_and_back(tmp_path, square, **part)
        assert torch.equal(got["a"], square["a"].index_select(axis, torch.tensor(expected, dtype=torch.int64)))
        assert got.batch_size[axis] == len(expected)
        if expected and axis:
            assert got.get("s").tolist() == [["xyz"[i] for i in expected]] * N


@pytest.mark.parametrize(
    "rows", [3, -4, [0, 3], True, 1.5, "x", [True], [[0]], None, slice(0, 1, 0), slice("a", "b"), [0.0]]
)
def test_rows_that_are_not_there_are_refused_in_a_sentence(tmp_path: Path, rows: Any) -> None:
    data = TensorDict({"a": numbers(T, N)}, [T, N])
    if rows is None:
        data, rows = TensorDict({"a": numbers(T, N)}, [T]), 0  # no envs at all: the axis is not the batch's
    with pytest.raises(InputError, match="envs"):
        there_and_back(tmp_path, data, envs=rows)


# ---- keys ------------------------------------------------------------------------------------------------------

ODD_KEYS = [
    "a/b", "a", "a_b", "a%2Fb", "a~1b", "a/data/b", "/", "//", "", ".", "..", "../../x", "\\", "C:x", "\x00", "\n", "é",
    "e\u0301", "日本", "\ud800", "data", "batch", "names", "value", "index", "x" * 5000, "x" * 5000 + "y", "manifest.json",
]  # fmt: skip


def test_any_text_is_a_key_also_where_files_would_collide(tmp_path: Path) -> None:
    inner = {key: numbers(T, N) + i for i, key in enumerate(ODD_KEYS)}
    outer = {key: numbers(T, N) - i for i, key in enumerate(ODD_KEYS) if key != "a"}
    data = TensorDict({**outer, "a": TensorDict(inner, [T, N])}, [T, N])
    assert_alike(data, there_and_back(tmp_path, data))
    with RolloutStorage(tmp_path) as storage:
        for key in ODD_KEYS:
            part = storage.load(1, keys=[("a", key)])
            assert list(part.keys(True, True)) == [("a", key)]
            assert torch.equal(part["a", key], inner[key])
            if key != "a":
                assert torch.equal(storage.load(1, keys=[(key,)])[key], outer[key])


def test_a_string_names_nested_keys_and_says_so_when_it_may_mean_two(tmp_path: Path) -> None:
    data = TensorDict({"a/b": numbers(T, N), "c": {"d/e": numbers(T, N) + 1, "f": numbers(T, N) + 2}}, [T, N])
    with RolloutStorage(tmp_path) as storage:
        storage.save(data, 1).wait(60)
        for keys, expected in (
            (["a/b"], ["a/b"]),
            (["c/d/e"], [("c", "d/e")]),
            (["/c/f/"], [("c", "f")]),
            ("a/b", ["a/b"]),
            (["c"], [("c", "d/e"), ("c", "f")]),
            ([("c", "f"), "c/f", "a/b"], ["a/b", ("c", "f")]),
            ([], []),
        ):
            assert list(storage.load(1, keys=keys).keys(True, True)) == expected
        for keys in (["a"], ["c/d"], [("a", "b")], [("c", "f", "g")], ["c/f/g"]):
            with pytest.raises(InputError, match=r"is not in .*choose among these"):
                storage.load(1, keys=keys)
        data["a"] = TensorDict({"b": numbers(T, N) + 3}, [T, N])
        storage.save(data, 2).wait(60)
        with pytest.raises(InputError, match=r"may be any of \[\('a', 'b'\), \('a/b',\)\]"):
            storage.load(2, keys=["a/b"])
        assert torch.equal(storage.load(2, keys=[("a", "b")])["a", "b"], data["a", "b"])


@settings(max_examples=25, deadline=None)
@given(keys=st.sets(st.text(max_size=6), min_size=1, max_size=6), nested=st.sets(st.text(max_size=4), max_size=4))
def test_any_keys_come_back(tmp_path_factory: pytest.TempPathFactory, keys: set[str], nested: set[str]) -> None:
    entries: dict[str, Any] = {key: numbers(T, N) + i for i, key in enumerate(sorted(keys))}
    entries["in"] = TensorDict({key: numbers(T, N) - i for i, key in enumerate(sorted(nested))}, [T, N])
    data = TensorDict(entries, [T, N])
    assert_alike(data, there_and_back(tmp_path_factory.mktemp("keys"), data))


# ---- values ----------------------------------------------------------------------------------------------------


def rollout_dtypes() -> list[torch.dtype]:
    names = ("bool", "bfloat16", "float16", "float64", "complex64", "complex128", "uint8", "int16", "uint16", "uint64")
    return [getattr(torch, name) for name in (*names, "float8_e4m3fn")]


def nest(data: TensorDict, depth: int) -> TensorDict:
    return data if not depth else TensorDict({"in": nest(data, depth - 1)}, data.batch_size)


def every(value: Any, *batch: int) -> NonTensorData:
    return NonTensorData(value, batch_size=batch or [T, N])


def grid(entries: dict[str, Any], **settings: Any) -> TensorDict:
    return TensorDict(entries, [T, N], **settings)


def row(*cells: Any) -> NonTensorStack:
    return NonTensorStack(*[NonTensorData(cell) for cell in cells])


KINDS: dict[str, Callable[[], Any]] = {
    "text for each cell": lambda: grid({"s": [[f"{t}{n}" for n in range(N)] for t in range(T)]}),
    "the same text": lambda: grid({"s": [["go"] * N] * T}),
    "values of other kinds": lambda: grid({"s": NonTensorStack(*[row(1, True, None)] * T)}),
    "lists as values": lambda: grid({"s": NonTensorStack(*[every([t, t], N) for t in range(T)])}),
    "text and tensors": lambda: grid({"s": every("x"), "x": numbers(T, N)}),
    "no entries": lambda: grid({}),
    "empty nests": lambda: grid({"a": grid({"b": grid({})})}),
    "no steps": lambda: TensorDict({"x": torch.zeros(0, N, 2), "s": every("x", 0, N)}, [0, N]),
    "no envs": lambda: TensorDict({"x": torch.zeros(T, 0, 2)}, [T, 0]),
    "no cells": lambda: grid({"x": torch.zeros(T, N, 0), "y": torch.zeros(T, N, 2, 0, 3)}),
    "strided": lambda: grid({"x": numbers(N, T).T, "y": torch.ones(1).expand(T, N), "z": numbers(T, 2 * N)[:, ::2]}),
    "conjugated": lambda: grid({"x": torch.randn(T, N, dtype=torch.complex64).conj()}),
    "of every type": lambda: grid({str(dtype): torch.ones(T, N, 2).to(dtype) for dtype in rollout_dtypes()}),
    "with a gradient": lambda: grid({"x": torch.ones(T, N, requires_grad=True) * 2}),
    "a lazy stack": lambda: LazyStackedTensorDict(*[TensorDict({"x": numbers(N, 2) + t}, [N]) for t in range(T)]),
    "locked and named": lambda: grid({"x": numbers(T, N)}, names=["time", "env"]).lock_(),
    "deeper batches": lambda: grid({"a": TensorDict({"x": numbers(T, N, 2, 2)}, [T, N, 2])}),
    "thirty nests": lambda: nest(grid({"x": numbers(T, N)}), 30),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_data_comes_back(tmp_path: Path, name: str) -> None:
    data = KINDS[name]()
    got = there_and_back(tmp_path, data)
    if name == "values of other kinds":
        assert [type(value) for value in got.get("s").tolist()[0]] == [int, bool, type(None)]
    assert_alike(data, got)


def test_tensors_inside_of_values_are_not_of_the_batch(tmp_path: Path) -> None:
    """They were stored and cut along the time axis, which they do not have."""
    inside = {"w": numbers(2, 3), "v": numbers(5), "n": np.arange(3)}
    data = TensorDict({"s": NonTensorData(inside, batch_size=[2, 3, 4])}, [2, 3, 4], names=[None, None, "time"])
    for part in ({}, {"steps": slice(0, 1), "envs": 0}):
        got = there_and_back(tmp_path, data, **part)["s"]
        assert all(np.array_equal(got[key], inside[key]) for key in inside)


@tensorclass
class Flight:
    """A rollout as a tensor class."""

    obs: torch.Tensor
    note: str
    missing: torch.Tensor | None = None


def test_a_tensor_class_comes_back_as_the_tensordict_it_holds(tmp_path: Path) -> None:
    flight = Flight(obs=numbers(T, N), note="calm", batch_size=[T, N])
    for data in (flight, TensorDict({"in": flight}, [T, N])):
        got = there_and_back(tmp_path, data)
        got = got["in"] if "in" in got.keys() else got  # noqa: SIM118 - a TensorDict is no dict
        assert set(got.keys()) == {"obs", "note"}
        assert got["note"] == "calm"
        assert torch.equal(got["obs"], flight.obs)


@pytest.mark.parametrize(
    "data",
    [
        LazyStackedTensorDict(*[TensorDict({"x": torch.ones(N), f"own{t}": torch.ones(N)}, [N]) for t in range(T)]),
        LazyStackedTensorDict(*[TensorDict({"x": torch.ones(N, 1 + t)}, [N]) for t in range(T)]),
        TensorDict({"x": torch.ones(T, N).to_sparse()}, [T, N]),
        TensorDict({"s": NonTensorData(object(), batch_size=[T, N])}, [T, N]),
        TensorDict({"x": torch.ones(T)}, []),
        NonTensorData("x", batch_size=[T, N]),
        {"x": torch.ones(T, N)},
    ],
)
def test_what_cannot_come_back_is_refused_before_anything_is_written(tmp_path: Path, data: Any) -> None:
    with RolloutStorage(tmp_path) as storage:
        with pytest.raises(InputError):
            storage.save(data, 1)
        assert storage.list() == []


def test_more_single_values_than_a_reader_takes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = KINDS["text for each cell"]()
    with RolloutStorage(tmp_path) as storage:
        storage.save(data, 1).wait(60)
        monkeypatch.setattr(rollout_format, "MAX_VALUES", T * N - 1)
        with pytest.raises(InputError, match="12 non-tensor values, but at most 11"):
            storage.save(data, 2)
        with pytest.raises(FledgeError, match="more non-tensor values"):
            storage.load(1)


def test_iterations_and_metadata_are_those_of_the_call(tmp_path: Path) -> None:
    data, note = TensorDict({"x": numbers(T, N)}, [T, N]), {"why": {"score": 1}}
    with RolloutStorage(tmp_path) as storage:
        for iteration in (-1, 1.5, "3", True, None):
            for call in (lambda i=iteration: storage.save(data, i), lambda i=iteration: storage.load(i)):
                with pytest.raises(InputError, match="iteration is"):
                    call()
        with pytest.raises(InputError, match="metadata"):
            storage.save(data, 1, metadata={"x": torch.ones(2)})
        handle = storage.save(data, np.int64(7), metadata=note)  # type: ignore[arg-type]
        note["why"]["score"] = 2
        handle.wait(60)
        assert storage.list() == [7]
        from fledge.storage import inspect_checkpoint

        assert inspect_checkpoint(storage.path(7))["metadata"]["user"] == {"why": {"score": 1}}
