"""Run the snippets of the README and the docs, and parse every `fledge` and `python -m benchmarks` line in them.

The Python blocks of a page run in order, as one program; `GIVEN` defines variables that a page assumes. A command line is
parsed by the real command line, its settings are checked by the real config, and its policies and env configs are loaded;
only the work itself is left out. Quick lines are also run (`RUN`, `RUN_SLOW`); `NOT_RUN` has the reason for all others.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from benchmarks.commands import main as benchmarks
from fledge.app.play.match_manager import read_play_args
from fledge.cli import main
from fledge.cli.group import split_overrides
from fledge.cli.task_options import read_vary
from fledge.core.settings import check_settings
from fledge.evaluation.comparison import task_of
from fledge.evaluation.env_config import eval_env
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge.tasks.registry import find_task
from fledge.training.command import run_training
from fledge.training.config import make_config, read_run_config
from fledge.tuning.ranges import check_ranges, read_ranges
from tests.reference.navrl_files import write_navrl_checkpoint

ROOT = Path(__file__).parent.parent
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
PAGES = [*sorted(ROOT.glob("README*.md")), ROOT / "CONTRIBUTING.md", *DOCS]

# variables that a page assumes
MODEL = "import torch\nmodel = torch.nn.Linear(3, 2)\noptimizer = torch.optim.Adam(model.parameters())\n"
GIVEN = {
    "README.md": MODEL,
    "checkpoints.md": MODEL + "state = {'model': model.state_dict(), 'optimizer': optimizer.state_dict()}\n",
    "replay.md": "import numpy as np\n"
    "episode = {'lidar': np.zeros((10, 36, 4), 'f4'), 'state': np.zeros((10, 8), 'f4'), 'action': np.zeros((9, 3), 'f4'), "
    "'reward': np.zeros(9, 'f4'), 'terminated': np.arange(9) == 8, 'truncated': np.zeros(9, bool)}\n",
}
# placeholders on the pages, and what the tests use for them
PLACEHOLDERS = {
    "RUN": "runs/mine",
    "RUNS": "runs/mine",
    "FILE": "file.pt",
    "MODE": "pipelined",
    "S": "1",
    "demo/run-...": "runs/mine",
    "runs/mine/learn_on": "runs/mine",
}

# by the first words of a line: arguments to add when it is run, or the reason for not running it
RUN = {
    "fledge --version": [],
    "fledge --help": [],
    "fledge train --help-config": [],
    "fledge inspect": [],
    "fledge convert": [],
    "fledge doctor": [],
    "fledge envelope": [],
    "fledge world rooms": [],
    "fledge watch RUN --save": [],
    "fledge watch RUN --json": [],
}
RUN_SLOW = {
    "fledge convert flights.frec crossing.webp": [],
    "fledge eval": ["--episodes", "16", "env.num_envs=16"],
    "fledge report": ["--episodes", "16", "env.num_envs=16"],
    "fledge export": [],
}
NOT_RUN = {
    "fledge actor": "needs a learner on another machine; tests/training/test_actors.py has one",
    "fledge deploy": "records flights for a minute; tests/deployment does so",
    "fledge convert flight.flog": "needs the log of a flight; tests/deployment/test_flight_logs.py makes some",
    "fledge convert duel.frec": "the moving picture of a duel is in tests/app/exporters",
    "fledge envelope --check": "takes a minute; a small one is in tests/tasks/aircombat/spacetime",
    "fledge eval --navrl-checkpoint": "needs NavRL's released checkpoint",
    "fledge world": "needs a file of the reader's; tests/cli/test_world.py makes some",
    "fledge train": "trains for minutes to hours; small runs are in tests/training",
    "fledge learn-on": "trains for minutes; small runs are in tests/training/test_learn_on.py",
    "fledge tune": "trains for minutes to hours; small sweeps are in tests/tuning",
    "fledge watch": "serves until Ctrl-C; tests/app does so",
    "fledge replay": "serves until Ctrl-C; tests/app does so",
    "fledge play": "serves until Ctrl-C; tests/app does so",
    "fledge advise": "measures for minutes; a small one is in tests/advise",
    "fledge benchmark": "flies thousands of episodes; small ones are in tests/evaluation",
    "python -m benchmarks": "measures for minutes; small ones are in tests/benchmarks",
}


class Block(NamedTuple):
    """A fenced block, or a command between backticks."""

    page: Path
    line: int
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, text[: m.start()].count("\n") + 1, m[1], m[2]) for m in found]


def inline_of(page: Path) -> list[Block]:
    """Return the commands between backticks outside of fenced blocks."""
    text = re.sub(r"^```.*?^```$", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.finditer(r"`((?:fledge|python -m benchmarks) [a-z][^`]*)`", text)
    return [Block(page, text[: m.start()].count("\n") + 1, "", " ".join(m[1].split())) for m in found]


def lines_of(block: Block) -> list[Block]:
    """Return the lines of a block without comment lines; a line that ends in a backslash is joined with the next."""
    joined = block.text.replace("\\\n", " ")
    return [block._replace(text=line) for line in joined.splitlines() if line.strip() and not line.startswith("#")]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHOWN = [line for block in BLOCKS if block.language == "" for line in lines_of(block)]
COMMANDS = [line for line in SHOWN if line.text.startswith(("fledge ", "python -m benchmarks "))]
INLINE = [line for page in PAGES for line in inline_of(page) if len(line.text.split()) > 2]


def words_of(line: Block) -> list[str]:
    """Return the arguments of a command line, with placeholders replaced."""
    words = shlex.split(line.text.removeprefix("python -m "), comments=True)[1:]
    for name, value in PLACEHOLDERS.items():
        words = [value if word == name else re.sub(rf"={name}$", f"={value}", word) for word in words]
    return words


def label(block: Block) -> str:
    return f"{page_name(block.page)}:{block.line}:{' '.join(block.text.split()[:4])}"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---- Python ------------------------------------------------------------------------------------------------------------


def test_every_block_is_python_a_preset_or_command_lines() -> None:
    assert {block.language for block in BLOCKS} == {"", "python", "cpp", "text", "yaml"}
    kinds = {line.text.split()[0] for line in SHOWN if "=" not in line.text.split()[0]}
    assert kinds == {
        "fledge",
        "fledge-runtime",
        "make",
        "python",
        "torchrun",
        "pip",
        ".",
        "tensorboard",
        "cd",
        "g++",
        "./fly",
    }


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=label)
def test_a_preset_is_read(block: Block, tmp_path: Path) -> None:
    (tmp_path / "shown.yaml").write_text(block.text)
    check_settings(make_config("navigation", str(tmp_path / "shown.yaml")))


# the Python of README.zh.md is that of README.md (tests/test_readme.py)
PYTHON_PAGES = [
    page for page in PAGES if page.name != "README.zh.md" and any(b.language == "python" for b in blocks_of(page))
]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torchrl" in page.read_text() and page.name == "replay.md":
        pytest.importorskip("torchrl")
    run_page(page, tmp_path, monkeypatch)
    if any(block.language == "cpp" for block in blocks_of(page)):
        run_cpp(page, tmp_path)


def run_cpp(page: Path, folder: Path) -> None:
    """Build and run the C++ program of a page by its command lines; the page must have what it prints."""
    if shutil.which("g++") is None or shutil.which("cc") is None:
        pytest.skip("no C++ compiler")
    program = next(block for block in blocks_of(page) if block.language == "cpp")
    (folder / "fly.cpp").write_text(program.text)
    lines = next(block.text for block in blocks_of(page) if "g++" in block.text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = subprocess.run(
        ["bash", "-ec", lines],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert f"`{told.stdout.splitlines()[-1]}`" in page.read_text()


ALONE = [block for block in BLOCKS if block.page.name == "robot.md" and block.language == "python"]


@pytest.mark.parametrize("block", ALONE, ids=label)
def test_a_snippet_of_the_robot_page_runs_alone(block: Block) -> None:
    exec(block.text, {"__name__": "snippet"})


def test_the_steps_of_the_robot_page_fly(tmp_path: Path) -> None:
    pytest.importorskip("pymavlink")
    from fledge_runtime.bridges.fake_flight_controller import FakeFlightController
    from fledge_runtime.log import read_log

    snippet: dict[str, Any] = {"__name__": "snippet"}
    exec(next(block.text for block in ALONE if "def fly_steps" in block.text), snippet)
    steps = snippet["Steps"]()
    steps.reset(None, None)
    times = [0.0, 1.9, 2.1, 4.1, 8.1, 12.1, 16.1, 20.1, 24.1]
    flown = [steps.step(types.SimpleNamespace(time_s=time)).velocity_w.tolist() for time in times]
    assert flown[:4] == [[0.8, 0, 0], [0.8, 0, 0], [0, 0, 0], [-0.8, 0, 0]]
    assert flown[4:] == [[0, 0.8, 0], [0, -0.8, 0], [0, 0, 0.8], [0, 0, -0.8], [0.8, 0, 0]]
    with FakeFlightController(14563, (0.0, 0.0, 4.0)):
        told = snippet["fly_steps"]("udpin:127.0.0.1:14563", tmp_path / "steps.flog", seconds=1.5)
    commands = [record for record in read_log(tmp_path / "steps.flog") if record.kind == "command"]
    assert len(commands) == told["decisions"] > 3


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Run the Python blocks of a page as one module, whose line numbers are those of the page."""
    monkeypatch.setattr(sys, "argv", [str(page)])  # a snippet must not read the arguments of pytest
    # several processes are in tests/test_api.py; starting them takes longer than these short trainings
    monkeypatch.setattr("fledge.training.command.default_ranks", lambda *_: 1)
    monkeypatch.chdir(folder)
    lines: list[str] = []
    for block in blocks_of(page):
        if block.language == "python":
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    source = folder / f"{page.stem.lower()}_page.py"
    source.write_text("\n".join(lines) + "\n")
    module = types.ModuleType(source.stem)
    module.__file__ = str(source)
    monkeypatch.setitem(sys.modules, source.stem, module)
    exec(GIVEN.get(page.name, ""), vars(module))
    exec(compile(source.read_text(), source, "exec"), vars(module))
    return module


# ---- command lines -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a user's folder: the examples, the task of own_task.md, and small runs under the names that the pages use."""
    folder = tmp_path_factory.mktemp("reader")
    before = Path.cwd()
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "my_package").mkdir()
    texts = [block.text for block in blocks_of(ROOT / "docs" / "guides" / "own_task.md")]
    (folder / "my_package" / "my_world.py").write_text(next(text for text in texts if "class PointEnv" in text))
    (folder / "src/fledge/tasks/navigation/policies").mkdir(parents=True)
    small = [
        "ranks=1",
        "env.num_envs=4",
        "ppo.rollout_steps=8",
        "ppo.minibatch=32",
        "total_frames=32",
        "tensorboard=false",
    ]
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    try:
        words = [*small, "env.num_maps=1", "policy.hidden=[16]"]
        run_training(find_task("navigation"), None, words, Path("runs/mine"))
        run_training(find_task("examples/hover.py"), None, small, Path("runs/hover"))
        run_training(find_task("examples/remember.py"), None, [*small, "policy.gru_size=4"], Path("runs/remember"))
        write_navrl_checkpoint(Path("navrl_checkpoint.pt"))
        CliRunner().invoke(main, ["eval", "gap", "--episodes", "2", "--record", "flights.frec", "env.num_envs=2"])
        names = {word.partition("=")[2] or word for line in (*COMMANDS, *INLINE) for word in words_of(line)}
        for name in sorted(name for name in names if name.startswith("runs/")):
            run = Path(*Path(name).parts[:2])
            if not run.exists():
                shutil.copytree("runs/mine", run)
                (run / "best.yaml").write_text("base: fast\n")  # as a sweep has it
            if name.endswith(".fledge"):
                shutil.copy(next((run / "checkpoints").glob("*.fledge")), name)
        yield folder
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield path + name, command


@functools.cache
def policy_called(name: str, task: str | None) -> LoadedPolicy:
    return load_policy(name, find_task(task) if task else None)


def check_training(arguments: tuple[str, ...], preset: str | None, resume: Path | str | None = None, **_: Any) -> None:
    tasks, overrides = [w for w in arguments if "=" not in w], [w for w in arguments if "=" in w]
    if isinstance(resume, Path):
        _, cfg = read_run_config(resume, overrides, find_task(tasks[0]) if tasks else None)
    else:
        cfg = make_config(tasks[0] if tasks else "navigation", preset, overrides)
        assert cfg.init_from == "" or policy_called(cfg.init_from, None)
    check_settings(cfg)


def check_sweep(arguments: tuple[str, ...], preset: str | None = None, mode: str | None = None, **_: Any) -> None:
    tasks, overrides = split_overrides(arguments)
    if tasks:
        ranges, fixed = read_ranges(overrides)
        check_ranges(find_task(tasks[0]), preset, ranges, fixed, mode == "pbt")


def check_flight(
    arguments: tuple[str, ...],
    task: str | None,
    vary: str | None = None,
    env_preset: str | None = None,
    **options: Any,
) -> None:
    names, overrides = split_overrides(arguments)
    found = task_of(names) if task is None and len(names) > 1 else None
    policies = [policy_called(name, found.reference if found else task) for name in names]
    key, values = read_vary(vary, options) or ("", [""])
    for policy in policies:
        for value in values:
            eval_env(policy, env_preset, [*overrides, f"{key}={value}"] if key else overrides)


def check_nothing_more(**_: Any) -> None:
    """Check nothing after parsing."""


def check_play(overrides: tuple[str, ...], **_: Any) -> None:
    read_play_args(overrides)[0].close()


CHECKS: dict[str, Callable[..., None]] = {
    "train": check_training,
    "advise": check_training,
    "eval": check_flight,
    "tune": check_sweep,
    "play": check_play,
    "report": lambda run, overrides, **options: check_flight((str(run), *overrides), **options),
    "export": lambda policy, file, overrides, task, **_: check_flight((policy, *overrides), task),
}


@pytest.mark.parametrize("line", [*COMMANDS, *INLINE], ids=label)
def test_a_command_line_is_understood(line: Block, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def check_instead(path: str) -> Callable[..., None]:
        def check(**options: Any) -> None:
            calls.append(path)
            (CHECKS.get(path, check_nothing_more) if group is main else check_nothing_more)(**options)

        return check

    group = benchmarks if line.text.startswith("python -m benchmarks") else main
    monkeypatch.chdir(ROOT if group is benchmarks else home)  # `python -m benchmarks` works in a checkout only
    for path, command in leaves(group):
        monkeypatch.setattr(command, "callback", check_instead(path))
    done = CliRunner().invoke(group, words_of(line), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert calls or words_of(line)[0] in ("--help", "--version")


def test_a_wrong_command_option_or_setting_is_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        "fledge fly fledge-nav",
        "fledge eval fledge-nav --episode-count 3",
        "fledge train navigation env.moving_obstacle=3",
        "fledge train navigation algo=sca",
        "fledge eval fledge-nav env.speed=3",
        "fledge eval no-such-policy",
        "fledge bench sim",
        "python -m benchmarks sin",
        "fledge export runs/mine a.fledge env.decimations=3",
        "fledge tune navigation ppo.learn=1e-4..1e-2",
        "fledge advise --preset nowhere",
    ):
        with pytest.raises((AssertionError, ValueError)):
            test_a_command_line_is_understood(Block(ROOT, 1, "", wrong), home, monkeypatch)


def chosen(line: Block, table: dict[str, Any]) -> str | None:
    """Return the longest key of a table that a line starts with."""
    return max((start for start in table if line.text.startswith(start)), key=len, default=None)


def test_every_command_line_is_run_or_there_is_a_reason() -> None:
    undecided = [line.text for line in COMMANDS if chosen(line, RUN | RUN_SLOW | NOT_RUN) is None]
    assert not undecided
    assert all(NOT_RUN.values())


def to_run(table: dict[str, list[str]]) -> list[Any]:
    every = RUN | RUN_SLOW | NOT_RUN
    return [pytest.param(line, table[start], id=label(line))
            for line in COMMANDS if (start := chosen(line, every)) in table]  # fmt: skip


def run_line(line: Block, more: list[str]) -> None:
    done = CliRunner().invoke(main, [*words_of(line), *more])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("line", "more"), to_run(RUN))
def test_a_quick_command_line_runs(line: Block, more: list[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    run_line(line, more)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "more"), to_run(RUN_SLOW))
def test_a_longer_command_line_runs(line: Block, more: list[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    run_line(line, more)


def test_settings_shown_alone_are_known() -> None:
    shown = [line for line in SHOWN if "=" in line.text.split()[0]]
    assert shown
    for line in shown:
        check_settings(make_config("navigation", None, shlex.split(line.text)))


def test_every_make_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    inline = [target for page in PAGES for target in re.findall(r"`make ([a-z-]+)`", page.read_text())]
    assert {line.text.split()[1] for line in SHOWN if line.text.startswith("make ")} | set(inline) <= targets
