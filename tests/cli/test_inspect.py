"""`fledge inspect` and `fledge convert` as a user calls them."""

import json
import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from fledge.evaluation.run_info import read_run_info, write_run_info
from fledge.storage import CheckpointHistory, RolloutStorage, save_checkpoint
from tests.cli.policy_files import call


def test_convert_refuses_one_file_as_source_and_target_and_says_what_is_lost(tmp_path: Path) -> None:
    CheckpointHistory(tmp_path).save({"model": {"w": torch.ones(3)}}, step=4, metric=0.5)
    path = tmp_path / "checkpoint_000000004.fledge"
    before = path.read_bytes()
    done = call("convert", str(path), str(path))
    assert done.exit_code == 2
    assert "is both source and target" in done.output
    assert path.read_bytes() == before
    assert "step and metric are not kept" in call("convert", str(path), str(tmp_path / "w.pt")).output
    for name in ("w.safetensors", "w.fledge"):
        assert "not kept" not in call("convert", str(path), str(tmp_path / name)).output
        assert json.loads(call("inspect", str(tmp_path / name), "--json").stdout)["step"] == 4


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
    assert "run of the task navigation; its newest checkpoint is checkpoint_000000020.fledge" in done.output
    assert "trained: 20,000 decisions in 1 min 0 s (20 iterations), primary metric in training 0.500" in done.output
    assert "ppo.lr=0.125" in done.output
    assert "env.speed_limit=1.5" in done.output
    assert "ppo.clip" not in done.output
    assert re.search(r"checkpoint_0*10\.fledge +10 +0\.250 +weights", done.output)
    assert re.search(r"checkpoint_0*20\.fledge +20 +0\.500 +everything", done.output)
    row = json.loads(call("inspect", str(tmp_path / "run"), "--json").stdout)
    assert (row["step"], row["metric"], len(row["checkpoints"])) == (20, 0.5, 2)
    assert row["config"]["ppo.lr"] == 0.125


def test_inspect_of_a_task_in_a_file_runs_no_code_and_lists_what_differs(tmp_path: Path) -> None:
    code = str(tmp_path / "own.py")
    config = {"task": code, "ppo.lr": 0.125, "ppo.clip": 0.2, "env.gust": 1.0}
    facts = {"iteration": 1, "frames": 10, "seconds": 119.7, "task": code, "config": config}
    CheckpointHistory(tmp_path / "run" / "checkpoints").save({"model": {"w": torch.ones(3)}, **facts}, 1)
    shown = call("inspect", str(tmp_path / "run")).output
    assert "10 decisions in 2 min 0 s" in shown
    before, after = shown.split("settings of the task, whose defaults are in its code")
    assert "ppo.lr=0.125" in before
    assert "ppo.clip" not in shown
    assert "env.gust=1.0" in after
    write_run_info(tmp_path / "run", "fledge train own.py", None, {"ppo.lr": 0.125}, {"ppo.lr": 0.0003}, "cpu")
    shown = call("inspect", str(tmp_path / "run")).output
    assert "command: fledge train own.py" in shown
    assert "gust" not in shown  # the run itself noted that it has its default


def test_inspect_of_a_large_checkpoint_fits_a_screen_unless_all_is_wanted(tmp_path: Path) -> None:
    state = {"model": {f"w{n}": torch.ones(2) for n in range(90)}, "learner": {f"v{n}": n for n in range(60)}}
    path = save_checkpoint(state, tmp_path / "a")
    shown = call("inspect", str(path)).output
    assert len(shown.splitlines()) < 20
    assert re.search(r"model +90 +0 +720 ", shown)
    assert re.search(r"learner +0 +60 ", shown)
    assert "model/w89" in call("inspect", str(path), "--all").output


def test_inspect_says_what_a_rollout_is(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        path = storage.save(TensorDict({"reward": torch.zeros(4, 2)}, batch_size=[4, 2]), 7)
    assert "rollout of iteration 7, 4x2 (steps x envs)" in call("inspect", str(path.path)).output


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


def test_inspect_lists_a_folder_of_checkpoints_with_the_damaged_ones(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path, prefix="mine", keep_whole=2, keep_best=1)
    for step, metric in ((1, 0.9), (2, 0.5), (3, 0.6)):
        history.save({"model": {"w": torch.ones(30)}, "optimizer": {"m": torch.ones(30)}}, step, metric)
    done = call("inspect", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert re.search(r"mine_000000001.fledge +1 +0.900 +weights", done.output)
    assert re.search(r"mine_000000003.fledge +3 +0.600 +everything", done.output)
    assert "not read and may be damaged: --verify checks them" in done.output
    newest = tmp_path / "mine_000000003.fledge"
    newest.write_bytes(newest.read_bytes()[:-300])
    done = call("inspect", str(tmp_path))
    assert done.exit_code == 1
    assert "mine_000000003.fledge cannot be read" in done.output
    assert "mine_000000002.fledge" in done.output
    done = call("inspect", str(newest))
    assert done.exit_code == 1
    assert "is truncated or damaged: it has" in done.output
    assert "model/w: " in done.output


def test_inspect_verifies_tensors_if_asked(tmp_path: Path) -> None:
    path = save_checkpoint({"a": torch.randn(1000), "b": torch.randn(1000)}, tmp_path / "x", compression_level=0)
    assert "damaged tensor" not in call("inspect", str(path), "--verify").output
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(bytes(data))
    assert call("inspect", str(path)).exit_code == 0
    done = call("inspect", str(path), "--verify")
    assert done.exit_code == 1
    assert re.search(r"damaged tensor a: .*Bad CRC-32", done.output)
    assert "damaged tensor b" not in done.output


DAMAGED = {"nested": b'{"command":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "deep": b"[" * 40 + b"]" * 40}
DAMAGED |= {"digits": b'{"started":' + b"9" * 10_000 + b"}", "large": b'{"command": "' + b"x" * 2**20 + b'"}'}
DAMAGED |= {
    "list": b"[1, 2]",
    "empty": b"",
    "not UTF-8": b'{"command": "\xff"}',
    "surrogate": b'{"command": "\\ud800"}',
}
DAMAGED |= {
    "kinds": b'{"command": 5, "preset": [1], "started": {}, "device": null, "machine": "x", "changed": [1], "defaults": 7}'
}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", *DAMAGED])
def test_a_strangers_run_json_is_left_out_if_it_is_damaged_or_not_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(DAMAGED[kind])
    assert read_run_info(tmp_path) == {}
    if kind in ("pipe", "kinds"):
        CheckpointHistory(tmp_path / "checkpoints").save({"model": {"w": torch.ones(3)}, "frames": 9}, 4)
        done = call("inspect", str(tmp_path))
        assert done.exit_code == 0, done.output
        assert "its newest checkpoint is checkpoint_000000004.fledge" in done.output
        assert "command:" not in done.output


def test_inspect_says_that_a_manifest_is_wrong_and_not_that_the_end_is_missing(tmp_path: Path) -> None:
    path = save_checkpoint({"w": torch.ones(3)}, tmp_path / "a")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"fledge-checkpoint 3 ", b"fledge-checkpoint 3_"))
    assert zipfile.is_zipfile(path)
    done = call("inspect", str(path))
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert "does not match the comment at the end of the zip" in done.output
    path.write_bytes(content[:-60])
    assert "complete, but not loadable without the end of the file" in call("inspect", str(path)).output
