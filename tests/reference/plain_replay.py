"""An uncompressed replay as an oracle: a Python list of episodes, each a list of steps; nothing of Fledge's replay room.

It follows the documented rules only: episodes enter when they end or after `segment` steps, whole episodes leave, and
draws are `numpy.random.default_rng(seed).integers(0, transitions, batch)` over transitions from oldest to newest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Step = dict[str, Tensor]


class PlainReplay:
    def __init__(self, size: int, observed: tuple[str, ...], segment: int, n_step: int, gamma: float, seed: int):
        self.size, self.observed, self.segment, self.n_step, self.gamma = size, observed, segment, n_step, gamma
        self.rng = np.random.default_rng(seed)
        self.episodes: list[tuple[list[Step], Step]] = []  # steps, final observation
        self.open: list[list[Step]] = []

    def __len__(self) -> int:
        return sum(len(steps) for steps, _ in self.episodes)

    def add_rollout(self, rollout: Any) -> int:
        times, envs = rollout["reward"].shape
        self.open = self.open or [[] for _ in range(envs)]
        for t in range(times):
            for env in range(envs):
                obs = {k: rollout["obs"][k][t, env].clone() for k in self.observed}
                if len(self.open[env]) == self.segment:
                    self._close(env, obs)
            for env in range(envs):
                obs = {k: rollout["obs"][k][t, env].clone() for k in self.observed}
                step = {k: rollout[k][t, env].clone() for k in ("action", "reward", "terminated")}
                self.open[env].append(obs | step)
            for env in range(envs):
                if rollout["terminated"][t, env] or rollout["truncated"][t, env]:
                    self._close(env, {k: rollout["final_obs"][k][t, env].clone() for k in self.observed})
        return 0

    def _close(self, env: int, final: Step) -> None:
        self.episodes.append((self.open[env], final))
        self.open[env] = []
        while len(self) > self.size:
            self.episodes.pop(0)

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        flat = [(e, t) for e, (steps, _) in enumerate(self.episodes) for t in range(len(steps))]
        rows = [self._transition(*flat[i]) for i in self.rng.integers(0, len(flat), batch_size)]
        return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}

    def _transition(self, episode: int, t: int) -> Step:
        steps, final = self.episodes[episode]
        k = min(self.n_step, len(steps) - t)
        after = steps[t + k] if t + k < len(steps) else final
        reward = sum(self.gamma**i * steps[t + i]["reward"].double() for i in range(k))
        row = {name: steps[t][name] for name in (*self.observed, "action")}
        row |= {f"next_{name}": after[name] for name in self.observed}
        row["reward"] = torch.as_tensor(reward).float()
        row["terminated"] = steps[t + k - 1]["terminated"]
        if self.n_step > 1:
            row["discount"] = torch.tensor(np.float32(self.gamma**k))
        return row

    def close(self) -> None:
        pass
