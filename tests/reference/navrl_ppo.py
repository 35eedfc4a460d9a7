"""NavRL's network and update in one file, as an oracle of `--preset navrl`: nothing of Fledge is imported.

Written from the task's specification ("NavRL's network, exactly"): Conv2d, GAE by a loop, a running normalisation of
returns, three Adams, and the two heads' gradients clipped alone. One fact is from NavRL's source, where the specification
is silent: the larger of the *mean* of clipped and plain value losses is taken.

A batch of experience is a dict, [T, N] each: lidar [.., 1, 36, 4], obstacles [.., 50], state [.., 8], the same with "next_" in
front (what the step led to), action [.., 3] in [0, 1], reward, terminated, truncated.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Beta

GAMMA, LAMBDA, CLIP, DELTA, ENTROPY, RATE, NORM, DECAY = 0.99, 0.95, 0.1, 10.0, 1e-3, 5e-4, 5.0, 0.995
ACTIONS = 3


def block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.LeakyReLU(), nn.LayerNorm(outputs)]


class Extractor(nn.Module):
    """[lidar 128 | obstacles 64 | state 8] to 256 features."""

    def __init__(self) -> None:
        super().__init__()
        self.lidar = nn.Sequential(
            nn.Conv2d(1, 4, (5, 3), padding=(2, 1)),
            nn.ELU(),
            nn.Conv2d(4, 16, (5, 3), stride=(2, 1), padding=(2, 1)),
            nn.ELU(),
            nn.Conv2d(16, 16, (5, 3), stride=(2, 2), padding=(2, 1)),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(288, 128),
            nn.LayerNorm(128),
        )
        self.obstacles = nn.Sequential(*block(50, 128), *block(128, 64))
        self.trunk = nn.Sequential(*block(200, 256), *block(256, 256))

    def forward(self, lidar: Tensor, obstacles: Tensor, state: Tensor) -> Tensor:
        return self.trunk(torch.cat([self.lidar(lidar), self.obstacles(obstacles), state], dim=-1))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Linear(256, ACTIONS), nn.Linear(256, ACTIONS)

    def forward(self, x: Tensor) -> Beta:
        soft = nn.functional.softplus
        return Beta(1 + soft(self.alpha(x)) + 1e-6, 1 + soft(self.beta(x)) + 1e-6)


class NavRL:
    """Network, value normalisation and three Adams."""

    def __init__(self) -> None:
        self.extractor, self.actor, self.critic = Extractor(), Actor(), nn.Linear(256, 1)
        self.modules = (self.extractor, self.actor, self.critic)
        self.optimizers = [torch.optim.Adam(module.parameters(), lr=RATE) for module in self.modules]
        self.sum_mean = self.sum_square = self.sum_weight = 0.0

    def shift_scale(self) -> tuple[float, float]:
        """Running mean and deviation of returns; 0 and 1 before there are any."""
        if self.sum_weight == 0:
            return 0.0, 1.0
        mean, square = self.sum_mean / self.sum_weight, self.sum_square / self.sum_weight
        return mean, max(square - mean**2, 1e-2) ** 0.5

    def outputs(self, rows: dict[str, Tensor], prefix: str = "") -> tuple[Beta, Tensor]:
        """Action distribution and the critic's own output, for flat rows."""
        x = self.extractor(*(rows[prefix + name] for name in ("lidar", "obstacles", "state")))
        return self.actor(x), self.critic(x).squeeze(-1)

    def update(self, batch: dict[str, Tensor], orders: list[Tensor], minibatches: int) -> list[dict[str, float]]:
        """Learn from a batch; `orders` are the permutations of the epochs. Returns the figures of every step."""
        steps, envs = batch["reward"].shape
        flat = {name: value.flatten(0, 1) for name, value in batch.items()}
        with torch.no_grad():
            policy, output = self.outputs(flat)
            old_log_prob = policy.log_prob(flat["action"]).sum(-1)
            _, next_output = self.outputs(flat, "next_")
        shift, scale = self.shift_scale()
        value, next_value = ((o * scale + shift).view(steps, envs) for o in (output, next_output))
        advantage, running = torch.zeros(steps, envs), torch.zeros(envs)
        for t in reversed(range(steps)):
            alive = 1 - batch["terminated"][t].float()
            delta = batch["reward"][t] + GAMMA * next_value[t] * alive - value[t]
            running = delta + GAMMA * LAMBDA * alive * (1 - batch["truncated"][t].float()) * running
            advantage[t] = running
        returns = advantage + value
        self.sum_mean = DECAY * self.sum_mean + (1 - DECAY) * float(returns.double().mean())
        self.sum_square = DECAY * self.sum_square + (1 - DECAY) * float(returns.double().square().mean())
        self.sum_weight = DECAY * self.sum_weight + (1 - DECAY)
        shift, scale = self.shift_scale()
        advantage = ((advantage - advantage.mean()) / advantage.std(unbiased=False)).flatten()
        target = ((returns - shift) / scale).flatten()
        figures = []
        for order in orders:
            for part in order.view(minibatches, -1):
                rows = {name: value[part] for name, value in flat.items()}
                figures.append(self._step(rows, old_log_prob[part], output[part], advantage[part], target[part]))
        return figures

    def _step(
        self, rows: dict[str, Tensor], log_prob: Tensor, old: Tensor, advantage: Tensor, target: Tensor
    ) -> dict[str, float]:
        policy, value = self.outputs(rows)
        ratio = (policy.log_prob(rows["action"]).sum(-1) - log_prob).exp()
        actor = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        huber = nn.HuberLoss(delta=DELTA)
        critic = torch.maximum(huber(value, target), huber(old + (value - old).clamp(-CLIP, CLIP), target))
        entropy = policy.entropy().sum(-1).mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        (ACTIONS * actor + critic - ENTROPY * entropy).backward()
        norms = [nn.utils.clip_grad_norm_(module.parameters(), NORM) for module in (self.actor, self.critic)]
        for optimizer in self.optimizers:
            optimizer.step()
        named = {
            "policy_loss": actor,
            "value_loss": critic,
            "entropy": entropy,
            "actor_norm": norms[0],
            "critic_norm": norms[1],
        }
        clipped = ((value - old).abs() > CLIP).float().mean()
        return {name: float(figure.detach()) for name, figure in named.items()} | {"value_clipped": float(clipped)}
