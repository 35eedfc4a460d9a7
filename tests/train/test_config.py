"""Presets, overrides, and the sentences for what does not fit."""

import pytest

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, field_help, preset_names
from fledge.tasks.navigation.config import RewardKind
from fledge.train.algorithms import describe_policy
from fledge.train.config import TrainConfig


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


@pytest.mark.parametrize(
    "words",
    [
        "td3.delay=0",
        "td3.delay=-1",
        "td3.noise_range=[0.1]",
        "td3.noise_range=[-0.1,0.2]",
        "td3.target_noise=-1",
        "td3.critic_hidden=[0]",
        "sac.alpha=0",
        "sac.alpha_lr=-1",
        "sac.max_grad_norm=-1",
        "sac.lr_final_share=-5",
        "sac.critic_hidden=[]",
        "dqn.epsilon=5",
        "dqn.epsilon=-1",
        "replay.layout=foo",
        "seed=-1",
        "keep_best=-1",
        "rollout_save_interval=-1",
        "save_compression_level=99",
        "rollout_compression_level=-1",
        "curriculum.movers_start=5",
        "algo=sac total_frames=640",
    ],
)
def test_settings_that_could_only_fail_later_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match=words.split("=")[0] if " " not in words else "warm_up"):
        build_config(TrainConfig, [], words.split()).validate()


def test_priorities_are_for_dqn() -> None:
    cfg = build_config(TrainConfig, [("train", "sac")], ["replay.prioritized=true"])
    with pytest.raises(ConfigError, match="is for dqn"):
        describe_policy(cfg)
