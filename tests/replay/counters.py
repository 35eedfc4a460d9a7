"""Envs that count, so that every observation names itself; and the keys to store them under."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict

KEYS = ["x", "action", "reward", "terminated", "truncated", "next_x"]


class Counters:
    """N envs whose observation is (env, episode, step); episodes end at random, truncated or terminated."""

    def __init__(self, num_envs: int, seed: int, ends: float) -> None:
        self.rng, self.n, self.ends = np.random.default_rng(seed), num_envs, ends
        self.episode, self.step_in = np.zeros(num_envs), np.zeros(num_envs)

    def obs(self) -> torch.Tensor:
        return torch.from_numpy(np.stack([np.arange(self.n), self.episode, self.step_in], 1).astype(np.float32))

    def rollout(self, steps: int) -> TensorDict:
        rows = []
        for _ in range(steps):
            before = self.obs()
            action = torch.from_numpy(self.rng.integers(0, 9, self.n))
            self.step_in += 1
            final = self.obs()
            done = self.rng.random(self.n) < self.ends
            cut = done & (self.rng.random(self.n) < 0.5)
            self.episode[done] += 1
            self.step_in[done] = 0
            flags = {"terminated": torch.from_numpy(done & ~cut), "truncated": torch.from_numpy(cut)}
            final[~torch.from_numpy(done)] = torch.nan  # garbage where no episode ended
            row = {"obs": {"x": before}, "final_obs": {"x": final}, "action": action, "reward": action.float(), **flags}
            rows.append(TensorDict({**row, "other": torch.zeros(self.n)}, [self.n]))
        return torch.stack(rows)
