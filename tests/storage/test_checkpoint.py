"""The file: everything comes back bit for bit, parts can be read alone, and equal states give equal bytes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.storage import inspect_checkpoint, load_checkpoint, save_checkpoint
from fledge.storage.format.writer import MAX_CHAIN
from tests.storage.states import assert_same, awkward_state, copy_state, state_at, train_step, training

NAVRL = Path(__file__).parents[3] / "shared/data/navrl_checkpoint.pt"


@pytest.mark.parametrize("level", [None, 0, 1, 5, 9])
def test_everything_comes_back_bit_for_bit(tmp_path: Path, level: int | None) -> None:
    state = awkward_state()
    path = save_checkpoint(state, tmp_path / "a", compression_level=level)
    assert_same(load_checkpoint(path), copy_state(state))


def test_optimiser_state_with_integer_keys_loads_into_an_optimiser(tmp_path: Path) -> None:
    model, optimizer = training()
    path = save_checkpoint({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a")
    state = load_checkpoint(path)
    other_model, other = training(seed=1)
    other_model.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    assert_same(copy_state(other.state_dict()), copy_state(optimizer.state_dict()))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(-5, 5) | st.booleans() | st.none(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(state=plain)
def test_any_nesting_comes_back(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    path = save_checkpoint(state, tmp_path_factory.mktemp("plain") / "a")
    assert_same(load_checkpoint(path), state)


def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    weight = torch.randn(300, 300)
    path = save_checkpoint({"a": weight, "b": weight, "view": weight[:10]}, tmp_path / "a", compression_level=0)
    assert path.stat().st_size < 1.3 * weight.nbytes
    state = load_checkpoint(path)
    assert state["a"].data_ptr() == state["b"].data_ptr()
    assert_same(state["view"], weight[:10].clone())


def test_one_part_is_read_without_the_rest(tmp_path: Path) -> None:
    path = save_checkpoint(state_at(5), tmp_path / "a")
    assert_same(
        load_checkpoint(path, keys=["model/bias", "step"]), {"model": {"bias": state_at(5)["model"]["bias"]}, "step": 5}
    )
    assert list(load_checkpoint(path, keys=["optimizer/state/0"])["optimizer"]["state"][0]) == ["exp_avg", "step"]
    damage(path, "model/weight")
    assert load_checkpoint(path, keys=["model/bias"])["model"]["bias"][0] == 5
    with pytest.raises(FormatError):
        load_checkpoint(path)


def damage(path: Path, member: str) -> None:
    """Flip a bit in the middle of a member."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(member) + info.compress_size // 2] ^= 1
    path.write_bytes(data)


def test_an_unknown_key_says_what_there_is(tmp_path: Path) -> None:
    path = save_checkpoint(state_at(5), tmp_path / "a")
    with pytest.raises(InputError, match=r"'model/wait' is not in the checkpoint: at model it has bias, weight"):
        load_checkpoint(path, keys=["model/wait"])


def test_it_is_an_ordinary_zip_with_readable_names(tmp_path: Path) -> None:
    path = save_checkpoint(state_at(1), tmp_path / "a", compression_level=0)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "model/weight", "model/bias", "optimizer/state/0/exp_avg", "optimizer/state/0/step", "manifest.json",
        ]  # fmt: skip
        assert np.frombuffer(archive.read("model/bias"), "<f4").tolist() == [1.0] * 7


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    one = save_checkpoint(awkward_state(), tmp_path / "a", metadata={"step": 1})
    two = save_checkpoint(awkward_state(), tmp_path / "b", metadata={"step": 1})
    assert one.read_bytes() == two.read_bytes()


def test_metadata_is_read_without_the_tensors(tmp_path: Path) -> None:
    path = save_checkpoint(state_at(1), tmp_path / "a", metadata={"note": "x", "values": [1, 2.5, None]})
    info = inspect_checkpoint(path)
    assert info["metadata"] == {"note": "x", "values": [1, 2.5, None]}
    assert info["tensor_bytes"] == 4 * (2 * 20_000 + 8)
    assert {row["name"]: row["shape"] for row in info["tensors"]}["model/bias"] == [7]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": object()}}, r"\['a'\]\['b'\] is a object"),
        ({"a": torch.ones(2, 2).to_sparse()}, "sparse"),
        ({"a": torch.ones(2, device="meta")}, "meta"),
        ({"a": np.array([object()])}, "dtype object"),
        ({b"k": 1}, "key of type bytes"),
        ({"a": {1, 2}}, "is a set"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_its_path(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        save_checkpoint(state, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(InputError, match="cycle"):
        save_checkpoint(state, tmp_path / "a")


@pytest.mark.skipif(not NAVRL.exists(), reason="NavRL's released weights are not here")
def test_navrls_weights_take_at_most_84_percent(tmp_path: Path) -> None:
    weights = load_checkpoint(NAVRL)
    path = save_checkpoint(weights, tmp_path / "a")
    assert_same(load_checkpoint(path), weights)
    assert path.stat().st_size <= 0.84 * NAVRL.stat().st_size


def test_a_delta_is_smaller_and_exact(tmp_path: Path) -> None:
    model, optimizer = training(width=200)
    first = save_checkpoint({"model": model.state_dict()}, tmp_path / "0")
    train_step(model, optimizer, 200)
    whole = save_checkpoint({"model": model.state_dict()}, tmp_path / "1")
    delta = save_checkpoint({"model": model.state_dict()}, tmp_path / "1d", base=first)
    assert delta.stat().st_size < 0.9 * whole.stat().st_size
    assert_same(load_checkpoint(delta), copy_state({"model": model.state_dict()}))


def test_a_chain_of_deltas_is_bounded(tmp_path: Path) -> None:
    model, optimizer = training(width=64)
    base, depths = None, []
    for i in range(MAX_CHAIN + 4):
        train_step(model, optimizer, 64)
        base = save_checkpoint({"model": model.state_dict()}, tmp_path / str(i), base=base)
        depths.append(inspect_checkpoint(base)["depth"])
    assert max(depths) == MAX_CHAIN
    assert depths[MAX_CHAIN + 1] == 0
    assert_same(load_checkpoint(base), copy_state({"model": model.state_dict()}))


def test_a_delta_without_its_base_says_so(tmp_path: Path) -> None:
    model, optimizer = training(width=100)
    first = save_checkpoint({"model": model.state_dict()}, tmp_path / "0")
    train_step(model, optimizer, 100)
    delta = save_checkpoint({"model": model.state_dict()}, tmp_path / "1", base=first)
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(FormatError, match=r"needs its base '0\.fledge' in the same folder"):
        load_checkpoint(delta)
    save_checkpoint({"model": model.state_dict()}, tmp_path / "0")
    with pytest.raises(FormatError, match="the base was replaced"):
        load_checkpoint(delta)
    first.write_bytes(content)
    load_checkpoint(delta)


def test_a_base_in_another_folder_is_refused(tmp_path: Path) -> None:
    first = save_checkpoint(state_at(1), tmp_path / "x" / "0")
    with pytest.raises(ConfigError, match="another folder"):
        save_checkpoint(state_at(2), tmp_path / "1", base=first)


def test_the_closing_line_and_directory_are_checked_byte_by_byte(tmp_path: Path) -> None:
    path = save_checkpoint(state_at(1, 100), tmp_path / "a")
    content = path.read_bytes()
    for at in range(content.index(b"PK\x01\x02"), len(content)):
        for bit in (0, 7):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                state = load_checkpoint(path)
            except FormatError:
                continue
            assert_same(state, state_at(1, 100))
