"""PPOConfig: the settings of PPO."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fledge.core.settings import setting


class Precision(enum.Enum):
    """Number format of the network during updates."""

    fp32 = "fp32"
    bf16 = "bf16"
    auto = "auto"
    mixed = "auto"  # another name of auto


@dataclass
class PPOConfig:
    rollout_steps: int = setting(64, at_least=1)
    """Decisions of each env in one iteration: the length of a rollout."""
    epochs: int = setting(3, at_least=1)
    """Number of learning passes over each rollout."""
    minibatch: int = setting(4096, at_least=1)
    """Samples per gradient step, over all ranks."""
    sequence_length: int = setting(0, at_least=0)
    """Decisions through which gradients of a recurrent policy (policy.gru_size) go back; 0: the whole rollout."""
    minibatch_final_scale: float = setting(1.0, above=0)
    """Factor by which `minibatch` grows until the end of training, linearly: 4 ends with four times the samples."""
    lr: float = setting(7e-4, above=0, below=1)
    """Adam's learning rate at the start of training."""
    lr_final_share: float = setting(0.05, at_least=0)
    """Learning rate at the end of training, as a share of `lr`; it changes linearly."""
    gamma: float = setting(0.99, at_least=0, at_most=1)
    """Discount factor per decision."""
    gae_lambda: float = setting(0.95, at_least=0, at_most=1)
    """Lambda of generalised advantage estimation: 0 relies on the critic, 1 on the observed returns."""
    clip: float = setting(0.2, above=0)
    """PPO clip range for the probability ratio."""
    actor_coef: float = setting(1.0, above=0)
    """Weight of the policy loss (3 in NavRL, its number of action axes)."""
    value_clip: float = setting(0.0, at_least=0)
    """Clip range for the change of a predicted value in an update, in units of normalised returns; 0: no clipping."""
    value_clip_by: str = setting("sample", choices=("sample", "minibatch"))
    """With value_clip, where to take the larger of the clipped and the plain loss: sample (for each sample), or
    minibatch (of the means over a minibatch, as NavRL does)."""
    huber_delta: float = setting(10.0, above=0)
    """Error above which the value loss is linear instead of quadratic (Huber loss), in units of normalised returns."""
    value_coef: float = setting(1.0, at_least=0)
    """Weight of the value loss."""
    entropy_coef: float = setting(0.001, at_least=0)
    """Weight of the entropy bonus at the start of training."""
    entropy_final_share: float = setting(0.0, at_least=0)
    """Weight of the entropy bonus at the end of training, as a share of `entropy_coef`; it changes linearly."""
    max_grad_norm: float = setting(1.0, above=0)
    """Largest norm of a gradient; larger gradients are scaled down to it."""
    clip_heads: bool = False
    """Clip only the gradients of the actor's and the critic's last layers, each to max_grad_norm (NavRL)."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and standard deviation 1 over the whole rollout."""
    popart: bool = True
    """Keep value predictions unchanged when the normalisation of returns is updated (PopArt)."""
    log_std_max: float = setting(-0.5, at_least=-4, at_most=2)
    """Upper limit of a Gaussian policy's log standard deviation at the start of training."""
    log_std_max_final: float = setting(-1.3, at_least=-4, at_most=2)
    """Ceiling of the log standard deviation at the end (linear)."""
    adam_eps: float = setting(1e-5, above=0)
    """Adam's epsilon."""
    precision: Precision = Precision.fp32
    """Number format in updates: fp32, bf16 (mixed precision; `fledge advise` measures whether it is faster), or auto (bf16 on
    CUDA, fp32 on a CPU)."""
