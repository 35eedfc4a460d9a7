"""Presets, overrides, and the sentences for what does not fit."""

import pytest

from fledge.core.errors import ConfigError
from fledge.envs.navigation.config import RewardKind
from fledge.train.config import TrainConfig
from fledge.train.overrides import build_config, field_help, preset_names


def make(*words: str, preset: str = "fast") -> TrainConfig:
    return build_config(TrainConfig, [("train", preset)], list(words))


@pytest.mark.parametrize("name", preset_names("train"))
def test_every_training_preset_is_valid(name: str) -> None:
    make(preset=name).validate()


@pytest.mark.parametrize("name", preset_names("env"))
def test_every_task_preset_is_valid(name: str) -> None:
    build_config(TrainConfig, [("env", name)], []).validate()


def test_the_four_task_presets_ship() -> None:
    assert set(preset_names("env")) >= {"default", "navrl", "static", "empty"}


def test_a_preset_then_overrides_in_order() -> None:
    cfg = make("env=navrl", "env.reward.height=3", "env.num_envs=7")
    assert (cfg.env.reward.kind, cfg.env.reward.height, cfg.env.num_envs) == (RewardKind.navrl, 3.0, 7)


def test_every_field_can_be_overridden_with_its_own_default() -> None:
    for key, field in field_help(TrainConfig).items():
        make(f"{key}={field.default}")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("env.static_obstacles=9", "env.num_obstacles=9"), ("env.moving_obstacles=8", "env_dyn.num_obstacles=8")],
)
def test_navrls_names_mean_ours(ours: str, theirs: str) -> None:
    assert make(ours) == make(theirs)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("env.num_maps", "is not an override"),
        ("=3", "is not an override"),
        ("env.nummaps=3", "Did you mean env.num_maps?"),
        ("lr=1", "Did you mean ppo.lr?"),
        ("ppo.lr=fast", "ppo.lr takes a number"),
        ("env.floating_boxes=3.5", "true or false"),
        ("env.starts=[", "cannot be read"),
        ("env.movers_cycle=3", "a list"),
    ],
)
def test_a_bad_word_is_refused_with_the_nearest_key_or_the_allowed_values(word: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("[", r"\[")):
        make(word)


@pytest.mark.parametrize(
    "word",
    ["env.decimation=0", "env.inside_share=2", "env.lidar_elevations_deg=[]", "env.movers_cycle=[2]", "env.dt_s=0",
     "env.randomize.mass=0.95", "env.num_headings=1", "save_interval=0", "policy.hidden=[]", "algo=magic", "task=chess"],
)  # fmt: skip
def test_impossible_values_fail_when_the_config_is_checked(word: str) -> None:
    with pytest.raises(ConfigError):
        make(word).validate()
