"""Other tools' files: in and out, by name and by content."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.storage import (
    AsyncCheckpointSaver,
    convert_checkpoint,
    inspect_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from tests.storage.states import assert_same, copy_state, training


def state() -> dict[str, Any]:
    model, optimizer = training()
    return {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "step": 3,
        "name": "x",
        "f": (1, 2.5),
    }


def test_a_plain_pt_is_loaded(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "a.pt")
    assert_same(load_checkpoint(tmp_path / "a.pt"), copy_state(state()))
    assert list(load_checkpoint(tmp_path / "a.pt", keys=["model"])) == ["model"]


def test_an_lz4_frame_around_torch_save_is_found_and_loaded(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "raw.pt")
    packed = lz4.frame.compress((tmp_path / "raw.pt").read_bytes(), compression_level=9)
    (tmp_path / "checkpoint_100.pt.lz4").write_bytes(packed)
    assert_same(load_checkpoint(tmp_path / "checkpoint_100.pt"), copy_state(state()))


def test_our_lz4_file_is_torch_save_in_an_lz4_frame(tmp_path: Path) -> None:
    path = save_checkpoint(state(), tmp_path / "a.pt", codec="lz4")
    assert path.name == "a.pt.lz4"
    (tmp_path / "b.pt").write_bytes(lz4.frame.decompress(path.read_bytes()))
    assert_same(torch.load(tmp_path / "b.pt", weights_only=True), copy_state(state()))


def test_a_plain_safetensors_is_loaded(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.randn(3, 4), "b": torch.arange(5)}
    save_file(tensors, tmp_path / "a.safetensors")
    assert_same(load_checkpoint(tmp_path / "a.safetensors"), tensors)


def test_what_we_write_as_safetensors_others_read(tmp_path: Path) -> None:
    weights = {"model": {"w": torch.randn(3, 4), "h": torch.randn(2).bfloat16()}, "note": "x"}
    path = save_checkpoint(weights, tmp_path / "a.safetensors", codec="safetensors")
    assert_same(load_file(path), {"model.w": weights["model"]["w"], "model.h": weights["model"]["h"]})


def full_state() -> dict[str, Any]:
    return state() | {
        "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(2.5),
        "bytes": b"\x00x",
        "tied": [0, 0],
    }


@pytest.mark.parametrize("suffix", [".fledge", ".safetensors"])
def test_there_and_back_is_exact(tmp_path: Path, suffix: str) -> None:
    source = save_checkpoint(full_state(), tmp_path / "a")
    convert_checkpoint(source, tmp_path / f"b{suffix}")
    result = convert_checkpoint(tmp_path / f"b{suffix}", tmp_path / "c.fledge")
    assert_same(load_checkpoint(tmp_path / "c.fledge"), copy_state(full_state()))
    assert result["target_bytes"] == (tmp_path / "c.fledge").stat().st_size


@pytest.mark.parametrize("suffix", [".pt", ".lz4"])
def test_to_pt_and_back_keeps_all_tensors(tmp_path: Path, suffix: str) -> None:
    source = save_checkpoint(state(), tmp_path / "a", metadata={"k": 1})
    convert_checkpoint(source, tmp_path / f"b{suffix}")
    convert_checkpoint(tmp_path / f"b{suffix}", tmp_path / "c.fledge")
    assert_same(load_checkpoint(tmp_path / "c.fledge"), copy_state(state()))


def test_one_part_can_be_converted(tmp_path: Path) -> None:
    source = save_checkpoint(state(), tmp_path / "a", metadata={"run": "x"})
    convert_checkpoint(source, tmp_path / "m.fledge", keys=["model"])
    assert list(load_checkpoint(tmp_path / "m.fledge")) == ["model"]
    assert inspect_checkpoint(tmp_path / "m.fledge")["metadata"] == {"run": "x"}


def test_a_conversion_has_the_level_it_is_given(tmp_path: Path) -> None:
    source = save_checkpoint(state(), tmp_path / "a")
    dense, stored = (
        convert_checkpoint(source, tmp_path / f"{level}.fledge", compression_level=level)["target_bytes"]
        for level in (9, 0)
    )
    assert dense < stored
    assert {row["codec"] for row in inspect_checkpoint(tmp_path / "0.fledge")["tensors"]} == {"raw"}


def test_tied_weights_go_to_safetensors_once(tmp_path: Path) -> None:
    weight = torch.randn(100, 100)
    path = save_checkpoint({"a": weight, "b": weight}, tmp_path / "t.safetensors", codec="safetensors")
    assert path.stat().st_size < 1.2 * weight.nbytes
    again = load_checkpoint(path)
    assert again["a"].data_ptr() == again["b"].data_ptr()


@pytest.mark.parametrize("name", ["a.fledge", "a.pt", "a.pt.lz4", "a.safetensors", "old.pth"])
def test_a_loaded_state_does_not_depend_on_its_file(tmp_path: Path, name: str) -> None:
    weights = {"w": torch.randn(300, 300), "a": np.arange(5000.0)}
    path = tmp_path / name
    if name == "old.pth":
        torch.save({"w": weights["w"]}, path, _use_new_zipfile_serialization=False)
    else:
        save_checkpoint(weights, path, codec={".fledge": "native"}.get(path.suffix, path.suffix[1:]))
    loaded = load_checkpoint(path)
    expected = copy_state(loaded)
    with open(path, "r+b") as stream:  # in place, as `cp` and `rsync --inplace` write
        stream.write(b"\xff" * path.stat().st_size)
    assert_same(loaded, expected)
    os.truncate(path, 10)
    assert_same(loaded, expected)


def test_a_tensor_may_have_the_name_of_the_metadata_of_safetensors(tmp_path: Path) -> None:
    weights = {"__metadata__": torch.ones(2), "__metadata__~2": torch.zeros(3), "manifest.json": torch.ones(1)}
    path = save_checkpoint(weights, tmp_path / "a.safetensors", codec="safetensors")
    assert_same(load_checkpoint(path), weights)
    assert len(load_file(path)) == 3  # other tools read it too


def test_safetensors_keeps_metadata_and_refuses_what_is_not_plain(tmp_path: Path) -> None:
    metadata = {"history": {"step": 3}, "z": 1j, "text": "3"}
    path = save_checkpoint(state(), tmp_path / "a.safetensors", codec="safetensors", metadata=metadata)
    assert inspect_checkpoint(path)["metadata"] == metadata
    assert "note" not in convert_checkpoint(path, tmp_path / "b.fledge")
    assert inspect_checkpoint(tmp_path / "b.fledge")["metadata"] == metadata
    assert "step and metric are not kept" in convert_checkpoint(path, tmp_path / "b.pt")["note"]
    with pytest.raises(InputError, match="metadata holds a tensor"):
        save_checkpoint(state(), tmp_path / "c.safetensors", codec="safetensors", metadata={"t": torch.ones(1)})


def test_lz4_blocks_are_independent_because_linked_zeros_take_quadratic_time(tmp_path: Path) -> None:
    path = save_checkpoint({"z": torch.zeros(2**24)}, tmp_path / "z", codec="lz4")
    assert lz4.frame.get_frame_info(path.read_bytes())["block_linked"] is False
    assert not load_checkpoint(path)["z"].any()


def test_every_format_can_be_inspected(tmp_path: Path) -> None:
    for codec in ("native", "pt", "lz4", "safetensors"):
        path = save_checkpoint(state(), tmp_path / codec / "a.pt", codec=codec)
        info = inspect_checkpoint(path)
        assert info["format"] == codec
        assert info["file_bytes"] == path.stat().st_size
        assert sum(row["bytes"] for row in info["tensors"]) == info["tensor_bytes"]


def test_names_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "a.pt")
    source = save_checkpoint(state(), tmp_path / "a")
    with pytest.raises(ConfigError, match="must end in one of"):
        convert_checkpoint(source, tmp_path / "b.onnx")
    odd = save_checkpoint({"c": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "c")
    with pytest.raises(InputError, match="safetensors cannot hold"):
        convert_checkpoint(odd, tmp_path / "c.safetensors")


EMPTY = {"a": b"", "b": [b"", (b"",)], "c": np.array([b"x", b""])}


@pytest.mark.parametrize("codec", ["pt", "lz4"])
def test_a_torch_file_loads_again_and_changes_only_what_the_docs_say(tmp_path: Path, codec: str) -> None:
    module = OrderedDict(w=torch.ones(2))
    module._metadata = {"note": b""}  # type: ignore[attr-defined]
    given = {**EMPTY, "numbers": np.arange(3, dtype=">u8"), "texts": np.array(["a", ""]), "scalar": np.float32(0.5)}
    given |= {"default": defaultdict(list, k=[b""]), "module": module, "counter": Counter("aab")}
    path = save_checkpoint(given, tmp_path / "x.pt", codec=codec)
    found = load_checkpoint(path)
    if codec == "pt":
        assert_same(torch.load(path, weights_only=True), found)  # without Fledge
    assert {key: found[key] for key in "abc"} == {"a": b"", "b": [b"", (b"",)], "c": [b"x", b""]}
    assert found["numbers"].dtype == torch.uint64
    assert found["numbers"].numpy().tolist() == [0, 1, 2]
    assert (found["texts"], found["scalar"], type(found["scalar"])) == (["a", ""], 0.5, float)
    assert (type(found["default"]), found["default"]) == (dict, {"k": [b""]})
    assert (type(found["counter"]), found["module"]._metadata) == (Counter, {"note": b""})


@pytest.mark.parametrize("codec", ["pt", "lz4"])
@pytest.mark.parametrize(
    "value",
    [np.array(["2020-01-01"], "M8[s]"), np.array([1], "M8[ns]"), np.datetime64("NaT"), np.timedelta64(5, "s")],
    ids=str,
)
def test_a_torch_file_refuses_dates_at_the_call_and_names_them(tmp_path: Path, codec: str, value: Any) -> None:
    with pytest.raises(InputError, match=r"\['a'\]\[1\] is a NumPy .*use codec='native'"):
        save_checkpoint({"a": [0, value]}, tmp_path / "x.pt", codec=codec)
    with (
        AsyncCheckpointSaver(codec=codec, find_optimizers=False) as saver,
        pytest.raises(InputError, match=r"\['a'\]\[1\] is a NumPy"),
    ):
        saver.save_async({"a": [0, value]}, tmp_path / "x.pt")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("value", [2**3000, "idna", b"idna", {"idna": 1}], ids=["number", "text", "bytes", "key"])
def test_a_torch_file_refuses_what_could_not_be_loaded_again(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"entry \['a'\]\[1\] could not be loaded again .*use codec='native'"):
        save_checkpoint({"a": (0, value), "w": torch.ones(2)}, tmp_path / "x.pt", codec="pt")
    assert not os.listdir(tmp_path)
    assert_same(load_checkpoint(save_checkpoint({"a": value}, tmp_path / "x")), {"a": value})
