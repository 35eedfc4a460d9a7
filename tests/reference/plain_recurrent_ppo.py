"""A plain recurrent PPO in one file, as an oracle: every env and every decision on its own, torch's own GRU cell.

It shares the env, the definition of the layers and the value normaliser with Fledge, nothing of its GRU, unrolling,
collector, sequences, losses or learner. GAE is the plain PPO's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.plain_ppo import advantages


def think(policy: Any, x: Tensor, hidden: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """One decision: inputs [B, F] and states [B, H] to mean and deviation, normalised value, next states."""
    gru = policy.gru
    after = torch.gru_cell(x, hidden, gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh)
    h = policy.trunk(torch.cat([x, after], dim=-1))
    return policy.head(h), policy.critic(h)[:, 0], after


def collect(env: Any, policy: Any, obs: dict[str, Tensor], hidden: Tensor, steps: int) -> Any:
    """Fly `steps` decisions, one dict per step; return them, and the observation and states to go on with."""
    rows = []
    for _ in range(steps):
        with torch.no_grad():
            x = policy.encode(obs)
            (mean, std), value, after = think(policy, x, hidden)
            raw = mean + std * torch.randn_like(mean)
            density = torch.distributions.Normal(mean, std).log_prob(raw).sum(-1)
            shift, scale = policy.value_norm.mean_std()
            out = env.step((raw.clamp(-1, 1) + 1) / 2)
            row = {"x": x, "raw": raw, "log_prob": density, "value": value * scale + shift, "hidden": hidden}
            next_value, following = torch.zeros(len(x)), after.clone()
            for n in range(len(x)):
                if out["terminated"][n] or out["truncated"][n]:
                    following[n] = 0.0
                kind = "final_obs" if out["truncated"][n] else "obs"
                state = after[n : n + 1] if out["truncated"][n] else following[n : n + 1]
                seen = policy.encode({k: v[n : n + 1] for k, v in out[kind].items()})
                next_value[n] = think(policy, seen, state)[1][0] * scale + shift
        row |= {"next_value": next_value, **{k: out[k].clone() for k in ("reward", "terminated", "truncated")}}
        rows.append(row)
        obs, hidden = {k: v.clone() for k, v in out["obs"].items()}, following
    return rows, obs, hidden


def update(policy: Any, optimizer: Any, rows: list[dict[str, Tensor]], cfg: Any, length: int) -> dict[str, float]:
    """One PPO update on sequences of `length` decisions; returns mean losses over all minibatches."""
    advantage, target = advantages(rows, cfg.gamma, cfg.gae_lambda)
    norm, critic = policy.value_norm, policy.critic
    with torch.no_grad():  # PopArt
        old_shift, old_scale = (t.clone() for t in norm.mean_std())
        norm.update(target.mean(), (target**2).mean())
        shift, scale = norm.mean_std()
        critic.weight.copy_(critic.weight * old_scale / scale)
        critic.bias.copy_((critic.bias * old_scale + old_shift - shift) / scale)
    advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)
    target = (target - shift) / scale
    pieces = [(first, n) for first in range(0, len(rows), length) for n in range(len(rows[0]["reward"]))]
    part = max(1, min(cfg.minibatch // length, len(pieces)))
    sums, count = {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0, "grad_norm": 0.0}, 0
    for _ in range(cfg.epochs):
        order = torch.randperm(len(pieces)).tolist()
        for begin in range(0, len(pieces) - part + 1, part):
            policy_losses, value_losses, entropies = [], [], []
            for first, n in (pieces[k] for k in order[begin : begin + part]):
                hidden = rows[first]["hidden"][n : n + 1]
                for t in range(first, first + length):
                    row = rows[t]
                    if t > first and (rows[t - 1]["terminated"][n] or rows[t - 1]["truncated"][n]):
                        hidden = torch.zeros_like(hidden)
                    (mean, std), value, hidden = think(policy, row["x"][n : n + 1], hidden)
                    normal = torch.distributions.Normal(mean, std)
                    ratio = torch.exp(normal.log_prob(row["raw"][n]).sum() - row["log_prob"][n])
                    clipped = torch.clamp(ratio, 1 - cfg.clip, 1 + cfg.clip)
                    policy_losses.append(-torch.minimum(ratio * advantage[t, n], clipped * advantage[t, n]))
                    error = (value[0] - target[t, n]).abs()
                    large = cfg.huber_delta * (error - 0.5 * cfg.huber_delta)
                    value_losses.append(0.5 * error**2 if error < cfg.huber_delta else large)
                    entropies.append(normal.entropy().sum())
            losses = [torch.stack(each).mean() for each in (policy_losses, value_losses, entropies)]
            optimizer.zero_grad()
            (losses[0] + cfg.value_coef * losses[1] - cfg.entropy_coef * losses[2]).backward()
            grad_norm = math.sqrt(sum(float((p.grad**2).sum()) for p in policy.parameters()))
            for p in policy.parameters():
                p.grad.mul_(min(1.0, cfg.max_grad_norm / (grad_norm + 1e-6)))
            optimizer.step()
            count += 1
            for name, amount in zip(("policy_loss", "value_loss", "entropy"), losses, strict=True):
                sums[name] += float(amount.detach())
            sums["grad_norm"] += grad_norm
    return {k: v / count for k, v in sums.items()}
