"""A plain PPO in one file, as an oracle: loops instead of vectors, a dict of lists instead of rollouts, ordinary Adam.

It shares the env, the network's definition and the value normaliser's definition with Fledge, nothing of its collector,
returns, losses, flat buffers or learner.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def collect(env, policy, obs: dict[str, Tensor], steps: int) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """Fly `steps` decisions, one dict per step."""
    rows = []
    for _ in range(steps):
        with torch.no_grad():
            x = policy.encode(obs)
            (mean, std), value = policy(x)
            raw = mean + std * torch.randn_like(mean)
            density = torch.distributions.Normal(mean, std).log_prob(raw).sum(-1)
            shift, scale = policy.value_norm.mean_std()
            out = env.step((raw.clamp(-1, 1) + 1) / 2)
            following = policy(policy.encode(out["obs"]))[1] * scale + shift
            last = policy(policy.encode(out["final_obs"]))[1] * scale + shift
        next_value = torch.where(out["truncated"], last, following)
        row = {"x": x, "raw": raw, "log_prob": density, "value": value * scale + shift, "next_value": next_value}
        row |= {k: out[k].clone() for k in ("reward", "terminated", "truncated")}
        rows.append(row)
        obs = {k: v.clone() for k, v in out["obs"].items()}
    return rows, obs


def advantages(rows: list[dict[str, Tensor]], gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """GAE, one env and one step at a time."""
    steps, envs = len(rows), len(rows[0]["reward"])
    advantage = torch.zeros(steps, envs)
    for env in range(envs):
        running = 0.0
        for t in reversed(range(steps)):
            row = rows[t]
            terminated, truncated = bool(row["terminated"][env]), bool(row["truncated"][env])
            future = 0.0 if terminated else float(row["next_value"][env])
            delta = float(row["reward"][env]) + gamma * future - float(row["value"][env])
            running = delta + (0.0 if terminated or truncated else gamma * lam * running)
            advantage[t, env] = running
    return advantage, advantage + torch.stack([row["value"] for row in rows])


def update(policy, optimizer, rows, cfg, lr: float, entropy_coef: float) -> dict[str, float]:
    """One PPO update; returns mean losses over all minibatches."""
    advantage, target = advantages(rows, cfg.gamma, cfg.gae_lambda)
    norm, critic = policy.value_norm, policy.critic
    with torch.no_grad():  # PopArt
        old_shift, old_scale = (t.clone() for t in norm.mean_std())
        norm.update(target.mean(), (target**2).mean())
        shift, scale = norm.mean_std()
        critic.weight.copy_(critic.weight * old_scale / scale)
        critic.bias.copy_((critic.bias * old_scale + old_shift - shift) / scale)
    flat = {k: torch.cat([row[k] for row in rows]) for k in ("x", "raw", "log_prob")}
    advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)
    flat["advantage"], flat["target"] = advantage.flatten(), ((target - shift) / scale).flatten()
    for group in optimizer.param_groups:
        group["lr"] = lr
    size, part = len(flat["log_prob"]), min(cfg.minibatch, len(flat["log_prob"]))
    sums, count = {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0, "grad_norm": 0.0}, 0
    for _ in range(cfg.epochs):
        order = torch.randperm(size)
        for first in range(0, size - part + 1, part):
            batch = {k: v[order[first : first + part]] for k, v in flat.items()}
            (mean, std), value = policy(batch["x"])
            normal = torch.distributions.Normal(mean, std)
            ratio = torch.exp(normal.log_prob(batch["raw"]).sum(-1) - batch["log_prob"])
            clipped = torch.clamp(ratio, 1 - cfg.clip, 1 + cfg.clip)
            policy_loss = -torch.minimum(ratio * batch["advantage"], clipped * batch["advantage"]).mean()
            error = (value - batch["target"]).abs()
            huber = torch.where(
                error < cfg.huber_delta, 0.5 * error**2, cfg.huber_delta * (error - 0.5 * cfg.huber_delta)
            )
            entropy = normal.entropy().sum(-1).mean()
            optimizer.zero_grad()
            (policy_loss + cfg.value_coef * huber.mean() - entropy_coef * entropy).backward()
            grad_norm = math.sqrt(sum(float((p.grad**2).sum()) for p in policy.parameters()))
            for p in policy.parameters():
                p.grad.mul_(min(1.0, cfg.max_grad_norm / (grad_norm + 1e-6)))
            optimizer.step()
            count += 1
            for name, amount in (("policy_loss", policy_loss), ("value_loss", huber.mean()), ("entropy", entropy)):
                sums[name] += float(amount.detach())
            sums["grad_norm"] += grad_norm
    return {k: v / count for k, v in sums.items()}
