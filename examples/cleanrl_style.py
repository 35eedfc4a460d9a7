"""PPO in one file, in the style of CleanRL, on a Gymnasium vector env of Fledge.

    python examples/cleanrl_style.py

The script imports nothing of Fledge: Gymnasium finds the env by its ID, and settings of the env are keywords. It prints how
flights through a light forest end during training: finally nine in ten reach their goal, after two or three minutes on two
busy cores.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Actor and critic on flat observations, normalised by their running mean and standard deviation."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(layer(inputs, 128), nn.Tanh(), layer(128, 128), nn.Tanh(), layer(128, actions, 0.01))
        self.critic = nn.Sequential(layer(inputs, 128), nn.Tanh(), layer(128, 128), nn.Tanh(), layer(128, 1, 1.0))
        self.log_std = nn.Parameter(torch.full((actions,), -0.7))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("var", torch.ones(inputs))
        self.count = 1e-4

    def normalize(self, x: Tensor, learn: bool = False) -> Tensor:
        if learn:  # combines mean and variance of two samples (Chan et al.)
            share = len(x) / (self.count + len(x))
            gap = x.mean(0) - self.mean
            self.var += share * (x.var(0, unbiased=False) - self.var) + share * (1 - share) * gap.square()
            self.mean += share * gap
            self.count += len(x)
        return ((x - self.mean) / (self.var + 1e-6).sqrt()).clamp(-10, 10)

    def value(self, x: Tensor) -> Tensor:
        return self.critic(x)[:, 0]

    def policy(self, x: Tensor) -> Normal:
        return Normal(self.actor(x), self.log_std.exp())


def flat(obs: dict[str, np.ndarray]) -> Tensor:
    return torch.cat([torch.as_tensor(v).flatten(1) for v in obs.values()], -1)


def last_values(agent: Agent, infos: dict[str, Any], truncated: np.ndarray) -> Tensor:
    """Return the values of the last observations of truncated episodes, for bootstrapping."""
    finals = [infos["final_obs"][i] for i in np.flatnonzero(truncated)]
    return agent.value(agent.normalize(flat({k: np.stack([f[k] for f in finals]) for k in finals[0]})))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"total-steps": 1_000_000, "num-envs": 256, "num-steps": 64, "epochs": 4, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in {"lr": 7e-4, "gamma": 0.99, "gae-lambda": 0.95, "clip": 0.2, "entropy": 0.001}.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    settings: dict[str, Any] = {"static_obstacles": 60, "moving_obstacles": 0, "num_maps": 16, "decimation": 5}
    settings |= {"starts": "mixed", "reward": {"time": 0.5}, "seed": args.seed}
    envs = gymnasium.make_vec("fledge.gym:fledge/Navigation-v0", num_envs=args.num_envs, **settings)
    assert isinstance(envs.single_action_space, gymnasium.spaces.Box)
    low, high = (torch.as_tensor(x) for x in (envs.single_action_space.low, envs.single_action_space.high))
    obs, _ = envs.reset()
    inputs = flat(obs)
    T, N, F, A = args.num_steps, args.num_envs, inputs.shape[1], len(low)
    agent = Agent(F, A)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    x, raw = torch.zeros(T + 1, N, F), torch.zeros(T, N, A)
    log_prob, reward, value, ended = (torch.zeros(T + 1, N) for _ in range(4))
    x[0] = agent.normalize(inputs, learn=True)
    ends: deque[str] = deque(maxlen=500)
    updates, begun = args.total_steps // (T * N), time.time()

    for update in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = args.lr * (1 - (update - 1) / updates)
        with torch.no_grad():
            for t in range(T):
                policy = agent.policy(x[t])
                raw[t] = policy.sample()
                log_prob[t], value[t] = policy.log_prob(raw[t]).sum(-1), agent.value(x[t])
                action = (low + (high - low) * (raw[t] + 1) / 2).clamp(low, high)
                obs, paid, terminated, truncated, infos = envs.step(action.numpy())
                reward[t], ended[t] = torch.as_tensor(paid), torch.as_tensor(terminated | truncated).float()
                if truncated.any():
                    reward[t, torch.as_tensor(truncated)] += args.gamma * last_values(agent, infos, truncated)
                if infos:
                    ends.extend(infos["final_info"]["outcome"][infos["_final_info"]].tolist())
                x[t + 1] = agent.normalize(flat(obs), learn=True)
            value[T] = agent.value(x[T])
            advantage = torch.zeros(T + 1, N)
            for t in reversed(range(T)):
                goes_on = args.gamma * (1 - ended[t])
                delta = reward[t] + goes_on * value[t + 1] - value[t]
                advantage[t] = delta + goes_on * args.gae_lambda * advantage[t + 1]
            returns = (advantage + value)[:T].flatten()
        batch = [v[:T].flatten(0, 1) for v in (x, raw, log_prob, advantage)]
        for index in (i for _ in range(args.epochs) for i in torch.randperm(T * N).split(2048)):
            inputs, taken, before, gain = (v[index] for v in batch)
            policy, gain = agent.policy(inputs), (gain - gain.mean()) / (gain.std() + 1e-8)
            ratio = (policy.log_prob(taken).sum(-1) - before).exp()
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - args.clip, 1 + args.clip) * gain).mean()
            value_loss = nn.functional.smooth_l1_loss(agent.value(inputs), returns[index])
            loss = value_loss - surrogate - args.entropy * policy.entropy().sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
            optimizer.step()
        x[0] = x[T]
        shares = {name: round(count / len(ends), 2) for name, count in Counter(ends).most_common()}
        print(f"{update * T * N:9,d} decisions, {update * T * N / (time.time() - begun):,.0f}/s  {shares}", flush=True)
    envs.close()


if __name__ == "__main__":
    main()
