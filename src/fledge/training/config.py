"""The configuration of a run: typed dataclasses, YAML presets, `key=value` overrides (OmegaConf structured configs).

    defaults  <-  `training` of the task  <-  preset (YAML), and what it is based on  <-  overrides of the command line

`config_class(task)` adds the task's sections: `env`, `policy`, `curriculum`. Fields are settings (`core.settings`). The
resolved config is saved with the run, and is what resume reads.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fledge.core.code import absolute
from fledge.core.errors import ConfigError
from fledge.core.overrides import Preset, build_config, read_yaml, value_given
from fledge.core.settings import make_code_absolute, refuse_code, refuse_unnamed, setting
from fledge.league.league import LeagueConfig
from fledge.learn.base import Learner
from fledge.learn.dqn import DQNConfig
from fledge.learn.off_policy import OffPolicy, ReplayConfig
from fledge.learn.ppo import PPOConfig
from fledge.learn.registry import ALGORITHMS, find_learner
from fledge.learn.sac import SACConfig
from fledge.learn.td3 import TD3Config
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import may_be
from fledge.tasks.registry import find_named_task, find_task

RENAMED = {"league.mirror": "league.self_play", "league.climb": "league.advance"}  # settings by their earlier names


class CollectMode(enum.Enum):
    """Ways to collect on-policy experience."""

    sync = "sync"
    pipelined = "pipelined"
    halves = "halves"


class WandbMode(enum.Enum):
    """Modes of Weights & Biases."""

    disabled = "disabled"
    offline = "offline"
    online = "online"


@dataclass
class CollectConfig:
    mode: CollectMode = setting(CollectMode.sync, resume="restart")
    """sync: collect, then learn; pipelined: at the same time (lag 1); halves: half decide, half step. On-policy only."""
    compression_level: int = setting(0, at_least=0, at_most=9, resume="same")
    """Keep rollouts compressed until they are learned from (lossless, slower): effort 1 to 9; 0: off. On-policy only."""


@dataclass
class WandbConfig:
    mode: WandbMode = setting(WandbMode.disabled, resume="same")
    """disabled, offline or online. Needs the extra wandb; never asks for a key."""
    project: str = setting("fledge", resume="same")
    """Project name."""


@dataclass
class TrainConfig:
    task: str = setting("navigation", resume="same")
    """Task to train on: a registered name, gym:ID, a Python file, or module:object."""
    algo: str = setting("ppo", resume="weights", code=True)
    """Learning algorithm: ppo for any action; sac, td3 (continuous) or dqn (discrete) from replay; or your module:Class."""
    seed: int = setting(0, at_least=0, at_most=2**63 - 1, resume="restart")
    """Seed of everything random in the run."""
    ranks: int = setting(0, at_least=0, resume="same")
    """Processes that share the envs and average gradients; 0: one per core on a CPU, one per GPU on CUDA."""
    threads: int = setting(0, at_least=0, at_most=1024, resume="same")
    """Threads of torch in each rank; 0: OMP_NUM_THREADS, else the cores divided by the ranks."""
    device: str = "auto"
    """cpu, cuda (one GPU per rank), or auto: cuda where there is one."""
    pin_memory: bool = setting(False, resume="same")
    """Copy batches from replay to the GPU through pinned memory, while it computes (off-policy on CUDA)."""
    total_frames: int = setting(10_000_000, at_least=1)
    """Decisions to train for, over all envs and ranks."""
    max_minutes: float = setting(0.0, at_least=0, resume="same")
    """Save and stop after this many minutes; `--resume` gives as many again; 0: no limit. Schedules follow total_frames."""
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
    curriculum: Any = None
    league: LeagueConfig = field(default_factory=LeagueConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: bool = setting(True, resume="same")
    """Write TensorBoard event files into the run."""
    log_interval: int = setting(1, at_least=1, resume="same")
    """Iterations between log lines."""
    save_interval: int = setting(50, at_least=1, resume="same")
    """Iterations between checkpoints."""
    keep_checkpoints: int = setting(3, at_least=1, resume="same")
    """Newest checkpoints kept whole; older ones are reduced to weights."""
    keep_best: int = setting(1, at_least=0, resume="same")
    """Checkpoints kept for the best value of the primary metric in training."""
    compress_checkpoint: bool = setting(True, resume="same")
    """Compress checkpoints (losslessly)."""
    async_checkpoint_queue_size: int = setting(3, at_least=1, resume="same")
    """Checkpoints that may wait for the disk before training waits."""
    save_compression_level: int = setting(1, at_least=0, at_most=16, resume="same")
    """Effort of the checkpoint codecs, 0 (store) to 9 (densest); 10 to 16, which LZ4 files have, mean 9."""
    save_delta: str = setting("none", choices=("none", "weights_only", "all", "thin"), resume="same")
    """Store checkpoints as differences (smaller, but lost with their base): none, weights_only (alias thin) or all."""
    rollout_save_interval: int = setting(0, at_least=0, resume="same")
    """Iterations between archived rollouts; 0: none."""
    rollout_compression_level: int = setting(9, at_least=0, at_most=9, resume="same")
    """Effort of the codecs of archived rollouts, 0 (store) to 9."""
    eval_interval: int = setting(0, at_least=0, resume="same")
    """Iterations between evaluations in the held-out world; 0: none."""
    eval_episodes: int = setting(256, at_least=1, resume="same")
    """Episodes per evaluation during training."""
    compile: bool = False
    """Compile the network with torch.compile (pays on CUDA; needs a C++ compiler)."""

    @property
    def made_by(self) -> tuple[str | None, list[str]] | None:
        """The preset and the overrides that `make_config` made this config from; None for a resumed run."""
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
        """Name of the algorithm's settings: "ppo", or "algo_config" of a user's own."""
        return self.algo if self.algo in ALGORITHMS else "algo_config"

    @property
    def algo_settings(self) -> Any:
        return getattr(self, self.section)

    @property
    def steps(self) -> int:
        """Decisions per env and iteration."""
        return self.replay.steps if self.off_policy else self.algo_settings.rollout_steps

    def validate(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        learner, off_policy = self.learner, self.off_policy
        if off_policy and self.total_frames <= self.replay.warm_up:
            raise ConfigError(
                f"total_frames is {self.total_frames:,}, but the first {self.replay.warm_up:,} only fill the replay "
                "(replay.warm_up): nothing would be learned."
            )
        if off_policy and self.collect.mode is not CollectMode.sync:
            mode = self.collect.mode.name
            raise ConfigError(f"collect.mode={mode} is for ppo; algo={self.algo} collects in turns: set it to sync.")
        if self.collect.mode is CollectMode.pipelined and not learner.corrects_stale:
            raise ConfigError(
                f"collect.mode=pipelined gives rollouts of older weights, which algo={self.algo} does not correct for "
                "(Learner.corrects_stale): use sync or halves."
            )
        if off_policy and self.collect.compression_level:
            raise ConfigError(
                f"collect.compression_level is for ppo; the replay of algo={self.algo} is compressed anyway."
            )
        if self.replay.prioritized and not getattr(learner, "prioritizes", False):
            raise ConfigError(f"replay.prioritized=true is for dqn; algo={self.algo} samples uniformly.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device is {self.device!r}, but must be auto, cpu, cuda or cuda:N.")
        if self.pin_memory and not off_policy:
            raise ConfigError(f"pin_memory=true is for replay (sac, td3, dqn), which algo={self.algo} does not use.")
        if self.pin_memory and self.device == "cpu":
            raise ConfigError("pin_memory=true is for CUDA, but this run is on the CPU: leave it out.")


def config_class(task: Task, algo: str = "ppo") -> type[TrainConfig]:
    """Return the config class of a task's runs; with an algorithm of the user's own, its settings as `algo_config`."""
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
        preset: Name of a preset of the task, or a YAML file; "" for none. A file says what differs from the preset that
            its `base` names, by default the algorithm's.
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
    """Return the algorithm that overrides or presets choose; ConfigError if it is code that the user did not name."""
    named_in = [content.get("algo") for _, content in presets]  # NavRL's files have a section of this name
    found = ["ppo", *(algo for algo in named_in if isinstance(algo, str))]
    algo = value_given(overrides, "algo", task.presets.aliases) or found[-1]
    refuse_unnamed("algo", algo, [*overrides, *named])
    return algo


def aliases_of(task: Task) -> dict[str, str]:
    """Return other names of settings: earlier ones, and the task's."""
    return {**RENAMED, "num_envs": "env.num_envs", **task.presets.aliases}


def groups_of(task: Task) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the presets of env=NAME and hardware=NAME that the task has, by group and name."""
    names = {group: task.presets.names(group) for group in ("env", "hardware")}
    return {group: {name: task.presets.load(group, name) for name in found} for group, found in names.items() if found}


def preset_layers(task: Task, name: str | None, algo: str | None, above: Sequence[str] = ()) -> list[Preset]:
    """Return a training preset (None: the algorithm's; "": none) and those it is based on, the lowest first.

    Args:
        algo: The user's algorithm, by the built-in one whose policy form it has; None: the preset's.
    """
    name = task.presets.default(algo or "ppo") if name is None else name
    if not name:
        return []
    if name in above:
        raise ConfigError(f"{above[-1]} has base: {name}, which is based on it: name another base, or none.")
    content = task.presets.load("train", name)
    is_file = name.endswith((".yaml", ".yml"))
    base = content.pop("base", None if is_file else "")
    if base is not None and not isinstance(base, str):
        raise ConfigError(f"{name} has base: {base}, but must name a preset, or a YAML file.")
    if algo is None and isinstance(content.get("algo"), str):
        algo = find_learner(chosen_algo([(name, content)], (), task)).policy_form
    below = preset_layers(task, base, algo, [*above, name])
    return [*below, (name if is_file else f"preset {name}", content)]


def settled(cfg: TrainConfig, task: Task, overrides: Sequence[str], opponent_before: str = "") -> TrainConfig:
    """Replace device `auto` by the device found; drop the ladder if overrides name another env.opponent."""
    if cfg.device == "auto":
        cfg.device = "cuda" if torch.cuda.is_available() else "cpu"
    opponent, ladder = (value_given(overrides, key, task.presets.aliases) for key in ("env.opponent", "league.ladder"))
    if opponent and ladder is None and absolute(opponent) != opponent_before:
        cfg.league.ladder = []
    return cfg


def with_named_code(cfg: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """Make references to code hold in any folder; raise ConfigError if a file names code that the user does not name."""
    refuse_code(cfg, overrides)
    make_code_absolute(cfg)
    return cfg


def read_run_config(
    folder: Path, overrides: Sequence[str] = (), task: Task | None = None, named: Sequence[str] = ()
) -> tuple[Task, TrainConfig]:
    """Return the task and the saved config of a run, with overrides.

    Args:
        task: The task, if it is code: a saved config alone may not run any.
        named: More `key=value` overrides of the user, which name code that may run.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder} is not a run: it has no config.yaml. Give the folder that `fledge train` printed.")
    content = read_yaml(path)
    saved = str(content.get("task", "navigation"))
    if task is None:
        task = find_named_task(saved, asked_by=str(folder))
    elif not may_be(saved, task):
        raise ConfigError(f"{folder} is a run of the task {saved}, not of {task.reference}: leave the task out.")
    content["task"] = task.reference
    algo = chosen_algo([("", content)], overrides, task, named)
    if absolute(algo) != content.get("algo"):
        content.pop("algo_config", None)
    cfg = build_config(config_class(task, algo), [(str(path), content)], overrides, aliases_of(task), groups_of(task))
    return task, settled(cfg, task, overrides, str((content.get("env") or {}).get("opponent", "")))
