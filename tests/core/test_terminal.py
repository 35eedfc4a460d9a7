"""Text reaches people as it is: brackets stay, and a file gets no empty lines from progress bars."""

from __future__ import annotations

import ast
import importlib
import io
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.table import Table

import fledge.core.terminal
from fledge.cli import main
from fledge.core.errors import MissingExtraError
from fledge.core.extras import install_command
from fledge.core.terminal import counting, doing, duration, make_console, say
from fledge.storage import save_checkpoint

SRC = Path(fledge.core.terminal.__file__).parents[1]
BRACKETS = "a [bold]b[/bold] :smile: [/c] 'fledge[wandb]'"


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_line_is_printed_as_it_is_and_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    text = BRACKETS + " and so on" * 20
    say(make_console(), text)
    assert capsys.readouterr().out == text + "\n"


def test_tables_and_their_titles_keep_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="runs/[a]")
    table.add_column("[heading]")
    table.add_row(BRACKETS)
    make_console().print(table)
    printed = capsys.readouterr().out
    for text in ("runs/[a]", "[heading]", BRACKETS):
        assert text in printed


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_keeps_brackets_and_is_seen_on_terminals_only(terminal: bool) -> None:
    console = make_console()
    console.file = io.StringIO()
    console._force_terminal, console._width, console.is_interactive = terminal, 100, terminal  # type: ignore[attr-defined]
    with counting(console, "runs/[a] at 350", 10) as count:
        count(10)
    printed = console.file.getvalue()
    assert ("runs/[a] at 350" in printed) == terminal
    assert terminal or printed == ""


def test_off_a_terminal_what_is_done_is_told_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    with doing(make_console(stderr=True), "bench") as tell:
        tell("[first]")
        tell("second")
    assert capsys.readouterr().err == "bench: [first]\nbench: second\n"


def test_every_console_of_ours_is_made_in_one_place() -> None:
    """A Console or print of rich's own would take brackets for styles."""
    wrong = []
    for path in SRC.rglob("*.py"):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
            taken = isinstance(node, ast.ImportFrom) and node.module == "rich"
            wrong += [f"{path.name}:{node.lineno}"] if called or taken else []
    assert not wrong


def test_a_file_with_brackets_in_its_name_is_inspected_by_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_checkpoint({"w": torch.zeros(2)}, "[red].fledge")
    assert "[red].fledge: checkpoint" in CliRunner().invoke(main, ["inspect", "[red].fledge"]).output


MODULES = [
    ("torchrl", "fledge.envs.adapters.torchrl", "torchrl"),
    ("torchrl", "fledge.replay.torchrl_storage", "torchrl"),
    ("torchrl", "fledge.collect.compress_transform", "torchrl"),
    ("stable_baselines3", "fledge.envs.adapters.stable_baselines3", "stable-baselines3"),
]


@pytest.mark.parametrize(("package", "module", "extra"), MODULES, ids=[row[1] for row in MODULES])
def test_a_missing_package_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError) as caught:
        importlib.import_module(module)
    assert str(caught.value) == f"{package} is not installed. Install it: {install_command(extra)}"
    assert isinstance(caught.value, ImportError)


def test_export_without_onnx_names_the_extra_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = CliRunner().invoke(main, ["export", "fledge-nav", str(tmp_path / "policy.onnx")])
    assert (done.exit_code, done.stderr) == (
        2,
        f"fledge: onnx is not installed. Install it: {install_command('export')}\n",
    )


def test_training_without_wandb_names_the_extra_whole_and_prints_no_empty_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = ["gym:CartPole-v1", "wandb.mode=offline", "ranks=1", "env.num_envs=2", "total_frames=64"]
    words += ["ppo.rollout_steps=16", "ppo.minibatch=32", "tensorboard=false", "--folder", str(tmp_path / "run")]
    done = CliRunner().invoke(main, ["train", *words])
    assert done.exit_code == 0, done.output
    assert f"wandb is not installed ({install_command('wandb')})" in done.stderr
    assert all(line.strip() for line in done.stderr.splitlines()), done.stderr


def test_a_flight_tells_names_with_brackets_and_prints_no_empty_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["env.num_envs=16", "env.num_maps=2", "env.static_obstacles=30", "env.moving_obstacles=8"]
    done = CliRunner().invoke(main, ["eval", "straight", "--episodes", "16", "--picture", "[a].png", *words])
    assert done.exit_code == 0, done.output
    assert done.stderr == "picture: [a].png\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (119.6, "2 min 0 s"),
        (3599.7, "1 h 0 min"),
        (3600 + 59 * 60 + 40, "2 h 0 min"),
        (86399, "1 d 0 h"),
        (86400 + 5400, "1 d 2 h"),
    ],
)
def test_durations_are_rounded_before_they_are_split(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_off_a_terminal_progress_is_a_line_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fledge.core.terminal.EVERY_S", 0.0)
    for quiet in (False, True):
        file = io.StringIO()
        with counting(make_console(file=file), "gap", 1024, quiet) as on_progress:
            on_progress(512)
        assert file.getvalue() == ("" if quiet else "gap: 512 of 1,024\n")
