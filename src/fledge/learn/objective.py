"""PPO's loss of a minibatch, with its gradients in closed form: a third of the operations that autograd would run.

    loss = actor_coef * policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)
    policy_loss = -mean(min(ratio * advantage, clamp(ratio, 1 - clip, 1 + clip) * advantage)),  ratio = exp(log_prob - old)
    value_loss  = mean Huber loss of value - target; with value_clip, the larger of it and that of the clipped value

`tests/learn/test_objective.py` compares it with autograd on these lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from fledge.learn.ppo_config import PPOConfig


def objective(
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    batch: dict[str, Tensor],
    cfg: PPOConfig,
    entropy_coef: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the loss of a minibatch, and its metrics: policy loss, value loss, entropy, KL divergence, clipped share.

    Args:
        log_prob: [B] log-probabilities of the actions by the trained network.
        value: [B] its values, normalised.
        entropy: [B] entropies of its action distributions.
        batch: log_prob, advantage, value and target of the samples, [B].
    """
    old = (batch["log_prob"], batch["advantage"], batch["value"], batch["target"])
    loss: Tensor
    loss, metrics = _Objective.apply(log_prob, value, entropy, *old, cfg, entropy_coef)
    return loss, metrics


class _Objective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_prob: Tensor,
        value: Tensor,
        entropy: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        old_value: Tensor,
        target: Tensor,
        cfg: PPOConfig,
        entropy_coef: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        size = len(log_prob)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        gain = ratio * advantage
        limited = ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage
        policy_loss = -torch.minimum(gain, limited).mean()
        policy_slope = torch.where(gain <= limited, gain, 0.0).mul_(-cfg.actor_coef / size)
        value_loss, value_slope = _value_loss(value, old_value, target, cfg)
        value_slope *= cfg.value_coef / size
        mean_entropy = entropy.mean()
        kl = (ratio - log_ratio).mean() - 1
        clipped = ((ratio - 1).abs_() > cfg.clip).float().mean()
        loss = cfg.actor_coef * policy_loss + cfg.value_coef * value_loss - entropy_coef * mean_entropy
        ctx.save_for_backward(policy_slope, value_slope)
        ctx.entropy_slope = -entropy_coef / size  # of a tensor on the GPU, whose value may change between replays
        metrics = torch.stack([policy_loss, value_loss, mean_entropy, kl, clipped])
        ctx.mark_non_differentiable(metrics)
        return loss, metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        policy_slope, value_slope = ctx.saved_tensors
        entropy_slope = (grad * ctx.entropy_slope).expand(len(policy_slope)) if ctx.needs_input_grad[2] else None
        return policy_slope * grad, value_slope * grad, entropy_slope, *[None] * 6


def _value_loss(value: Tensor, old: Tensor, target: Tensor, cfg: PPOConfig) -> tuple[Tensor, Tensor]:
    """Return the mean Huber loss of the values, and its gradient times their number, [B]."""
    error = value - target
    slope = error.clamp(-cfg.huber_delta, cfg.huber_delta)
    loss = slope * torch.sub(error, slope, alpha=0.5)
    if cfg.value_clip == 0:
        return loss.mean(), slope
    change = value - old
    error = change.clamp(-cfg.value_clip, cfg.value_clip) + (old - target)
    clipped_slope = error.clamp(-cfg.huber_delta, cfg.huber_delta)
    clipped = clipped_slope * torch.sub(error, clipped_slope, alpha=0.5)
    clipped_slope = torch.where(change.abs() <= cfg.value_clip, clipped_slope, 0.0)
    if cfg.value_clip_by == "minibatch":
        plain, limited = loss.mean(), clipped.mean()
        return torch.maximum(plain, limited), torch.where(plain >= limited, slope, clipped_slope)
    return torch.maximum(loss, clipped).mean(), torch.where(loss >= clipped, slope, clipped_slope)
