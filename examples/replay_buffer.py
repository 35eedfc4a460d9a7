"""DictReplayBuffer in a plain PyTorch loop: double DQN on Gymnasium's CartPole.

    python examples/replay_buffer.py

Prints the mean return of the last episodes during training, which rises from about 20 to more than 400 of 500 in one or two
minutes on one core, and finally the memory of the stored transitions beside their raw size.
"""

from __future__ import annotations

import argparse
import copy

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from fledge.replay import DictReplayBuffer

KEYS = ["obs", "action", "reward", "terminated", "next_obs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--warm-up", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # fastest for small networks
    chance = np.random.default_rng(args.seed)
    env = gymnasium.make("CartPole-v1")
    network = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
    buffer = DictReplayBuffer(20_000, KEYS, n_step=3, gamma=0.99, seed=args.seed)

    returns: list[float] = []
    episode: dict[str, list[object]] = {key: [] for key in ("obs", "action", "reward", "terminated")}
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.steps):
        epsilon = max(0.05, 1.0 - step / (0.3 * args.steps))
        if chance.random() < epsilon:
            action = int(chance.integers(2))
        else:
            with torch.no_grad():
                action = int(network(torch.as_tensor(obs)).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        for key, value in zip(episode, (obs, np.int64(action), np.float32(reward), terminated), strict=True):
            episode[key].append(value)
        obs = following
        if terminated or truncated:
            # One whole episode; next_obs is not stored, but made from obs and the observation after the last step.
            buffer.add({key: np.stack(values) for key, values in episode.items()} | {"final_obs": obs})
            returns.append(float(np.sum(episode["reward"])))
            episode = {key: [] for key in episode}
            obs, _ = env.reset()
        if len(buffer) > args.warm_up and step % 2 == 0:
            learn(network, target, optimizer, buffer.sample(128))
        if (step + 1) % max(1, args.steps // 10) == 0:
            print(f"step {step + 1:6d}  return {np.mean(returns[-20:]):6.1f}  epsilon {epsilon:.2f}", flush=True)

    stats = buffer.stats()
    raw = sum(row["raw"] for row in stats["keys"].values()) * stats["transitions"]
    print(f"{stats['transitions']} transitions in {stats['bytes'] / 1e3:.0f} kB; raw: {raw / 1e3:.0f} kB")
    buffer.close()


def learn(
    network: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> None:
    """Take one step of double DQN on n-step returns; `discount` is gamma to the power of the number of summed steps."""
    with torch.no_grad():
        best = network(batch["next_obs"]).argmax(-1, keepdim=True)
        future = target(batch["next_obs"]).gather(-1, best)[:, 0]
        wanted = batch["reward"] + batch["discount"] * ~batch["terminated"] * future
    value = network(batch["obs"]).gather(-1, batch["action"][:, None])[:, 0]
    loss = smooth_l1_loss(value, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, 0.005)


if __name__ == "__main__":
    main()
