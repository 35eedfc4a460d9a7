"""Presets, overrides, and the sentences for what does not fit."""

import functools
import math
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from fledge.core.config_help import field_help
from fledge.core.errors import ConfigError
from fledge.core.overrides import to_plain
from fledge.core.settings import check_settings, flat_settings, rule_of, walk
from fledge.learn.registry import ALGORITHMS
from fledge.tasks.base import Task
from fledge.tasks.curriculum import NoCurriculum
from fledge.tasks.gym.task import GymConfig
from fledge.tasks.navigation.config import NavigationConfig, RewardKind
from fledge.tasks.policy_factory import PolicyConfig
from fledge.tasks.presets import Presets
from fledge.tasks.registry import find_task
from fledge.training.config import TrainConfig, config_class, make_config, read_run_config

TASK = find_task("navigation")


def make(*words: str, preset: str = "fast") -> TrainConfig:
    return make_config(TASK, preset, words)


@functools.cache
def floats() -> list[str]:
    """Keys of all settings that hold numbers with a point, alone, in a list, or where none is set."""
    settings = flat_settings(make(preset=""))
    firsts = {key: value[0] if isinstance(value, list) and value else value for key, value in settings.items()}
    return [key for key, value in firsts.items() if value is None or isinstance(value, float)]


@pytest.mark.parametrize("name", TASK.presets.names("train"))
def test_every_training_preset_is_valid(name: str) -> None:
    check_settings(make(preset=name))


@pytest.mark.parametrize("name", TASK.presets.names("env"))
def test_every_task_preset_is_valid(name: str) -> None:
    check_settings(make(f"env={name}", preset=""))


def test_the_four_task_presets_ship() -> None:
    assert set(TASK.presets.names("env")) >= {"default", "navrl", "static", "empty"}


def test_a_preset_then_overrides_in_order() -> None:
    cfg = make("env=navrl", "env.reward.height=3", "env.num_envs=7")
    assert (cfg.env.reward.kind, cfg.env.reward.height, cfg.env.num_envs) == (RewardKind.navrl, 3.0, 7)


@pytest.mark.slow
def test_every_field_can_be_overridden_with_its_own_default() -> None:
    for key, field in field_help(config_class(TASK)).items():
        make(f"{key}={field.default}")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("env.static_obstacles=9", "env.num_obstacles=9"),
        ("env.moving_obstacles=8", "env_dyn.num_obstacles=8"),
        ("total_frames=1200000000", "max_frame_num=12e8"),
        ("ppo.rollout_steps=16", "algo.training_frame_num=16"),
        ("ppo.value_clip=0.3", "algo.critic.clip_ratio=0.3"),
        ("seed=0", "headless=True"),
        ("seed=0", "sim.gravity=[0,0,-9.81]"),
        ("seed=0", "env_dyn.vel_range=[0.5, 1.5]"),
    ],
)
def test_navrls_names_mean_ours_in_words_and_in_files(ours: str, theirs: str, tmp_path: Path) -> None:
    assert make(ours) == make(theirs)
    key, value = theirs.split("=")
    (tmp_path / "mine.yaml").write_text(f"{key}: {value}\n")  # a dotted key is OmegaConf's
    nest = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(key.split(".")))
    (tmp_path / "nested.yaml").write_text(f"{nest[:-1]} {value}\n")
    for name in ("mine.yaml", "nested.yaml"):
        assert make(preset=str(tmp_path / name)) == make(ours), name


NAVRL_TRAIN = """
defaults: [_self_, drone, ppo, sim]
headless: False
device: cpu
max_frame_num: 12e8 # max frame
env: {num_envs: 2, max_episode_length: 2200, env_spacing: 8.0, num_obstacles: 350}
env_dyn: {num_obstacles: 80, vel_range: [0.5, 1.5], local_range: [5.0, 5.0, 4.5]}
viewer: {eye: [0., 40., 40.], resolution: [960, 720]}
wandb: {project: NavRL, name: navigation_training, entity: LAB, mode: offline, run_id: }
algo:
  feature_extractor: {learning_rate: 5e-4, dyn_obs_num: 5}
  actor: {learning_rate: 5e-4, clip_ratio: 0.1, action_limit: 2.0}
  training_frame_num: 32
"""


def test_navrls_own_files_are_understood(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(f"base: navrl\n{NAVRL_TRAIN}")
    cfg = make(preset=str(tmp_path / "train.yaml"))
    words = ["env.num_envs=2", "wandb.project=NavRL", "wandb.mode=offline", "device=cpu"]
    assert cfg == make(*words, preset="navrl")


def test_what_navrl_may_change_and_we_cannot_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"env_dyn.vel_range=\[1, 3\] is not supported: Fledge always uses \[0.5, 1.5\]"
    ):
        make("env_dyn.vel_range=[1, 3]")


@pytest.mark.parametrize("text", ["1e6", "1_000_000", "1000000", "1.0e6", "'1000000'"])
def test_a_whole_number_may_be_written_as_people_write_it(text: str, tmp_path: Path) -> None:
    assert make(f"total_frames={text}").total_frames == 1_000_000
    (tmp_path / "mine.yaml").write_text(f"total_frames: {text}\n")
    cfg = make(preset=str(tmp_path / "mine.yaml"))
    assert (cfg.total_frames, type(cfg.total_frames)) == (1_000_000, int)


@pytest.mark.parametrize("text", ["1.5", "1e-3", "many", "true", "inf", "[1]", "null"])
def test_what_is_no_whole_number_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"total_frames: {text}\n")
    with pytest.raises(ConfigError, match=r"^total_frames=.* does not fit: total_frames takes a whole number"):
        make(f"total_frames={text}")
    with pytest.raises(
        ConfigError, match=r"mine.yaml: total_frames=.* does not fit: total_frames takes a whole number"
    ):
        make(preset=str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("env.num_maps", "is not an override"),
        ("=3", "is not an override"),
        ("env.nummaps=3", "Did you mean env.num_maps?"),
        ("lr=1", "Did you mean ppo.lr?"),
        ("envs=64", "There is no setting envs. Did you mean env.num_envs?"),
        ("learning_rate=1", "Did you mean ppo.lr?"),
        ("ppo.learning_rate=1", "Did you mean ppo.lr?"),
        ("env_dyn.num_obs=4", "Did you mean env_dyn.num_obstacles?"),
        ("seed=${oc.env:HOME}", "write the value itself"),
        ("env.lidar_range=4", "Did you mean env.lidar_range_m?"),
        ("env.nonsense=4", "There is no setting env.nonsense. `fledge train TASK --help-config` lists all settings."),
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
     "env.randomize.mass=0.95", "env.num_headings=1", "save_interval=0", "policy.hidden=[]", "algo=magic"],
)  # fmt: skip
def test_impossible_values_fail_when_the_config_is_checked(word: str) -> None:
    with pytest.raises(ConfigError):
        check_settings(make(word))


def test_another_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="There is no task 'chess'"):
        make_config("chess")


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
        check_settings(make(*words.split(), preset=""))


def test_priorities_are_for_dqn() -> None:
    with pytest.raises(ConfigError, match="works only with algo=dqn"):
        check_settings(make("replay.prioritized=true", preset="sac"))


# ---- nonsense --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("ppo.max_grad_norm=0", "ppo.max_grad_norm is 0.0, but must be greater than 0."),
        ("ppo.max_grad_norm=-1", "ppo.max_grad_norm is -1.0, but must be greater than 0."),
        ("ppo.clip=-0.2", "ppo.clip is -0.2, but must be greater than 0."),
        ("ppo.clip=0", "ppo.clip is 0.0, but must be greater than 0."),
        ("ppo.lr=1", "ppo.lr is 1.0, but must be greater than 0 and less than 1."),
        ("ppo.gamma=1.01", "ppo.gamma is 1.01, but must be 0 to 1."),
        ("env.min_height_m=5", "env.min_height_m is 5.0, but must be 0 to 0.5."),
        ("env.max_height_m=2.5", "env.max_height_m is 2.5, but must be at most 1000 and greater than 2.5."),
        ("eval_episodes=0", "eval_episodes is 0, but must be at least 1."),
        ("total_frames=0", "total_frames is 0, but must be at least 1."),
        ("max_minutes=-1", "max_minutes is -1.0, but must be at least 0."),
        ("env.num_envs=0", "env.num_envs is 0, but must be 1 to 16777216."),
        ("env.num_obstacles=-1", "env.static_obstacles is -1, but must be 0 to 4000."),
        ("env.movers_cycle=[0.5, 2]", r"env.movers_cycle is \[0.5, 2.0\], but must be at least 1 item, each 0 to 1."),
        ("env.movers_cycle=[]", r"env.movers_cycle is \[\], but must be at least 1 item, each 0 to 1."),
        ("replay.layout=zip", "replay.layout is 'zip', but must be frame or chunk or episode."),
        ("device=tpu", "device is 'tpu', but must be auto, cpu, cuda or cuda:N."),
        ("device=cuda:one", "device is 'cuda:one', but must be auto, cpu, cuda or cuda:N."),
        ("pin_memory=true", "pin_memory=true works only with a replay buffer"),
    ],
)
def test_nonsense_is_refused_with_what_came_and_what_is_allowed(word: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_settings(make(word))


def test_pinned_memory_is_for_cuda() -> None:
    check_settings(make("pin_memory=true", "device=cuda", preset="sac"))
    with pytest.raises(ConfigError, match="pin_memory=true works only on CUDA"):
        check_settings(make("pin_memory=true", "device=cpu", preset="sac"))


@pytest.mark.parametrize(("there", "found"), [(True, "cuda"), (False, "cpu")])
def test_the_device_is_a_gpu_where_there_is_one(there: bool, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert make().device == found
    assert make("device=cpu").device == "cpu"


def test_the_floats_below_are_all_there_are() -> None:
    assert {"ppo.lr", "env.dt_s", "env.reward.near", "env.movers_cycle", "sac.target_entropy", "max_minutes"} <= set(
        floats()
    )
    assert len(floats()) > 60


@pytest.mark.parametrize("key", floats())
def test_no_number_may_be_nan_or_infinite(key: str) -> None:
    for value in (math.nan, math.inf, -math.inf):
        cfg = config_class(TASK)()
        *path, last = key.split(".")
        part = functools.reduce(getattr, path, cfg)
        default = getattr(part, last)
        setattr(part, last, [value, *default[1:]] if isinstance(default, list) else value)
        with pytest.raises(ConfigError, match=f"^{key} is .*(nan|inf).*, but must be "):
            check_settings(cfg)


@pytest.mark.parametrize("value", [".nan", "nan", "NaN", ".inf", "-.inf", "inf", "1e999"])
@pytest.mark.parametrize("key", ["ppo.lr", "env.reward.near", "sac.target_entropy", "max_minutes"])
def test_no_way_of_writing_nan_or_infinity_is_let_through(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} is .*(nan|inf).*, but must be "):
        check_settings(make(f"{key}={value}", preset=""))


def test_every_default_keeps_its_limits_and_lists_are_not_shared() -> None:
    one, two = make(preset=""), make(preset="")
    check_settings(one)
    one.env.movers_cycle.append(0.5)
    assert two.env.movers_cycle == [1.0]


# ---- the task's part -------------------------------------------------------------------------------------------------


def test_a_config_has_its_tasks_settings() -> None:
    cfg = make(preset="")
    assert isinstance(cfg, TrainConfig)
    assert isinstance(cfg.env, NavigationConfig)
    assert cfg.task == "navigation"
    other = make_config("gym:CartPole-v1")
    assert other.task == "gym:CartPole-v1"
    assert type(other.env) is find_task("gym:CartPole-v1").config
    assert (type(other.policy), type(other.curriculum)) == (PolicyConfig, NoCurriculum)
    assert config_class(TASK) is config_class(TASK)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_algorithm_brings_its_preset_unless_one_is_named(algo: str) -> None:
    named = "fast" if algo == "ppo" else algo
    assert make_config(TASK, None, [f"algo={algo}"]) == make(preset=named)
    assert make_config(TASK, "", [f"algo={algo}"]) != make(preset=named)
    assert make_config(TASK, "", [f"algo={algo}"]).algo == algo


def test_a_preset_may_be_a_file_that_says_what_differs_from_the_algorithms(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("env:\n  num_envs: 3\nppo:\n  lr: 0.5\npolicy:\n")
    assert make("ppo.lr=0.25", preset=str(file)) == make("env.num_envs=3", "ppo.lr=0.25", preset="fast")
    assert make("algo=sac", preset=str(file)) == make("env.num_envs=3", "ppo.lr=0.5", preset="sac")
    file.write_text("algo: td3\nseed: 4\n")
    assert make(preset=str(file)) == make("seed=4", preset="td3")
    file.write_text("env: navrl\nseed: 4\n")
    assert make(preset=str(file)) == make("env=navrl", "seed=4", preset="fast")


def test_a_file_may_name_what_it_is_based_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("base: navrl\nseed: 4\nppo: {lr: 0.5}\n")
    assert make(preset=str(one)) == make("seed=4", "ppo.lr=0.5", preset="navrl")
    two.write_text(f"base: {one}\nppo: {{lr: 0.25}}\n")
    assert make(preset=str(two)) == make("seed=4", "ppo.lr=0.25", preset="navrl")
    one.write_text('base: ""\nseed: 4\n')
    assert make(preset=str(one)) == make("seed=4", preset="")
    one.write_text(f"base: {two}\n")
    with pytest.raises(ConfigError, match="is itself based on"):
        make(preset=str(one))
    one.write_text("base: [fast]\n")
    with pytest.raises(ConfigError, match="must be the name of a preset"):
        make(preset=str(one))


def test_a_file_that_does_not_fit_is_refused_by_its_name_with_the_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("env:\n  num_env: 3\n")
    with pytest.raises(ConfigError, match=r"mine.yaml: There is no setting env.num_env. Did you mean env.num_envs?"):
        make(preset=str(file))
    with pytest.raises(ConfigError, match="There is no preset file"):
        make(preset=str(tmp_path / "none.yaml"))


def test_a_saved_config_is_read_as_it_was_with_overrides_on_top(tmp_path: Path) -> None:
    cfg = make("env=navrl", "env.num_envs=7", "algo=sac", "sac.target_entropy=-2", "env.movers_cycle=[0, 1]")
    OmegaConf.save(OmegaConf.structured(cfg), tmp_path / "config.yaml")
    assert read_run_config(tmp_path) == (TASK, cfg)
    _, changed = read_run_config(tmp_path, ["ppo.lr=0.5", "env_dyn.num_obstacles=9"])
    before = flat_settings(cfg)
    assert {k: v for k, v in flat_settings(changed).items() if v != before[k]} == {
        "ppo.lr": 0.5,
        "env.moving_obstacles": 9,
    }
    with pytest.raises(ConfigError, match="is not a run"):
        read_run_config(tmp_path / "elsewhere")


def test_a_saved_config_alone_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: ./evil.py\n")
    with pytest.raises(ConfigError, match=r"is not run unless you name it: .*add --task .*evil.py"):
        read_run_config(tmp_path)


# ---- what may change when a run is resumed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (
            "same",
            ["save_interval", "log_interval", "eval_episodes", "max_minutes", "wandb.mode", "env.nan_guard", "ranks"],
        ),
        ("changes", ["ppo.lr", "total_frames", "env.reward.near", "env.static_obstacles", "curriculum.ramp", "device"]),
        ("restart", ["seed", "env.num_envs", "env.num_maps", "collect.mode", "replay.size", "env.max_episode_steps"]),
        ("weights", ["algo", "policy.hidden", "sac.critic_hidden", "env.action_form", "env.lidar_azimuths"]),
    ],
)
def test_each_setting_says_what_changing_it_means_for_a_resumed_run(kind: str, keys: list[str]) -> None:
    found = {key: rule_of(field).resume for key, field, _ in walk(make(preset=""))}
    assert {key: found[key] for key in keys} == dict.fromkeys(keys, kind)


def test_a_task_says_what_its_training_starts_from_and_presets_and_words_go_on_top(tmp_path: Path) -> None:
    class Own(Task):
        presets = Presets(defaults={"total_frames": 123, "ppo": {"epochs": 9, "lr": 0.5}})

    task = Own("own", GymConfig, lambda cfg: None)  # type: ignore[arg-type, return-value]
    preset = tmp_path / "mine.yaml"
    preset.write_text("ppo: {epochs: 8}")
    plain, changed = make_config(task), make_config(task, str(preset), ["ppo.lr=0.25"])
    assert (plain.total_frames, plain.ppo.epochs, plain.ppo.lr) == (123, 9, 0.5)
    assert (changed.total_frames, changed.ppo.epochs, changed.ppo.lr) == (123, 8, 0.25)
    Own.presets = Presets(defaults={"ppo": {"epoch": 9}})
    with pytest.raises(
        ConfigError, match=r"training of task own: There is no setting ppo.epoch. Did you mean ppo.epochs"
    ):
        make_config(task)


def test_a_run_saved_before_a_setting_existed_continues_as_it_was_made(tmp_path: Path) -> None:
    cfg = make_config("navigation", None, ["env.num_envs=8"])
    saved = to_plain(cfg)
    assert saved["env"].pop("collision") == "cylinder"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    assert read_run_config(tmp_path)[1].env.collision.value == "beams"  # the only rule of that time
    assert read_run_config(tmp_path, ["env.collision=sphere"])[1].env.collision.value == "sphere"
