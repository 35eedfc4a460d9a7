"""Algorithms by name: the built-in ones and a user's own, which trains, resumes and is refused like them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.learn.base import Learner
from fledge.learn.ppo import PPO
from fledge.learn.registry import ALGORITHMS, find_learner
from fledge.storage import load_checkpoint
from fledge.training.config import make_config, read_run_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks

A2C = str(Path(__file__).parents[2] / "examples" / "a2c.py") + ":A2C"
TINY = ["env.num_envs=8", "env.num_maps=1", "env.static_obstacles=20", "env.moving_obstacles=4", "policy.hidden=[8]"]
TINY += ["tensorboard=false", "save_interval=1", "algo_config.rollout_steps=4", "total_frames=128"]
OFF_POLICY = '''
from dataclasses import dataclass
from fledge.core.settings import setting
from fledge.learn.sac import SAC, SACConfig

@dataclass
class Config(SACConfig):
    boldness: float = setting(1.0, above=0)
    """Scale of the rewards."""

class Bold(SAC):
    config = Config

    def step(self, batch):
        return super().step({**batch, "reward": batch["reward"] * self.cfg.boldness})
'''


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(sorted(folder.glob("checkpoints/*.fledge"))[-1])["model"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_built_in_algorithms_are_found_by_name_and_by_reference(algo: str) -> None:
    learner = find_learner(algo)
    assert issubclass(learner, Learner)
    assert learner is find_learner(ALGORITHMS[algo])
    assert learner.policy_form == algo


@pytest.mark.parametrize("mode", ["sync", "halves"])
def test_a_users_algorithm_resumes_bit_for_bit(mode: str, tmp_path: Path) -> None:
    words = [*TINY, f"algo={A2C}", f"collect.mode={mode}", "algo_config.lr=0.01"]
    cfg = make_config("navigation", "", words)
    assert cfg.algo_settings.lr == 0.01
    assert cfg.steps == 4
    train(cfg, tmp_path / "whole", Ranks())
    train(make_config("navigation", "", [*words, "max_minutes=1e-9"]), tmp_path / "cut", Ranks())
    assert not same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    _, again = read_run_config(tmp_path / "cut", [f"algo={A2C}", "max_minutes=0"])
    assert again.algo_settings.lr == 0.01
    train(again, tmp_path / "cut", Ranks(), resume=True)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_an_off_policy_algorithm_of_ones_own_learns_from_replay(tmp_path: Path) -> None:
    (tmp_path / "bold.py").write_text(OFF_POLICY)
    words = ["env.num_envs=4", "replay.steps=4", "replay.segment=2", "replay.warm_up=8", "replay.batch=8"]
    words += ["policy.hidden=[8]"]
    words += ["replay.updates=1", "tensorboard=false", "total_frames=128", f"algo={tmp_path / 'bold.py'}:Bold"]
    words += ["algo_config.critic_hidden=[8]"]
    kept = {}
    for boldness in (1.0, 3.0):
        folder = tmp_path / str(boldness)
        train(make_config("gym:Pendulum-v1", "", [*words, f"algo_config.boldness={boldness}"]), folder, Ranks())
        kept[boldness] = weights(folder)
    assert not same(kept[1.0], kept[3.0])


def test_it_takes_the_preset_of_the_policy_form_it_learns_with() -> None:
    own, fast = make_config("navigation", None, [f"algo={A2C}"]), make_config("navigation", "fast")
    assert own.env == fast.env
    assert own.algo == A2C
    assert own.learner.policy_form == "ppo"


def test_code_in_a_file_is_not_run_unless_the_user_names_it(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"algo: {tmp_path / 'evil.py'}:Evil\n")
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ConfigError, match="is not run unless you name it: add algo="):
        make_config("navigation", str(preset))
    train(make_config("navigation", "", [*TINY, f"algo={A2C}"]), tmp_path / "run", Ranks())
    with pytest.raises(ConfigError, match="is not run unless you name it: add algo="):
        read_run_config(tmp_path / "run")
    run = CliRunner()
    done = run.invoke(main, ["train", "--resume", str(tmp_path / "run"), "total_frames=256"])
    assert done.exit_code == 2
    assert "is not run unless you name it" in done.output
    done = run.invoke(main, ["train", "--resume", str(tmp_path / "run"), "total_frames=256", f"algo={A2C}", "ranks=1"])
    assert done.exit_code == 0, done.output
    done = run.invoke(main, ["eval", str(tmp_path / "run"), "--episodes", "4", "env.num_maps=1"])  # needs no algorithm
    assert done.exit_code == 0, done.output


def test_its_settings_are_explained() -> None:
    done = CliRunner().invoke(main, ["train", f"algo={A2C}", "algo_config.lr=0.5", "--help-config"])
    assert "algo_config.lr=0.5  # given here; default 0.002" in done.output
    assert "Learning rate of RMSprop" in done.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("class X: pass", "must be a subclass of Learner"),
        ("from fledge.learn.base import Learner as X", "that defines update"),
        ("from fledge.learn.ppo import PPO\nclass X(PPO): config = None", "has no valid attribute `config`"),
        ("from fledge.learn.ppo import PPO\nclass X(PPO): policy_form = 'sac'", "but it must be ppo"),
        ("from fledge.learn.sac import SAC\nclass X(SAC): policy_form = 'ppo'", "but it must be sac, td3 or dqn"),
        ("from fledge.learn.ppo import PPO\nfrom fledge.learn.sac import SACConfig\nclass X(PPO): config = SACConfig",
         "has no field rollout_steps"),
    ],
)  # fmt: skip
def test_a_class_that_breaks_the_contract_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        make_config("navigation", "", [f"algo={tmp_path / 'x.py'}:X"])


def test_wrong_names_and_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo=sca is not a known algorithm\. Choose one of ppo, sac, td3, dqn"):
        make_config("navigation", "", ["algo=sca"])
    with pytest.raises(ConfigError, match="does not correct for"):
        check_settings(make_config("navigation", "", [f"algo={A2C}", "collect.mode=pipelined"]))
    assert PPO.corrects_stale


def test_earlier_names_of_settings_still_work() -> None:
    cfg = make_config("aircombat", "", ["league.mirror=0.25", "league.climb=false"])
    assert (cfg.league.self_play, cfg.league.advance) == (0.25, False)
