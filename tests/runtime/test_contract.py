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


HAND_MADE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no rows of movers": lambda c: c["sensor"].update(mover_rows=-1),
    "rows of movers that are none": lambda c: c["sensor"].update(mover_rows="five"),
    "no sensor": lambda c: c.update(sensor=None),
    "a sensor of text": lambda c: c["sensor"].update(azimuths_deg="all around"),
    "no rays": lambda c: c["sensor"].update(azimuths_deg=[]),
    "nested rays": lambda c: c["sensor"].update(azimuths_deg=[[1.0, 2.0], [3.0, 4.0]]),
    "limits of text": lambda c: c["limits"].update(speed_m_s="fast"),
    "no limits": lambda c: c.update(limits=None),
    "no goal radius": lambda c: c.pop("goal_radius_m"),
    "a huge period": lambda c: c.update(decision_s=10**400),
    "an unknown dtype": lambda c: c["observation"]["state"].update(dtype="complex1"),
    "a negative shape": lambda c: c["observation"]["state"].update(shape=[-8]),
    "inputs that are a text": lambda c: c.update(inputs="state"),
    "inputs that are numbers": lambda c: c.update(inputs=[1, 2, 3]),
    "an observation that is a list": lambda c: c.update(observation=[]),
    "an observation too few": lambda c: c["observation"].pop("state"),
    "a memory of nothing": lambda c: c.update(memory={}),
    "a planner of nothing": lambda c: c.update(planner={}),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_a_contract_with_impossible_values_is_refused(name: str, reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    change(folder, HAND_MADE[name])
    refusal(folder)


@pytest.mark.parametrize("files", [{}, None, [], {"README.md": "0"}])
def test_a_contract_that_hashes_no_files_is_refused(files: Any, reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    contract = json.loads((folder / CONTRACT).read_text())
    (folder / CONTRACT).write_text(json.dumps({**contract, "files": files}))
    assert re.search("no hash of golden.npz, policy.onnx|files of the wrong kind", refusal(folder))


def test_a_contract_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / CONTRACT).write_text("[" * 200_000)
    assert "not JSON" in refusal(tmp_path)


def test_golden_sequences_with_flipped_bytes_are_refused(reflex: Path, tmp_path: Path) -> None:
    """Whatever byte is flipped, with hashes that agree: refused as a contract error, or equal within the tolerance."""
    folder = copy_of(reflex, tmp_path)
    data, rng = (folder / GOLDEN).read_bytes(), np.random.default_rng(0)
    refused = 0
    for at in [*range(0, 60, 4), *(len(data) - 1 - np.arange(0, 200, 12)), *rng.integers(0, len(data), 20)]:
        flipped = bytearray(data)
        flipped[at] ^= 0xFF
        (folder / GOLDEN).write_bytes(flipped)
        rehash(folder, json.loads((folder / CONTRACT).read_text()))
        try:
            fledge_runtime.load(folder)
        except fledge_runtime.ContractError as error:
            refused += "\n" not in str(error)
    assert refused > 25


GOLDENS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no sequences": lambda a: a.update(length=np.zeros(0, int)),
    "a negative length": lambda a: a.update(length=-a["length"]),
    "lengths of text": lambda a: a.update(length=a["length"].astype(str)),
    "rows too few": lambda a: a.update(obs_state=a["obs_state"][:-1]),
    "complex numbers": lambda a: a.update(obs_state=a["obs_state"].astype(complex)),
    "another width": lambda a: a.update(obs_state=a["obs_state"][..., :-1]),
    "points too few": lambda a: a.update(points=a["points"][:, :5]),
    "positions that are not finite": lambda a: a.update(position_w=a["position_w"] * np.nan),
    "no positions": lambda a: a.pop("position_w"),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_sequences_of_the_wrong_shape_are_refused(name: str, reflex: Path, tmp_path: Path) -> None:
    folder = copy_of(reflex, tmp_path)
    with np.load(folder / GOLDEN) as file:
        arrays = dict(file)
    GOLDENS[name](arrays)
    np.savez(folder / GOLDEN, **arrays)
    rehash(folder, json.loads((folder / CONTRACT).read_text()))
    refusal(folder)


@pytest.mark.parametrize("name", [CONTRACT, POLICY])
def test_a_file_that_may_not_be_read_is_said_to_be_so(
    name: str, reflex: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, right = copy_of(reflex, tmp_path), Path.open

    def denied(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return right(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)
    assert re.search(f"{name}.* cannot be read: permission denied", refusal(folder))


def test_a_folder_without_a_contract_is_refused(tmp_path: Path) -> None:
    assert "give a folder that `fledge deploy` wrote" in refusal(tmp_path)
