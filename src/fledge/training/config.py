"""The configuration of a run: typed dataclasses, YAML presets, `key=value` overrides (OmegaConf structured configs).

    defaults  <-  the task's training defaults  <-  preset (YAML) and the presets it is based on  <-  overrides

Each layer changes the values of the layers to its left. `config_class(task)` adds the task's sections: `env`, `policy`,
`curriculum`. Fields are settings (`core.settings`). The resolved config is saved with the run; resume reads it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fledge.collect.config import ActorsConfig, CollectConfig, CollectMode
from fledge.core.code import absolute
from fledge.core.errors import ConfigError
from fledge.core.overrides import Preset, build_config, read_yaml, value_given
from fledge.core.settings import fill_absent, make_code_absolute, refuse_code, refuse_unnamed, setting
from fledge.evaluation.run_info import config_file
from fledge.league.league import LeagueConfig
from fledge.learn.base import Learner
from fledge.learn.dqn import DQNConfig
from fledge.learn.off_policy import OffPolicy, ReplayConfig
from fledge.learn.ppo import PPOConfig
from fledge.learn.registry import ALGORITHMS, find_learner
from fledge.learn.sac import SACConfig
from fledge.learn.td3 import TD3Config
from fledge.monitor.loggers import WandbConfig
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import may_be
from fledge.tasks.registry import find_named_task, find_task
from fledge.training.learner_checks import check_auto

RENAMED = {"league.mirror": "league.self_play", "league.climb": "league.advance"}  # settings by their earlier names


@dataclass
class TrainConfig:
    task: str = setting("navigation", resume="same")
    """Task to train on: a registered name, gym:ID, a Python file, or module:object."""
    algo: str = setting("ppo", resume="weights", code=True)
    """Learning algorithm: ppo (any actions), sac or td3 (continuous), dqn (discrete), or your own module:Class."""
    seed: int = setting(0, at_least=0, at_most=2**63 - 1, resume="restart")
    """Seed of all random numbers in the run."""
    ranks: int = setting(0, at_least=0, resume="same")
    """Processes that share the envs and average gradients; 0: one per core on a CPU, one per GPU on CUDA."""
    threads: int = setting(0, at_least=0, at_most=1024, resume="same")
    """PyTorch threads in each rank; 0: OMP_NUM_THREADS if it is set, else the cores divided by the ranks."""
    device: str = "auto"
    """Device: cpu, cuda (one GPU per rank), cuda:N (GPU N, for one rank), or auto (cuda if there is a GPU, else cpu)."""
    pin_memory: bool = setting(False, resume="same")
    """Allowed with off-policy algorithms on CUDA, where replay batches always go through pinned memory while it computes."""
    total_frames: int = setting(10_000_000, at_least=1)
    """Decisions to train for, over all envs and ranks."""
    max_minutes: float = setting(0.0, at_least=0, resume="same")
    """Save and stop after this many minutes, counted anew after each resume; 0: no limit. Schedules use total_frames."""
    stop_frames: int = setting(0, at_least=0, resume="same")
    """Save and stop after this many decisions, to continue later; 0: no limit. Schedules use total_frames."""
    init_from: str = setting("", resume="same")
    """Start from the weights of this run or policy file, or NavRL's .pt file (navigation); the optimiser starts fresh."""
    reward: str = setting("", resume="restart", code=True)
    """A reward of your own instead of the env's: module:object or file.py:object (docs/guides/own_reward.md)."""
    env: Any = None
    policy: Any = None
    ppo: PPOConfig = field(default_factory=PPOConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    sac: SACConfig = field(default_factory=SACConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    dqn: DQNConfig = field(default_factory=DQNConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    curriculum: Any = None
    league: LeagueConfig = field(default_factory=LeagueConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    auto: list[str] = setting([], choices=("env.num_envs", "ppo.minibatch"))
    """Sizes that the run chooses and changes itself, beginning from their numbers; NAME=auto adds one, NAME=NUMBER removes
    it (docs/guides/batching.md)."""
    tensorboard: bool = setting(True, resume="same")
    """Write TensorBoard event files into the run."""
    log_interval: int = setting(1, at_least=1, resume="same")
    """Iterations between log lines."""
    save_interval: int = setting(50, at_least=1, resume="same")
    """Iterations between checkpoints."""
    keep_checkpoints: int = setting(3, at_least=1, resume="same")
    """Number of newest checkpoints to keep complete; older ones keep only the weights."""
    keep_best: int = setting(1, at_least=0, resume="same")
    """Number of checkpoints with the best primary metric in training whose weights (only the weights) are never removed."""
    compress_checkpoint: bool = setting(True, resume="same")
    """Compress checkpoints, losslessly."""
    async_checkpoint_queue_size: int = setting(3, at_least=1, resume="same")
    """Number of checkpoints that may wait to be written; if more are saved, training waits."""
    save_compression_level: int = setting(1, at_least=0, at_most=16, resume="same")
    """Compression level of checkpoints, 0 (none) to 9 (smallest files); 10 to 16, levels of LZ4, count as 9."""
    save_delta: str = setting("none", choices=("none", "weights_only", "all", "thin"), resume="same")
    """Checkpoints to store as differences from another one, which they need: none, weights_only (older; alias thin), all."""
    checkpoint_url: str = setting("", resume="same")
    """Also upload checkpoints to this folder of a store that fsspec knows: s3://bucket/run, gs://bucket/run, file:///folder."""
    rollout_save_interval: int = setting(0, at_least=0, resume="same")
    """Iterations between rollouts that are saved to disk; 0: save none."""
    rollout_compression_level: int = setting(9, at_least=0, at_most=9, resume="same")
    """Compression level of saved rollouts, 0 (none) to 9 (smallest files)."""
    eval_interval: int = setting(0, at_least=0, resume="same")
    """Iterations between evaluations on held-out episodes; 0: no evaluations."""
    eval_episodes: int = setting(256, at_least=1, resume="same")
    """Episodes per evaluation during training."""
    compile: bool = False
    """Compile the network with torch.compile (faster on CUDA; needs a C++ compiler)."""

    @property
    def made_by(self) -> tuple[str | None, list[str]] | None:
        """The preset and the overrides that `make_config` built this config from; None for a resumed run."""
        return vars(self).get("origin")

    @property
    def learner(self) -> type[Learner]:
        return find_learner(self.algo)

    @property
    def off_policy(self) -> bool:
        """Whether the algorithm learns from replay."""
        return issubclass(self.learner, OffPolicy)

    @property
    def section(self) -> str:
        """Config section with the algorithm's settings: its name, such as "ppo"; "algo_config" for a user's algorithm."""
        return self.algo if self.algo in ALGORITHMS else "algo_config"

    @property
    def algo_settings(self) -> Any:
        return getattr(self, self.section)

    @property
    def steps(self) -> int:
        """Decisions per env and iteration."""
        return self.replay.steps if self.off_policy else self.algo_settings.rollout_steps

    def validate(self) -> None:
        """Raise ConfigError if settings contradict each other."""
        learner, off_policy = self.learner, self.off_policy
        if off_policy and self.total_frames <= self.replay.warm_up:
            raise ConfigError(
                f"total_frames is {self.total_frames:,}, but the first {self.replay.warm_up:,} only fill the replay "
                "(replay.warm_up), so nothing would be learned: raise total_frames, or lower replay.warm_up."
            )
        if off_policy and self.collect.mode is not CollectMode.sync:
            mode = self.collect.mode.name
            raise ConfigError(
                f"collect.mode={mode} works only with on-policy algorithms such as ppo: with algo={self.algo}, set "
                "collect.mode=sync."
            )
        if self.collect.mode is CollectMode.pipelined and not learner.corrects_stale:
            raise ConfigError(
                f"collect.mode=pipelined collects with older weights, which algo={self.algo} does not correct for "
                "(its Learner.corrects_stale is False): set collect.mode=sync or halves."
            )
        if off_policy and self.collect.compression_level:
            raise ConfigError(
                f"collect.compression_level={self.collect.compression_level} works only with on-policy algorithms such as "
                f"ppo: leave it out, as algo={self.algo} always compresses its replay buffer."
            )
        if self.auto:
            check_auto(self.auto, self.algo, off_policy, self.ppo.minibatch_final_scale)
        if self.replay.prioritized and not getattr(learner, "prioritizes", False):
            raise ConfigError(
                f"replay.prioritized=true works only with algo=dqn, but algo={self.algo}, which samples uniformly: "
                "set replay.prioritized=false."
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device is {self.device!r}, but must be auto, cpu, cuda or cuda:N.")
        if self.pin_memory and not off_policy:
            raise ConfigError(
                f"pin_memory=true works only with a replay buffer (sac, td3, dqn), but algo={self.algo} has none: "
                "leave pin_memory out."
            )
        if self.pin_memory and self.device == "cpu":
            raise ConfigError("pin_memory=true works only on CUDA, but device=cpu: leave pin_memory out.")


def config_class(task: Task, algo: str = "ppo") -> type[TrainConfig]:
    """Return the config class for a task; a user's own algorithm adds its settings as the section `algo_config`."""
    return _config_class(task, None if algo in ALGORITHMS else find_learner(algo))


@functools.cache
def _config_class(task: Task, learner: type[Learner] | None) -> type[TrainConfig]:
    parts = {"env": task.config, "policy": task.policy.config, "curriculum": task.curriculum.config}
    if learner is not None:
        parts["algo_config"] = learner.config
    fields: list[Any] = [(name, kind, field(default_factory=kind)) for name, kind in parts.items()]
    fields.append(("task", str, setting(task.reference, resume="same")))
    return dataclasses.make_dataclass("TrainConfig", fields, bases=(TrainConfig,))


def make_config(task: Task | str, preset: str | None = None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Make the config of a run: the task's defaults, a training preset (by default the algorithm's), then overrides.

    Args:
        preset: Name of a preset of the task, or a YAML file; "" for none. A file holds only the settings that differ from
            the preset that its `base` names, by default the algorithm's preset.
    """
    task = find_task(task) if isinstance(task, str) else task
    presets: list[Preset] = [(f"training of task {task.name}", task.presets.defaults)] if task.presets.defaults else []
    given = value_given(overrides, "algo", task.presets.aliases)
    presets += preset_layers(task, preset, given and find_learner(given).policy_form)
    kind = config_class(task, chosen_algo(presets, overrides, task))
    cfg = build_config(kind, presets, overrides, aliases_of(task), groups_of(task))
    vars(cfg)["origin"] = (preset, list(overrides))
    return with_named_code(settled(cfg, task, overrides), overrides)


def chosen_algo(presets: Sequence[Preset], overrides: Sequence[str], task: Task, named: Sequence[str] = ()) -> str:
    """Return the algorithm that the overrides, or else the presets, choose.

    Raises:
        ConfigError: It is a user's class, which neither `overrides` nor `named` (other overrides of the user) name.
    """
    named_in = [content.get("algo") for _, content in presets]  # NavRL's files have a section of this name
    found = ["ppo", *(algo for algo in named_in if isinstance(algo, str))]
    algo = value_given(overrides, "algo", task.presets.aliases) or found[-1]
    refuse_unnamed("algo", algo, [*overrides, *named])
    return algo


def aliases_of(task: Task) -> dict[str, str]:
    """Return the setting that each alias stands for: earlier names of settings, and the task's aliases."""
    return {**RENAMED, "num_envs": "env.num_envs", **task.presets.aliases}


def groups_of(task: Task) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the content of the task's presets for env=NAME, hardware=NAME and its own groups, by group and name."""
    groups = {group: task.presets.load_all(group) for group in ("env", "hardware") if task.presets.names(group)}
    own = task.presets.env_groups
    return groups | {group: {name: {"env": each} for name, each in found.items()} for group, found in own.items()}


def preset_layers(task: Task, name: str | None, algo: str | None, above: Sequence[str] = ()) -> list[Preset]:
    """Return a training preset and the presets that it is based on, the most basic one first.

    Args:
        name: Name of a preset, or a YAML file; None: the algorithm's default preset; "": no preset.
        algo: `Learner.policy_form` of the algorithm that the user chose; None if the preset chooses the algorithm.
        above: Names of the presets that are based on this one, to detect a cycle.
    """
    name = task.presets.default(algo or "ppo") if name is None else name
    if not name:
        return []
    if name in above:
        raise ConfigError(
            f"{above[-1]} has `base: {name}`, but {name} is itself based on {above[-1]}: name another base, or none."
        )
    content = task.presets.load("train", name)
    is_file = name.endswith((".yaml", ".yml"))
    base = content.pop("base", None if is_file else "")
    if base is not None and not isinstance(base, str):
        raise ConfigError(f"{name} has `base: {base}`, but `base` must be the name of a preset, or a YAML file.")
    if algo is None and isinstance(content.get("algo"), str):
        algo = find_learner(chosen_algo([(name, content)], (), task)).policy_form
    below = preset_layers(task, base, algo, [*above, name])
    return [*below, (name if is_file else f"preset {name}", content)]


def settled(cfg: TrainConfig, task: Task, overrides: Sequence[str], saved_opponent: str = "") -> TrainConfig:
    """Resolve device=auto; clear league.ladder if overrides set no ladder, but another env.opponent than the saved one."""
    if cfg.device == "auto":
        cfg.device = "cuda" if torch.cuda.is_available() else "cpu"
    opponent, ladder = (value_given(overrides, key, task.presets.aliases) for key in ("env.opponent", "league.ladder"))
    if opponent and ladder is None and absolute(opponent) != saved_opponent:
        cfg.league.ladder = []
    return cfg


def with_named_code(cfg: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """Make paths of code files absolute; raise ConfigError if the user did not name such a file in `overrides`."""
    refuse_code(cfg, overrides)
    make_code_absolute(cfg)
    return cfg


def read_run_config(
    folder: Path, overrides: Sequence[str] = (), task: Task | None = None, named: Sequence[str] = ()
) -> tuple[Task, TrainConfig]:
    """Return the task of a run, and its saved config changed by overrides; see `config_from`."""
    path = config_file(folder)
    return config_from(read_yaml(path), str(folder), str(path), overrides, task, named)


def config_from(
    content: dict[str, Any],
    run: str,
    source: str,
    overrides: Sequence[str] = (),
    task: Task | None = None,
    named: Sequence[str] = (),
) -> tuple[Task, TrainConfig]:
    """Return the task of a run, and its saved config `content` changed by overrides.

    Args:
        run, source: Names of the run and of the content's source, for errors.
        task: The run's task. Required if the task is the user's own code: code that only a file names is not run.
        named: Further overrides of the user. They do not change the config, but code that they name may run.
    """
    saved = str(content.get("task", "navigation"))
    if task is None:
        task = find_named_task(saved, asked_by=run)
    elif not may_be(saved, task):
        raise ConfigError(f"{run} is a run of the task {saved}, not of {task.reference}: leave the task out.")
    content["task"] = task.reference
    algo = chosen_algo([("", content)], overrides, task, named)
    if absolute(algo) != content.get("algo"):
        content.pop("algo_config", None)
    fill_absent(content, config_class(task, algo)())
    cfg = build_config(config_class(task, algo), [(source, content)], overrides, aliases_of(task), groups_of(task))
    return task, settled(cfg, task, overrides, str((content.get("env") or {}).get("opponent", "")))
