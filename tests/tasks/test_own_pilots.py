"""Scripted policies of a user's own: in a task's `pilots`, and as file.py:Class wherever a policy is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import fledge
from fledge.app.play.match_manager import read_play_args
from fledge.app.play.roster import Roster
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.tasks.policy_loader import find_agent, load_policy
from fledge.tasks.registry import find_task
from fledge.training.command import run_training
from fledge.training.config import make_config, read_run_config, with_named_code

DUEL = """
import torch
from own_gain import GAIN  # a file next to this one
from fledge.tasks.aircombat.pilots import Pilot
from fledge.tasks.aircombat.task import AircombatTask

class Weaver(Pilot):
    name = "weaver"

    def __init__(self, num_envs=1, gain=GAIN):
        super().__init__(num_envs)
        self.gain = gain

    def fly(self, seen):
        from own_gain import THROTTLE  # also inside a function

        return (self.gain * seen.bearing).clamp(-1, 1), torch.full_like(seen.range, THROTTLE), seen.over_tr < 0.9

class MyDuel(AircombatTask):
    name = "my_duel"

    def pilots(self):
        return {"weaver": Weaver}

def no_agent(gain=1.0):
    return 3
"""
CLIMB = """
import torch
from fledge import BaseAgent

class Climb(BaseAgent):
    observes = ("state",)

    def act(self, obs, deterministic=True):
        return torch.tensor([0.9, 0.5, 0.6]).expand(len(obs["state"]), 3)
"""
SMALL = [
    "env.num_envs=4",
    "env.spacetime=true",
    "ppo.rollout_steps=2",
    "ppo.minibatch=8",
    "total_frames=8",
    "ranks=1",
    "tensorboard=false",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    (made / "own_gain.py").write_text("GAIN, THROTTLE = 2.0, 1.0\n")
    (made / "my_duel.py").write_text(DUEL)
    (made / "climb.py").write_text(CLIMB)
    return made


@pytest.fixture(scope="module")
def weaver(folder: Path) -> str:
    return f"{folder / 'my_duel.py'}:Weaver"


@pytest.fixture(scope="module")
def run(folder: Path, weaver: str) -> Path:
    """A run against an own pilot, by way of a ladder that names it too."""
    words = [*SMALL, f"env.opponent={weaver}(gain=1)", f"league.ladder=[{weaver},placeholder]"]
    run_training(find_task("aircombat"), None, words, folder / "run")
    return folder / "run"


def flown(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_class_in_a_file_is_a_policy_in_python_with_its_task_and_parameters(weaver: str) -> None:
    policy = fledge.load_policy(f"{weaver}(gain=0.5)")
    assert (policy.task.name, policy.agent.gain) == ("aircombat", 0.5)
    assert fledge.load_policy(weaver).agent.gain == 2.0


def test_a_class_in_a_file_flies_in_evaluations_and_behind_a_shield(folder: Path, weaver: str) -> None:
    assert "Weaver" in flown("eval", weaver, "crank", "--episodes", "2", "env.max_episode_s=20")
    climb, small = (
        f"{folder / 'climb.py'}:Climb",
        ["env.num_envs=2", "env.static_obstacles=5", "env.moving_obstacles=0"],
    )
    small += ["env.max_episode_steps=100", "env.num_maps=1"]
    assert "Climb" in flown("eval", climb, f"{climb}+orca", "--episodes", "2", *small)


def test_the_pilots_of_a_subclass_are_opponents_and_take_part_in_its_evaluations(folder: Path) -> None:
    task = find_task(str(folder / "my_duel.py"))
    env = task.make_env(task.config(num_envs=2, opponent="weaver"))
    env.reset()
    env.step({"rudder": torch.zeros(2), "throttle": torch.ones(2), "fire": torch.zeros(2, dtype=torch.int64)})
    env.close()
    with pytest.raises(ConfigError, match=r"env.opponent='weavr' is not a known pilot. Did you mean weaver\?"):
        task.make_env(task.config(num_envs=2, opponent="weavr"))
    own = ["--task", str(folder / "my_duel.py"), "--episodes", "2", "env.max_episode_s=20"]
    assert "fledge-duel" in flown("eval", "weaver", "fledge-duel", *own)


def test_a_run_against_an_own_pilot_resumes_only_when_it_is_named(run: Path, weaver: str) -> None:
    for words in ([], [f"env.opponent={weaver}(gain=1)"]):
        with pytest.raises(
            ConfigError, match=r"is code and is not run unless you name it: add (env.opp|league.ladder)"
        ):
            run_training(None, None, [*words, "total_frames=16"], run, True)
    words = [f"env.opponent={weaver}(gain=1)", f"league.ladder=[{weaver},placeholder]", "total_frames=16"]
    done = run_training(None, None, words, run, True)
    assert done.metrics["frames"] == 16


def test_a_run_against_an_own_pilot_is_evaluated_without_its_code(
    run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fledge.tasks.policy_loader.find_object", lambda name: pytest.fail(f"{name} was run"))
    flown("eval", str(run), "placeholder", "--episodes", "2", "env.max_episode_s=20")
    roster = Roster(find_task("aircombat"))
    roster.begin([roster.add(str(run)), "placeholder"]).close()


def test_preset_files_do_not_run_an_opponents_code(tmp_path: Path, weaver: str) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text(f"env:\n  opponent: {weaver}\n")
    with pytest.raises(ConfigError, match=r"env.opponent names .*my_duel.py:Weaver, which is code"):
        make_config("aircombat", str(preset))
    preset.write_text(f"league:\n  ladder: [crank, '{weaver}']\n")
    with pytest.raises(ConfigError, match=r"add league.ladder='\[crank,.*my_duel.py:Weaver\]'"):
        make_config("aircombat", str(preset))


def test_a_resumed_config_names_the_file_by_its_whole_path(run: Path, weaver: str) -> None:
    words = [f"env.opponent={weaver}(gain=1)", f"league.ladder=[{weaver},placeholder]"]
    _, cfg = read_run_config(run, words)
    assert with_named_code(cfg, words).env.opponent == f"{weaver}(gain=1)"


def test_play_takes_a_class_in_a_file_from_the_command_line_but_not_from_a_page(weaver: str) -> None:
    manager, path = read_play_args(["aircombat", f"opponent={weaver}"])
    assert "Weaver" in path
    with pytest.raises(ConfigError, match="is not a known pilot or policy"):
        manager.roster.load(f"{weaver}(gain=1)")
    manager.close()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (":Weavr", r"my_duel.py has no Weavr. Did you mean Weaver\?"),
        (":MyDuel", "MyDuel is not an agent: it must be a subclass of fledge.BaseAgent"),
        (":no_agent", "no_agent returned a int, but must return a fledge.BaseAgent"),
        (":Weaver(gian=1)", r"has no parameter gian\. Did you mean gain\? Its parameters are gain"),
    ],
)
def test_what_is_no_agent_gets_one_sentence(folder: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_policy(f"{folder / 'my_duel.py'}{name}")


def test_near_misses_of_names_are_pointed_out() -> None:
    duel = find_task("aircombat")
    with pytest.raises(ConfigError, match=r"There is no policy 'cranck'. Did you mean crank\?"):
        load_policy("cranck", duel)
    with pytest.raises(
        ConfigError, match=r"has no parameter sot. Did you mean shot\? Its parameters are shot, angle, break_s\."
    ):
        find_agent(duel, "crank(sot=1)")
    with pytest.raises(ConfigError, match=r"There is no train preset 'legue'. Did you mean league\?"):
        make_config("aircombat", "legue")
    with pytest.raises(ConfigError, match=r"There is no task 'navigatoin'. Did you mean navigation\?"):
        find_task("navigatoin")
