"""PPO's loss in closed form against autograd on the formulas, for every option; the closed forms of distributions too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fledge.agents.distributions import Head, make_head
from fledge.core.specs import TensorSpec
from fledge.learn.objective import objective
from fledge.learn.ppo import PPOConfig

B = 400


def plain(
    log_prob: Tensor, value: Tensor, entropy: Tensor, batch: dict[str, Tensor], cfg: PPOConfig, coef: float
) -> Tensor:
    ratio, advantage = (log_prob - batch["log_prob"]).exp(), batch["advantage"]
    policy = -torch.min(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage).mean()
    near = batch["value"] + (value - batch["value"]).clamp(-cfg.value_clip, cfg.value_clip)
    losses = [F.huber_loss(v, batch["target"], reduction="none", delta=cfg.huber_delta) for v in (value, near)]
    by_sample = (
        torch.max(*losses).mean() if cfg.value_clip_by == "sample" else torch.max(losses[0].mean(), losses[1].mean())
    )
    value_loss = by_sample if cfg.value_clip else losses[0].mean()
    return cfg.actor_coef * policy + cfg.value_coef * value_loss - coef * entropy.mean()


@pytest.mark.parametrize("by", ["sample", "minibatch"])
@pytest.mark.parametrize("value_clip", [0.0, 0.3])
@pytest.mark.parametrize("shift", [-4.0, 0.0, 4.0])  # makes the plain or the clipped value loss the larger one
def test_loss_and_gradients_equal_autograd_on_the_formulas(by: str, value_clip: float, shift: float) -> None:
    g = torch.Generator().manual_seed(1)
    cfg = PPOConfig(value_clip=value_clip, value_clip_by=by, huber_delta=1.5, actor_coef=3.0, value_coef=0.7)
    batch = {k: torch.randn(B, generator=g, dtype=torch.float64) for k in ("log_prob", "advantage", "value", "target")}
    batch["target"] += shift
    start = [batch["log_prob"], batch["value"], torch.zeros(B, dtype=torch.float64)]
    given = [(x + 0.5 * torch.randn(B, generator=g, dtype=torch.float64)).requires_grad_() for x in start]
    ours, metrics = objective(*given, batch, cfg, 0.01)
    theirs = plain(*given, batch, cfg, 0.01)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)
    for a, b in zip(torch.autograd.grad(2 * ours, given), torch.autograd.grad(2 * theirs, given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert 0 < float(metrics[4]) < 1, "some samples must be clipped"


@pytest.mark.parametrize("beta", [False, True])
def test_closed_forms_of_a_distribution_equal_autograd_on_its_methods(beta: bool) -> None:
    torch.manual_seed(2)
    head: Head = make_head(8, TensorSpec((3,), torch.float32, -1.0, 1.0), beta)
    params = tuple(p.detach().double().requires_grad_() for p in head(3.0 * torch.randn(B, 8)))
    raw = head.sample(tuple(p.detach().float() for p in params)).double()
    weights = torch.randn(2, B, dtype=torch.float64)
    found = []
    for terms in (head.evaluate(params, raw), (head.log_prob(params, raw), head.entropy(params))):
        found.append([*terms, *torch.autograd.grad((weights[0] * terms[0] + weights[1] * terms[1]).sum(), params)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
