"""A folder whose contract, network, golden file or hashes are wrong is refused when it is loaded, with one sentence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fledge_runtime
from fledge_runtime.contract import CONTRACT, GOLDEN, POLICY
from tests.runtime.folders import change, copy_of, rehash, reseal


def refusal(folder: Path) -> str:
    with pytest.raises(fledge_runtime.ContractError) as caught:
        fledge_runtime.load(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert len(text) < 400
    return text


def test_a_copy_is_loaded(reflex: Path, tmp_path: Path) -> None:
    assert fledge_runtime.load(copy_of(reflex, tmp_path)).contract["policy"] == "fledge-reflex"


def flip(contract: dict[str, Any], key: str) -> None:
    contract["sensor"][key] = [-value for value in contract["sensor"][key]]


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "azimuths clockwise": (lambda c: flip(c, "azimuths_deg"), "lidar differs .* frames or sensor geometry"),
    "elevations upside down": (lambda c: flip(c, "elevations_deg"), "lidar differs .* frames or sensor geometry"),
    "beams turned with roll and pitch": (lambda c: c["sensor"].update(frame="body"), "lidar differs"),
    "another range": (lambda c: c["sensor"].update(range_m=5.0), "lidar differs"),
    "another decision rate": (lambda c: c.update(decision_s=0.1), "recorded at 0.048 s .* the contract says 0.1"),
    "another speed limit": (lambda c: c["limits"].update(speed_m_s=1.0), "velocity_w differs .* limits or frames"),
    "inputs in another order": (lambda c: c["inputs"].reverse(), "the contract says dynamic_obstacle, lidar, state"),
    "an input that the network has not": (lambda c: c["inputs"].append("pose"), "the contract says .*pose"),
    "a decision rate that is none": (lambda c: c.update(decision_s=0), "decision_s 0, but it must be above 0"),
    "a newer format": (
        lambda c: c.update(format_version=2),
        "format version 2, but this fledge_runtime reads version 1",
    ),
    "another file": (lambda c: c.update(format="else"), "is not a contract"),
    "a key too few": (lambda c: c.pop("planner"), "lacks planner"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_contract_that_does_not_describe_the_policy_is_refused(name: str, reflex: Path, tmp_path: Path) -> None:
    edit, pattern = WRONG[name]
    folder = copy_of(reflex, tmp_path)
    change(folder, edit)
    assert re.search(pattern, text := refusal(folder)), text


PLANNERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a setting of the planner": lambda c: c["planner"]["settings"].update({"planner.margin_m": 0.2}),
    "the planner's decision rate": lambda c: c["planner"]["settings"].update({"decimation": 3}),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_settings_of_another_planner_are_refused(name: str, nav: Path, tmp_path: Path) -> None:
    folder = copy_of(nav, tmp_path)
    change(folder, PLANNERS[name])
    assert "plan differs" in refusal(folder)


def test_an_edited_contract_is_refused_even_if_it_is_plausible(reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    contract = json.loads((folder / CONTRACT).read_text())
    contract["timing"]["max_age_s"]["points"] = 9.0
    (folder / CONTRACT).write_text(json.dumps(contract))
    assert "was changed after it was written" in refusal(folder)


@pytest.mark.parametrize("name", [POLICY, GOLDEN, CONTRACT, "README.md"])
def test_a_truncated_file_is_refused(name: str, reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    assert f"{name}" in refusal(folder)
    assert "cut off" in refusal(folder)


@pytest.mark.parametrize("name", [POLICY, GOLDEN])
def test_a_truncated_file_with_its_own_hash_is_refused(name: str, reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    rehash(folder, json.loads((folder / CONTRACT).read_text()))
    assert name in refusal(folder)


def test_a_missing_file_is_refused(reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    (folder / GOLDEN).unlink()
    assert "golden.npz is missing" in refusal(folder)


def test_an_altered_hash_is_refused(reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    contract = json.loads((folder / CONTRACT).read_text())
    contract["files"][POLICY] = "0" * 64
    (folder / CONTRACT).write_text(json.dumps(contract))
    assert "policy.onnx" in refusal(folder)


def test_golden_sequences_of_another_policy_are_refused(reflex: Path, memory: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    shutil.copy(memory / GOLDEN, folder / GOLDEN)
    rehash(folder, json.loads((folder / CONTRACT).read_text()))
    assert "golden.npz belongs to another policy or contract" in refusal(folder)


def test_golden_sequences_of_another_policy_with_a_forged_identity_are_refused(
    reflex: Path, memory: Path, tmp_path: Path
) -> None:
    folder = copy_of(reflex, tmp_path)
    shutil.copy(memory / GOLDEN, folder / GOLDEN)
    reseal(folder)
    assert "action differs" in refusal(folder)


def test_a_network_with_another_normalisation_is_refused(reflex: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    folder = copy_of(reflex, tmp_path)
    model = onnx.load(folder / POLICY)
    weights = next(w for w in model.graph.initializer if len(w.dims) == 2)
    scaled = onnx.numpy_helper.to_array(weights) * np.float32(1.01)
    weights.CopyFrom(onnx.numpy_helper.from_array(scaled, weights.name))
    onnx.save(model, folder / POLICY)
    rehash(folder, json.loads((folder / CONTRACT).read_text()))
    assert "action differs" in refusal(folder)
    assert "policy.onnx is not this policy" in refusal(folder)


def test_a_folder_without_a_contract_is_refused(tmp_path: Path) -> None:
    assert "give a folder that `fledge deploy` wrote" in refusal(tmp_path)
