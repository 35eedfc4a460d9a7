"""The configuration of a run: typed dataclasses, YAML presets, `key=value` overrides (OmegaConf structured configs).

    defaults  <-  preset (YAML)  <-  overrides of the command line

The string under a field is its help text. The resolved config is saved with the run, and is what resume reads.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fledge.core.errors import ConfigError
from fledge.learn.dqn import DQNConfig
from fledge.learn.off_policy import ReplayConfig
from fledge.learn.ppo import PPOConfig
from fledge.learn.sac import SACConfig
from fledge.learn.td3 import TD3Config
from fledge.tasks.navigation.config import NavigationConfig


class Algo(enum.Enum):
    """How a policy learns."""

    ppo = "ppo"
    sac = "sac"
    td3 = "td3"
    dqn = "dqn"


class PolicyKind(enum.Enum):
    """Which network flies."""

    features = "features"
    navrl = "navrl"


class CollectMode(enum.Enum):
    """How experience for PPO is collected."""

    sync = "sync"
    pipelined = "pipelined"
    halves = "halves"


class WandbMode(enum.Enum):
    """Whether Weights & Biases logs."""

    disabled = "disabled"
    offline = "offline"
    online = "online"


@dataclass
class PolicyConfig:
    kind: PolicyKind = PolicyKind.features
    """features: small MLP on hand-made inputs. navrl: NavRL's network (Beta head, convolutions as matrix products; ppo)."""
    hidden: list[int] = field(default_factory=lambda: [256, 128])
    """Widths of the MLP's layers (features only)."""


@dataclass
class CollectConfig:
    mode: CollectMode = CollectMode.sync
    """sync: fly, then learn. pipelined: fly ahead while learning (lag 1). halves: half decide, half fly. ppo only."""


@dataclass
class CurriculumConfig:
    movers_start: float = 0.25
    """Share of the moving obstacles shown at the beginning."""
    ramp: float = 0.25
    """Share of training over which it grows to 1 (0: all from the start)."""


@dataclass
class WandbConfig:
    mode: WandbMode = WandbMode.disabled
    """disabled, offline or online. Needs `pip install fledge[wandb]`; never asks for a key."""
    project: str = "fledge"
    """Project name."""


@dataclass
class TrainConfig:
    task: str = "navigation"
    """What to train on."""
    algo: Algo = Algo.ppo
    """Learning algorithm. sac and td3 learn from replay; dqn too, on the grid map with discrete headings."""
    seed: int = 0
    """Decides everything random in the run."""
    ranks: int = 0
    """Processes that share the drones and average gradients; 0: one per core on a CPU, one per GPU on CUDA."""
    device: str = "cpu"
    """cpu or cuda."""
    total_frames: int = 10_000_000
    """Decisions to train for, over all drones and ranks."""
    max_minutes: float = 0.0
    """Save and stop after this many minutes; 0: no limit. Schedules follow total_frames all the same."""
    init_from: str = ""
    """Start from the weights of this run or policy file."""
    env: NavigationConfig = field(default_factory=NavigationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    sac: SACConfig = field(default_factory=SACConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    dqn: DQNConfig = field(default_factory=DQNConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: bool = True
    """Write TensorBoard event files into the run."""
    log_interval: int = 1
    """Iterations between log lines."""
    save_interval: int = 50
    """Iterations between checkpoints."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept whole; older ones are thinned to weights."""
    keep_best: int = 1
    """Checkpoints kept for the best training success."""
    compress_checkpoint: bool = True
    """Compress checkpoints (losslessly)."""
    async_checkpoint_queue_size: int = 3
    """Checkpoints that may wait for the disk before training waits."""
    save_compression_level: int = 1
    """Effort of the checkpoint codecs, 0 (store) to 9."""
    rollout_save_interval: int = 0
    """Iterations between archived rollouts; 0: none."""
    rollout_compression_level: int = 9
    """Effort of the codecs of archived rollouts, 0 (store) to 9."""
    eval_interval: int = 0
    """Iterations between evaluations on held-out maps; 0: none."""
    eval_episodes: int = 256
    """Episodes per evaluation during training."""
    compile: bool = False
    """Compile the network with torch.compile (pays on CUDA; needs a C++ compiler)."""

    @property
    def steps(self) -> int:
        """Decisions per drone and iteration."""
        return self.ppo.rollout_steps if self.algo is Algo.ppo else self.replay.steps

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        if self.task != "navigation":
            raise ConfigError(f"task is {self.task!r}, but must be 'navigation'.")
        if self.total_frames < 1:
            raise ConfigError(f"total_frames is {self.total_frames}, but training needs at least 1 decision.")
        for name in ("save_interval", "log_interval", "keep_checkpoints", "async_checkpoint_queue_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        for name in ("seed", "ranks", "max_minutes", "keep_best", "rollout_save_interval", "eval_interval"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be 0 or more.")
        for name in ("save_compression_level", "rollout_compression_level"):
            if not 0 <= getattr(self, name) <= 9:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must lie between 0 and 9.")
        if not 0 <= self.curriculum.movers_start <= 1 or self.curriculum.ramp < 0:
            raise ConfigError("curriculum.movers_start must lie between 0 and 1, and curriculum.ramp be 0 or more.")
        if self.algo is not Algo.ppo and self.total_frames <= self.replay.warm_up:
            raise ConfigError(
                f"total_frames is {self.total_frames:,}, but the first {self.replay.warm_up:,} only fill the replay "
                "(replay.warm_up): nothing would be learned."
            )
        if not self.policy.hidden or min(self.policy.hidden) < 1:
            raise ConfigError("policy.hidden must list at least one width of 1 or more.")
        self.env.validate()
        for part in (self.ppo, self.replay, self.sac, self.td3, self.dqn):
            part.validate()
