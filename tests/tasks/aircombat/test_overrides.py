"""`fledge train aircombat` under midrangeRL's names: as words, as options, in files; and hardware profiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fledge.cli import main
from fledge.cli.train import flags_to_overrides
from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.learn.ppo import Precision
from fledge.training.config import TrainConfig, make_config


def make(words: str, preset: str | None = None) -> TrainConfig:
    return make_config("aircombat", preset, flags_to_overrides(words.split(), ["aircombat"]))


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["train", *words])


def test_the_documented_command_means_what_it_says() -> None:
    cfg = make("agent=ppo opponent=crank reward=shaped env.num_envs=4096 time_scale=1 device=cpu")
    check_settings(cfg)
    assert cfg.algo == "ppo"
    assert (cfg.env.opponent, cfg.env.reward, cfg.env.num_envs) == ("crank", "shaped", 4096)
    assert (cfg.env.time_scale, cfg.device, cfg.reward) == (1.0, "cpu", "")


def test_an_opponent_that_is_named_is_met_alone_unless_a_ladder_is_named_too() -> None:
    assert make("").league.ladder
    assert make("opponent=crank").league.ladder == []
    assert make("env.opponent=crank league.ladder=[placeholder,crank]").league.ladder == ["placeholder", "crank"]


NAMES = {
    "agent ppo": ("algo", "ppo"),
    "opponent crank(shot=0.8)": ("env.opponent", "crank(shot=0.8)"),
    "reward win_loss+0.5*shaped": ("env.reward", "win_loss+0.5*shaped"),
    "num_envs 512": ("env.num_envs", 512),
    "time_scale 4": ("env.time_scale", 4.0),
    "device cpu": ("device", "cpu"),
    "lr 3e-4": ("ppo.lr", 3e-4),
    "n_steps 128": ("ppo.rollout_steps", 128),
    "batch_size 64": ("ppo.minibatch", 64),
    "n_epochs 10": ("ppo.epochs", 10),
    "gamma 0.98": ("ppo.gamma", 0.98),
    "gae_lambda 0.9": ("ppo.gae_lambda", 0.9),
    "clip_epsilon 0.1": ("ppo.clip", 0.1),
    "value_loss_coef 0.5": ("ppo.value_coef", 0.5),
    "entropy_coef 0.01": ("ppo.entropy_coef", 0.01),
    "save_interval 7": ("save_interval", 7),
    "log_interval 9": ("log_interval", 9),
    "seed 42": ("seed", 42),
}


@pytest.mark.parametrize("written", NAMES)
@pytest.mark.parametrize("form", ["{name}={value}", "--{name} {value}", "--{name}={value}", "--{dashed} {value}"])
def test_every_documented_name_is_understood_as_a_word_and_as_an_option(written: str, form: str) -> None:
    name, value = written.split(" ")
    key, expected = NAMES[written]
    cfg = make(form.format(name=name, dashed=name.replace("_", "-"), value=value))
    found: object = cfg
    for part in key.split("."):
        found = getattr(found, part)
    assert found == expected


def test_a_step_of_all_envs_and_a_frame_of_time_are_counted_as_there() -> None:
    assert make("max_steps=10000 num_envs=32").total_frames == 320_000
    with pytest.raises(ConfigError, match="max_steps=1e4 and total_frames=5 both set total_frames"):
        make("num_envs=32 max_steps=1e4 total_frames=5")
    assert make("episode_max_steps=3600").env.max_episode_s == pytest.approx(60.0)
    assert make("episode_max_steps=3600 time_scale=4").env.max_episode_s == pytest.approx(240.0)
    with pytest.raises(ConfigError, match=r"max_steps=many does not fit|total_frames=many does not fit"):
        make("max_steps=many")


def test_options_without_a_value_are_true_and_do_not_swallow_the_task() -> None:
    assert flags_to_overrides(["--verbose", "aircombat", "--render", "--seed", "3"], ["aircombat"]) == [
        *("verbose=true", "aircombat", "render=true", "seed=3"),
    ]
    check_settings(make("--verbose --render"))
    assert flags_to_overrides(["--lr", "-1"]) == ["lr=-1"]
    with pytest.raises(ConfigError, match="-n is not an option: write --name value"):
        flags_to_overrides(["-n", "32"])


def test_the_command_line_takes_them_in_any_order() -> None:
    shown = call("--verbose", "aircombat", "--num-envs", "512", "--reward", "zero", "lr=0.002", "--help-config")
    assert shown.exit_code == 0, shown.output
    for line in ("env.num_envs=512", "env.reward=zero", "ppo.lr=0.002"):
        assert f"{line}  # given here" in shown.output
    assert "algo=sac  # " in call("aircombat", "--agent", "sac", "--help-config").output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["aircombat", "--foldr", "x"], "Did you mean '--folder'?"),
        (["aircombat", "--num-env", "4"], "There is no setting num_env. Did you mean env.num_envs?"),
        (
            ["aircombat", "--agent", "placeholder"],
            "algo=placeholder is not a known algorithm. Choose one of ppo, sac, td3, dqn",
        ),
        (["aircombat", "opponent=ace"], "'ace' is not a known pilot"),
        (["aircombat", "reward=loot"], "'loot' is not a known reward"),
        (["aircombat", "hardware=huge"], "hardware=huge is not a preset: choose one of h100, large, medium, "),
        (["gym:CartPole-v1", "hardware=small"], "There is no setting hardware."),
    ],
)
def test_misuse_gets_a_sentence(words: list[str], sentence: str) -> None:
    result = call(*words, "ranks=1")
    assert result.exit_code == 2
    assert sentence in result.output


def test_reward_names_terms_of_the_world_and_code_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def pay(env, action, out):\n    return out['reward']\n")
    code = f"{tmp_path / 'mine.py'}:pay"
    cfg = make(f"reward={code} opponent=random")
    assert (cfg.reward, cfg.env.reward) == (code, "win_loss+0.2*shaped")
    both = make(f"reward={code} reward=win_loss")
    assert (both.reward, both.env.reward) == (code, "win_loss")
    assert make("reward=tests.reference.toy_worlds:task").reward == "tests.reference.toy_worlds:task"


def test_a_file_runs_no_code_that_the_user_does_not_name(tmp_path: Path) -> None:
    preset = tmp_path / "theirs.yaml"
    preset.write_text("env: {reward: 'win_loss+0.1*somebody:Term'}\n")
    with pytest.raises(
        ConfigError, match=r"env\.reward names .*is code and is not run unless you name it: add env\.reward="
    ):
        make("", str(preset))
    assert make("env.reward=win_loss+0.1*somebody:Term", str(preset)).env.reward == "win_loss+0.1*somebody:Term"
    preset.write_text("reward: 'somebody:pay'\n")
    with pytest.raises(ConfigError, match="is code and is not run"):
        make("reward=shaped", str(preset))


def test_the_names_hold_in_a_file_too(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text("opponent: crank\nreward: shaped\nn_steps: 16\nmax_steps: 100\nhardware: medium\nrender: true\n")
    cfg = make("", str(preset))
    assert (cfg.env.opponent, cfg.env.reward, cfg.ppo.rollout_steps) == ("crank", "shaped", 16)
    assert (cfg.env.num_envs, cfg.total_frames) == (8192, 819_200)


def test_a_hardware_profile_chooses_envs_batch_and_precision_and_words_after_it_win() -> None:
    sizes = []
    for name in ("small", "medium", "large"):
        cfg = make(f"hardware={name}")
        check_settings(cfg)
        sizes.append((cfg.env.num_envs, cfg.ppo.minibatch))
        assert cfg.env.num_envs * cfg.ppo.rollout_steps >= 2 * cfg.ppo.minibatch
        assert cfg.env.opponent == make("").env.opponent  # nothing else
    assert sizes == sorted(sizes)
    assert sizes[0][0] < sizes[1][0] < sizes[2][0]
    assert make("hardware=small").ppo.precision is Precision.fp32
    assert make("hardware=large").ppo.precision is Precision.auto
    assert make("hardware=large num_envs=64").env.num_envs == 64
