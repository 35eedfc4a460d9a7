"""`--preset navrl` learns as NavRL does: against an oracle that shares no code, and its parts by hand."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from fledge.learn.flat import FlatParameters
from fledge.learn.objective import objective
from fledge.learn.ppo import PPO, PPOConfig
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic
from fledge.training.config import make_config
from tests.reference.navrl_ppo import NavRL

T, N, PART = 8, 16, 32


def settings() -> PPOConfig:
    cfg = make_config("navigation", "navrl").ppo
    cfg.rollout_steps, cfg.minibatch = T, PART
    return cfg


def make_pair() -> tuple[NavRLActorCritic, NavRL]:
    """The same network twice, ours and the oracle's."""
    torch.manual_seed(0)
    ours, theirs = NavRLActorCritic(), NavRL()
    for mine, other in parameters(ours, theirs):
        other.data.copy_(mine.data)
    return ours, theirs


def parameters(ours: NavRLActorCritic, theirs: NavRL) -> list[tuple[nn.Parameter, nn.Parameter]]:
    pairs = [
        (ours.lidar.convs, nn.ModuleList(theirs.extractor.lidar[k] for k in (0, 2, 4))),
        (ours.lidar.linear, theirs.extractor.lidar[7]),
        (ours.lidar.norm, theirs.extractor.lidar[8]),
        (ours.obstacles, theirs.extractor.obstacles),
        (ours.trunk, theirs.extractor.trunk),
        (ours.head, theirs.actor),
        (ours.critic, theirs.critic),
    ]
    found = [pair for a, b in pairs for pair in zip(a.parameters(), b.parameters(), strict=True)]
    assert len(found) == len(list(ours.parameters()))
    return found


@torch.no_grad()
def fly(policy: NavRLActorCritic, seed: int) -> tuple[TensorDict, dict[str, Tensor]]:
    """A made-up rollout of the policy with ends of both kinds, as our learner and as the oracle read it."""
    torch.manual_seed(seed)
    x, last, final = torch.rand(T, N, 202), torch.rand(1, N, 202), torch.rand(T, N, 202)
    terminated, truncated = torch.rand(T, N) < 0.1, torch.rand(T, N) < 0.1
    truncated &= ~terminated
    next_x = torch.where(truncated[..., None], final, torch.cat([x[1:], last]))
    params, _ = policy(x.flatten(0, 1))
    raw = policy.head.sample(params)
    reward = 4.0 + 2.0 * x[..., 150] + torch.randn(T, N)
    rollout = {
        "input": x,
        "raw_action": raw.view(T, N, 3),
        "log_prob": policy.head.log_prob(params, raw).view(T, N),
        "value": policy.value(x.flatten(0, 1)).view(T, N),
        "next_value": policy.value(next_x.flatten(0, 1)).view(T, N),
    }
    shared = {"reward": reward, "terminated": terminated, "truncated": truncated}
    read = {}
    for prefix, rows in (("", x), ("next_", next_x)):
        lidar, obstacles, state = rows.split([144, 50, 8], dim=-1)
        read |= {f"{prefix}lidar": lidar.view(T, N, 1, 36, 4), f"{prefix}obstacles": obstacles, f"{prefix}state": state}
    return TensorDict({**rollout, **shared}, [T, N]), {**read, **shared, "action": rollout["raw_action"]}


@pytest.mark.parametrize("stale_policy", [False, True])
def test_three_iterations_equal_an_oracle_that_shares_no_code(stale_policy: bool) -> None:
    policy, oracle = make_pair()
    cfg = settings()
    learner = PPO(policy, cfg, stale_policy=stale_policy)
    norms: list[float] = []
    for iteration in range(3):
        rollout, batch = fly(policy, seed=iteration)
        torch.manual_seed(100 + iteration)
        orders = [torch.randperm(T * N) for _ in range(cfg.epochs)]
        torch.manual_seed(100 + iteration)
        ours = learner.update(rollout)
        steps = oracle.update(batch, orders, T * N // PART)
        for name in ("policy_loss", "value_loss", "entropy"):
            theirs = sum(step[name] for step in steps) / len(steps)
            assert ours[name] == pytest.approx(theirs, rel=1e-4, abs=1e-5), (iteration, name)
        assert max(step["value_clipped"] for step in steps) > 0, "the test must meet clipped values"
        norms += [step["critic_norm"] for step in steps]
    assert max(norms) > 5.0, "and clipped gradients"
    for mine, theirs in parameters(policy, oracle):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    mean, std = policy.value_norm.mean_std()
    assert (float(mean), float(std)) == pytest.approx(oracle.shift_scale(), rel=1e-4)


@pytest.mark.parametrize("popart", [False, True])
@pytest.mark.parametrize("stale_policy", [False, True])
def test_no_value_is_clipped_at_the_first_minibatch_of_an_iteration(
    stale_policy: bool, popart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = make_pair()
    cfg = settings()
    cfg.popart = popart
    learner = PPO(policy, cfg, stale_policy=stale_policy)
    clipped: list[float] = []
    right = learner.losses

    def watched(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            moved = (policy(batch["input"])[1] - batch["value"]).abs()
        clipped.append(float((moved > cfg.value_clip).float().mean()))
        return right(batch)

    monkeypatch.setattr(learner, "losses", watched)
    for iteration in range(3):
        clipped.clear()
        learner.update(fly(policy, seed=iteration)[0])
        assert clipped[0] == 0.0
        assert max(clipped) > 0.0, "later ones are"


@pytest.mark.parametrize(
    ("by", "loss"), [("sample", (2.5**2 + 4.0**2) / 4), ("minibatch", max(2.0**2 + 4.0**2, 2.5**2 + 3.5**2) / 4)]
)
def test_the_larger_value_loss_is_taken_by_sample_or_by_minibatch(by: str, loss: float) -> None:
    value, old, target = torch.ones(2), torch.zeros(2), torch.tensor([3.0, -3.0])  # clipped to 0.5: farther, and nearer
    zeros = torch.zeros(2)
    batch = {"log_prob": zeros, "advantage": zeros, "value": old, "target": target}
    _, metrics = objective(zeros, value, zeros, batch, PPOConfig(value_clip=0.5, value_clip_by=by), 0.0)
    assert float(metrics[1]) == pytest.approx(loss)


def test_the_heads_are_clipped_alone_and_the_rest_is_left() -> None:
    policy = NavRLActorCritic()
    flat = FlatParameters(policy)
    flat.grads.fill_(1.0)
    norm = flat.clip_grad_norm(5.0, [flat.part(policy.head), flat.part(policy.critic)])
    assert float(norm) == pytest.approx(flat.grads.numel() ** 0.5)
    for name, p in policy.named_parameters():
        size = 6 * 257 if name.startswith("head") else 257 if name.startswith("critic") else 25
        torch.testing.assert_close(p.grad, torch.full_like(p, 5.0 / size**0.5), rtol=1e-4, atol=0.0)
