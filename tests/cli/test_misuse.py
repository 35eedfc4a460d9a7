"""Misuse of any command gets one sentence, and no traceback."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.evaluation.evaluate import evaluate
from fledge.storage import save_checkpoint
from tests.cli.policy_files import call


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eval"], "Name a policy"),
        (["eval", "nobody"], "There is no policy"),
        (["eval", "gap", "--episodes", "0"], "at least 1"),
        (["eval", "gap", "--env", "moon"], "There is no env preset"),
        (["eval", "gap", "env.num_envs=-3"], "1 to 16777216"),
        (["eval", "gap", "env.numenvs=3"], "Did you mean env.num_envs?"),
        (["eval", "gap", "env.num_envs=many"], "env.num_envs takes a whole number"),
        (["eval", "gap", "env.min_height_m=5"], "env.min_height_m is 5.0, but must be 0 to 0.5."),
        (["eval", "gap", "ppo.lr=1"], "only env settings can be changed here"),
        (["eval", "gap", "numenvs=1"], "only env settings can be changed here"),
        (["eval", "gap", "env.num_maps=16000000"], "GiB"),
        (["eval", "--navrl-checkpoint", "missing.pt"], "There is no checkpoint"),
        (["eval", "--navrl-checkpoint", __file__], "only plain tensors are allowed"),
        (["export", "gap", "out.onnx"], "has no weights to export"),
        (["inspect", "missing.fledge"], "missing.fledge"),
        (["inspect", "."], "holds no checkpoints"),
        (["convert", "missing.pt", "x.fledge"], "no checkpoint at missing.pt"),
        (["convert", __file__, "x.txt"], "must end in one of"),
        (["eval", "gap", "--threads", "0"], "--threads"),
        (["export", "fledge-nav", "x.ts", "ppo.lr=1"], "only env settings can be changed here"),
    ],
)
def test_misuse_gets_one_sentence(words: list[str], sentence: str) -> None:
    done = call(*words)
    assert done.exit_code in (1, 2), done.output
    assert sentence in done.output
    assert "Traceback" not in done.output


def test_a_pipe_for_a_file_gets_one_sentence_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.fledge")
    for words in (["eval"], ["inspect"], ["convert", "o.pt"], ["watch"], ["report"], ["replay"], ["doctor"]):
        done = call(words[0], "pipe.fledge", *words[1:])
        assert done.exit_code in (1, 2), words
        assert "It is a named pipe" in done.output, words


def test_control_characters_in_a_name_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[31m\nname.fledge"
    path.write_bytes(b"x")
    for command in ("eval", "inspect", "report"):
        done = call(command, str(path))
        assert "evil\\x1b[31m\\nname.fledge does not begin like a checkpoint" in done.output
        assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eval", "--nope"], "fledge: No such option '--nope'. See `fledge eval --help`.\n"),
        (["export"], "fledge: Missing argument 'POLICY'. See `fledge export --help`.\n"),
        (["evaal"], "fledge: No such command 'evaal'. Did you mean"),
    ],
)
def test_a_wrong_option_is_told_as_every_error_is(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, words, prog_name="fledge")
    assert done.exit_code == 2
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


def test_output_to_a_full_disk_gets_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "fledge", "envelope", "--help"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr == "fledge: The output cannot be used: the disk is full. Free some space, or choose another path.\n"
    )


BROKEN = {
    "odd": ({"model": 3, "policy": [1], "task": 7}, "its entry 'model' is empty or has a wrong type"),
    "hollow": ({"model": {}, "policy": {}, "task": "navigation"}, "its entry 'model' is empty or has a wrong type"),
    "misfit": (
        {
            "model": {"a": torch.ones(2)},
            "policy": {"kind": "features", "hidden": [8], "lidar": [36, 4], "range_m": 4.0},
            "task": "navigation",
        },
        "The weights in",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", [["eval"], ["export", "p.ts"], ["export", "p.fledge", "env.speed_limit=1"]])
def test_a_file_that_is_no_policy_gets_one_sentence(name: str, command: list[str], tmp_path: Path) -> None:
    state, sentence = BROKEN[name]
    save_checkpoint(state, tmp_path / "p0.fledge")
    rest = [word if "=" in word else str(tmp_path / word) for word in command[1:]]
    done = call(command[0], str(tmp_path / "p0.fledge"), *rest)
    assert done.exit_code == 1, done.output
    assert sentence in done.output


@pytest.mark.parametrize(
    "words",
    [
        ["export", "fledge-nav", "FILE/p.ts"],
        ["export", "fledge-nav", "FILE/p.fledge"],
        ["export", "fledge-nav", "/proc/p.ts"],
        ["export", "fledge-nav", "p.ts", "--golden", "FILE/g.npz"],
        ["convert", "POLICY", "FILE/p.pt"],
        ["eval", "fledge-nav", "--picture", "FILE/p.png"],
    ],
)
def test_a_place_that_cannot_be_written_gets_one_sentence(
    words: list[str], policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    done = call(*(str(policy_file) if word == "POLICY" else word for word in words))
    assert done.exit_code == 1, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert re.search(r"cannot be (made|used)|could not be written", done.output)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "navigaton"], "Did you mean navigation?"),
        (["train", "navigation", "env=64"], "env=64 is not a preset: choose one of crossing, default,"),
        (["train", "navigation", "env.num_envs"], "a setting needs a value: env.num_envs=VALUE"),
        (["train", "navigation", ""], "'navigation' and '' were given"),
        (["train", "navigation", "env.num_envs=1e99"], "must be 1 to 16777216"),
        (["train", "navigation", "seed=-1"], "must be 0 to 9223372036854775807"),
    ],
)
def test_a_slip_gets_a_sentence_that_helps(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert sentence in done.output


def test_no_command_replaces_the_files_of_a_run(tmp_path: Path, policy_file: Path) -> None:
    run, saved = tmp_path / "run", tmp_path / "run/checkpoints/checkpoint_000000008.fledge"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(policy_file.read_bytes())
    (run / "config.yaml").write_text("task: navigation")
    files = {path: path.read_bytes() for path in (saved, policy_file, run / "config.yaml")}
    for words, sentence in (
        (["report", run, "--out", run / "config.yaml"], "must end in .html"),
        (["report", run, "--out", saved.with_suffix(".html")], "belongs to the run"),
        (["export", policy_file, saved], "belongs to the run"),
        (["export", policy_file, policy_file], "is the file that is read"),
        (["export", policy_file, saved.with_suffix(".onnx")], "belongs to the run"),
        (["export", policy_file, tmp_path / "x.onnx", "--golden", saved.with_suffix(".npz")], "belongs to the run"),
        (["convert", policy_file, saved], "belongs to the run"),
        (["eval", "gap", "--record", saved.with_suffix(".frec")], "belongs to the run"),
        (["benchmark", "density", "--picture", saved.with_suffix(".png")], "belongs to the run"),
        (["watch", run, "--save", saved.with_suffix(".html")], "belongs to the run"),
        (["advise", "--picture", saved.with_suffix(".png")], "belongs to the run"),
    ):
        done = call(*map(str, words))
        assert done.exit_code in (1, 2), words
        assert sentence in done.output.replace("\n", " "), (words, done.output)
    with pytest.raises(ConfigError, match="belongs to the run"):
        evaluate("gap", episodes=1, picture=saved.with_suffix(".png"))
    assert {path: path.read_bytes() for path in files} == files
    assert len(list(saved.parent.iterdir())) == 1
