"""`fledge export` as a user calls it."""

import json
from pathlib import Path

import numpy as np
import pytest

from fledge.evaluation.env_config import eval_env
from fledge.tasks.policy_loader import load_policy
from tests.cli.policy_files import KINDS, call, write_policy


@pytest.mark.parametrize("kind", KINDS)
def test_export_writes_files_that_fly_the_same(kind: str, tmp_path: Path) -> None:
    done = call("export", str(write_policy(kind, tmp_path / "p.fledge")), str(tmp_path / "p.ts"), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["max_difference"] <= 1e-5


def test_export_tells_the_contract_of_the_world_it_is_given(tmp_path: Path) -> None:
    path = str(write_policy("features", tmp_path / "p.fledge"))
    told = json.loads(call("export", path, str(tmp_path / "p.ts"), "--json").stdout)["contract"]
    assert told["decision_s"] == pytest.approx(0.08)
    assert told["observation"]["lidar"]["range_m"] == 4.0
    done = call("export", path, str(tmp_path / "p.ts"), "env.decimation=2", "env.speed_limit=1", "--json")
    told = json.loads(done.stdout)["contract"]
    assert told["decision_s"] == pytest.approx(0.032)
    assert told["speed_limit_m_s"] == 1.0
    refused = call("export", path, str(tmp_path / "p.ts"), "env.lidar_azimuths=18")
    assert refused.exit_code == 2
    assert "its weights depend on" in refused.output


def test_export_writes_golden_vectors_of_a_flight(tmp_path: Path) -> None:
    path, golden = str(write_policy("features", tmp_path / "p.fledge")), tmp_path / "golden.npz"
    words = ["env.num_maps=2", "env.moving_obstacles=8", "--golden"]
    done = call("export", path, str(tmp_path / "p.ts"), *words, str(golden))
    assert done.exit_code == 0, done.output
    assert "cases to test it with" in done.output
    assert set(np.load(golden)) == {"state", "lidar", "dynamic_obstacle", "action"}
    refused = call("export", path, str(tmp_path / "p.ts"), *words, str(tmp_path / "golden.csv"))
    assert refused.exit_code == 2
    assert "must end in .npz" in refused.output


def test_export_refuses_other_endings(policy_file: Path, tmp_path: Path) -> None:
    wrong = call("export", str(policy_file), str(tmp_path / "p.txt"))
    assert wrong.exit_code == 2
    assert "must end in" in wrong.output


def test_a_policy_file_is_not_written_for_a_world_that_its_weights_do_not_fit(tmp_path: Path) -> None:
    done = call("export", "fledge-nav", str(tmp_path / "p.fledge"), "env.lidar_azimuths=12")
    assert done.exit_code == 2
    assert "its weights depend on" in done.output
    assert not (tmp_path / "p.fledge").exists()


def test_a_policy_file_holds_the_same_weights(policy_file: Path, tmp_path: Path) -> None:
    done = call("export", str(policy_file), str(tmp_path / "copy.fledge"), "--json")
    assert json.loads(done.stdout)["max_difference"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_export_flies_the_same(kind: str, tmp_path: Path) -> None:
    done = call("export", str(write_policy(kind, tmp_path / "p.fledge")), str(tmp_path / "p.onnx"), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["max_difference"] <= 1e-5


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Return fledge-nav as an ONNX file, its golden file, and what the command printed."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("exported") / "nav.onnx"
    words = ["env.num_maps=2", "env.moving_obstacles=8", "--golden", str(path.with_suffix(".npz"))]
    done = call("export", "fledge-nav", str(path), *words)
    assert done.exit_code == 0, done.output
    return path, path.with_suffix(".npz"), done.output


def test_an_onnx_file_carries_the_contract_of_its_task(exported: tuple[Path, Path, str]) -> None:
    import onnxruntime

    policy = load_policy("fledge-nav")
    told = json.loads(onnxruntime.InferenceSession(str(exported[0])).get_modelmeta().custom_metadata_map["contract"])
    contract = policy.task.contract(eval_env(policy, overrides=["env.num_maps=2", "env.moving_obstacles=8"]).cfg)
    assert told.pop("inputs") == list(policy.agent.observes)
    assert told.pop("outputs") == ["action"]
    assert told.pop("fledge")
    assert contract["observation"].pop("direction")  # which this policy does not read
    assert told == json.loads(json.dumps(contract))


def test_golden_vectors_are_what_the_onnx_file_puts_out(exported: tuple[Path, Path, str]) -> None:
    import onnxruntime

    with np.load(exported[1], allow_pickle=False) as file:
        golden = dict(file)
    inputs = {name: golden[name] for name in load_policy("fledge-nav").agent.observes}
    assert len({len(array) for array in golden.values()}) == 1
    action = onnxruntime.InferenceSession(str(exported[0])).run(["action"], inputs)[0]
    assert np.abs(action - golden["action"]).max() <= 1e-5
    assert (golden["lidar"] > 0).mean() > 0.001, "golden flights should meet something"


def test_export_says_which_input_is_computed_and_what_computes_it(exported: tuple[Path, Path, str]) -> None:
    assert (
        "The input plan is not a sensor reading, but computed from state, lidar, dynamic_obstacle, pose" in exported[2]
    )
    assert "`fledge deploy` writes a folder" in exported[2]
