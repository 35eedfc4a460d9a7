"""`fledge inspect` and `fledge convert` as a user calls them."""

import json
import re
from pathlib import Path

import torch

from fledge.storage import CheckpointHistory, save_checkpoint
from tests.cli.policy_files import call


def test_convert_refuses_one_file_as_source_and_target_and_says_what_is_lost(tmp_path: Path) -> None:
    CheckpointHistory(tmp_path).save({"model": {"w": torch.ones(3)}}, step=4, metric=0.5)
    path = tmp_path / "checkpoint_000000004.fledge"
    before = path.read_bytes()
    done = call("convert", str(path), str(path))
    assert done.exit_code == 2
    assert "is both source and target" in done.output
    assert path.read_bytes() == before
    assert "step and metric are not kept" in call("convert", str(path), str(tmp_path / "w.safetensors")).output
    assert "not kept" not in call("convert", str(path), str(tmp_path / "w.fledge")).output


def test_inspect_and_convert_round_trip(policy_file: Path, tmp_path: Path) -> None:
    listed = json.loads(call("inspect", str(policy_file), "--json").stdout)
    assert any("trunk" in row["name"] for row in listed["tensors"])
    done = call("convert", str(policy_file), str(tmp_path / "p.pt"))
    assert re.fullmatch(rf"{tmp_path / 'p.pt'}: [\d,]+ bytes, from {policy_file}, which has [\d,]+\.\n", done.output)
    saved = torch.load(tmp_path / "p.pt", weights_only=True)
    assert saved["policy"]["kind"] == "features"
    for name in ("p.pt.lz4", "p.safetensors"):
        assert call("convert", str(policy_file), str(tmp_path / name)).exit_code == 0
    for name in ("p.pt", "p.pt.lz4", "p.safetensors"):
        done = call("inspect", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        assert "trunk.0.weight" in done.output


def test_inspect_knows_shipped_policies_and_never_cuts_a_name() -> None:
    done = call("inspect", "fledge-nav")
    assert done.exit_code == 0, done.output
    assert "task navigation" in done.output
    assert "env.decimation=4" in done.output
    names = {line.split()[0] for line in done.output.splitlines() if line.startswith("model/")}
    assert {"model/value_norm.mean_avg", "model/value_norm.square_avg", "model/trunk.0.weight"} <= names


def test_inspect_shows_a_runs_step_metric_settings_and_checkpoints(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path / "run" / "checkpoints", keep_whole=1)
    config = {"task": "navigation", "ppo.lr": 0.125, "ppo.clip": 0.2, "env.speed_limit": 1.5}
    for step in (10, 20):
        facts = {"iteration": step, "frames": step * 1000, "seconds": 60.0, "task": "navigation", "config": config}
        history.save(
            {"model": {"w": torch.ones(3)}, "optimizer": {"m": torch.ones(3)}, **facts}, step, metric=step / 40
        )
    done = call("inspect", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "task navigation, step 20, metric 0.5, 20,000 decisions in 1.0 minutes" in done.output
    assert "ppo.lr=0.125" in done.output
    assert "env.speed_limit=1.5" in done.output
    assert "ppo.clip" not in done.output
    assert re.search(r"checkpoint_0*10\.fledge +10 +0\.250 +weights", done.output)
    assert re.search(r"checkpoint_0*20\.fledge +20 +0\.500 +whole", done.output)
    row = json.loads(call("inspect", str(tmp_path / "run"), "--json").stdout)
    assert (row["step"], row["metric"], len(row["checkpoints"])) == (20, 0.5, 2)
    assert row["config"]["ppo.lr"] == 0.125


def test_inspect_shows_values_and_metadata_and_nothing_that_steers_a_terminal(tmp_path: Path) -> None:
    state = {"w\x1b[2J": torch.ones(2), "seed": 7, "deep": {"lr": [0.1, 0.2]}, "note": "a\x1b]0;x\x07\u202eb" * 50}
    metadata = {"success": 0.5, "who\n": "x\ry"}
    path = save_checkpoint(state, tmp_path / "a", metadata=metadata)
    done = call("inspect", str(path))
    assert done.exit_code == 0, done.output
    for line in ("  seed = 7", "  deep/lr = [0.1, 0.2]", "  success = 0.5", "  who\\n = 'x\\ry'"):
        assert line in done.output.splitlines()
    assert all(character.isprintable() or character == "\n" for character in done.output)
    assert max(map(len, done.output.splitlines())) < 250
    found = json.loads(call("inspect", str(path), "--json").stdout)
    assert (found["values"]["seed"], found["metadata"]["success"]) == (7, 0.5)
