"""SAC, TD3 and DQN in one plain file, as oracles: separate networks, ordinary Adam, torch's own distributions.

They share the networks' definitions (actor, grid network) and features with Fledge; twin critics are rebuilt as two
ordinary MLPs. Nothing of the learners, flat buffers or replay is used.
"""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

SEEN = ("state", "lidar", "dynamic_obstacle")


def separate(twin) -> list[nn.Sequential]:
    """The two critics of a twin as MLPs of their own."""
    found = []
    for k in range(2):
        layers: list[nn.Module] = []
        for weight, bias in zip(twin.weights, twin.biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[2])
            linear.weight.data.copy_(weight[k].t())
            linear.bias.data.copy_(bias[k, 0])
            layers += [linear, nn.ReLU()]
        found.append(nn.Sequential(*layers[:-1]))
    return found


def value_of(critic: nn.Module, x: Tensor, action: Tensor) -> Tensor:
    return critic(torch.cat([x, action], -1))[:, 0]


def clipped_step(optimizer, loss: Tensor, parameters, limit: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(parameters), limit)
    optimizer.step()


def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    for a, b in zip(target.parameters(), source.parameters(), strict=True):
        a.data.copy_((1 - tau) * a.data + tau * b.data)


def returns(batch, gamma: float, following: Tensor) -> Tensor:
    wanted = torch.zeros(len(following))
    for b in range(len(following)):
        discount = float(batch["discount"][b]) if "discount" in batch else gamma
        future = 0.0 if bool(batch["terminated"][b]) else discount * float(following[b])
        wanted[b] = float(batch["reward"][b]) + future
    return wanted


class PlainSAC:
    def __init__(self, actor, twin, cfg):
        self.cfg, self.actor, self.critics = cfg, copy.deepcopy(actor), separate(twin)
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.tensor(cfg.alpha).log().requires_grad_()
        self.parameters = list(itertools.chain(*(c.parameters() for c in self.critics)))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.critic_opt = torch.optim.Adam(self.parameters, lr=cfg.lr)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=cfg.alpha_lr)

    def draw(self, x):
        mean, log_std = self.actor(x)
        noise = torch.randn(len(x), self.actor.actions)
        spread = Normal(mean, log_std.exp())
        squashed = TransformedDistribution(spread, TanhTransform(cache_size=1))
        action = squashed.transforms[0](mean + log_std.exp() * noise)
        return action, squashed.log_prob(action).sum(-1)

    def step(self, batch):
        cfg, alpha = self.cfg, float(self.log_alpha.detach().exp())
        x = self.actor.encode({k: batch[k] for k in SEEN})
        after = self.actor.encode({k: batch[f"next_{k}"] for k in SEEN})
        with torch.no_grad():
            action, density = self.draw(after)
            least = torch.min(*(value_of(t, after, action) for t in self.targets))
            wanted = returns(batch, cfg.gamma, least - alpha * density)
        values = [value_of(c, x, batch["action"] * 2 - 1) for c in self.critics]
        critic_loss = sum(((v - wanted) ** 2).mean() for v in values)
        clipped_step(self.critic_opt, critic_loss, self.parameters, cfg.max_grad_norm)
        own, density = self.draw(x)
        actor_loss = (alpha * density - torch.min(*(value_of(c, x, own) for c in self.critics))).mean()
        clipped_step(self.actor_opt, actor_loss, self.actor.parameters(), cfg.max_grad_norm)
        entropy = -density.detach().mean()
        self.alpha_opt.zero_grad()
        aim = -3.0 if cfg.target_entropy is None else cfg.target_entropy  # minus the number of actions
        (self.log_alpha * (entropy - aim)).backward()
        self.alpha_opt.step()
        for target, critic in zip(self.targets, self.critics, strict=True):
            follow(target, critic, cfg.tau)
        return [critic_loss, actor_loss, torch.stack(values).mean(), entropy, torch.tensor(alpha)]


class PlainTD3:
    def __init__(self, actor, twin, cfg):
        self.cfg, self.actor, self.critics = cfg, copy.deepcopy(actor), separate(twin)
        self.target_actor, self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.parameters = list(itertools.chain(*(c.parameters() for c in self.critics)))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.critic_opt = torch.optim.Adam(self.parameters, lr=cfg.lr)
        self.count, self.actor_loss = 0, torch.tensor(0.0)

    def step(self, batch):
        cfg = self.cfg
        x = self.actor.encode({k: batch[k] for k in SEEN})
        after = self.actor.encode({k: batch[f"next_{k}"] for k in SEEN})
        with torch.no_grad():
            best = torch.tanh(self.target_actor(after)[0])
            noise = cfg.target_noise * torch.randn_like(best)
            noise = torch.clip(noise, -cfg.target_noise_clip, cfg.target_noise_clip)
            action = torch.clip(best + noise, -1, 1)
            least = torch.min(*(value_of(t, after, action) for t in self.targets))
            wanted = returns(batch, cfg.gamma, least)
        values = [value_of(c, x, batch["action"] * 2 - 1) for c in self.critics]
        critic_loss = sum(((v - wanted) ** 2).mean() for v in values)
        clipped_step(self.critic_opt, critic_loss, self.parameters, cfg.max_grad_norm)
        self.count += 1
        if self.count % cfg.delay == 0:
            self.actor_loss = -value_of(self.critics[0], x, torch.tanh(self.actor(x)[0])).mean()
            clipped_step(self.actor_opt, self.actor_loss, self.actor.parameters(), cfg.max_grad_norm)
            for target, critic in zip(self.targets, self.critics, strict=True):
                follow(target, critic, cfg.tau)
            follow(self.target_actor, self.actor, cfg.tau)
        return [critic_loss, self.actor_loss, torch.stack(values).mean()]


class PlainDQN:
    def __init__(self, network, cfg):
        self.cfg, self.online = cfg, copy.deepcopy(network)
        self.target = copy.deepcopy(self.online)
        self.opt = torch.optim.Adam(self.online.parameters(), lr=cfg.lr)

    def step(self, batch):
        cfg, loss, chosen = self.cfg, torch.tensor(0.0), []
        count = len(batch["reward"])
        with torch.no_grad():
            after = {k: batch[f"next_{k}"] for k in ("grid_map", "state")}
            best, table = self.online(after).argmax(1), self.target(after)
            wanted = returns(batch, cfg.gamma, torch.stack([table[b, best[b]] for b in range(count)]))
        values = self.online({k: batch[k] for k in ("grid_map", "state")})
        for b in range(count):
            q = values[b, batch["action"][b]]
            error = (q - wanted[b]).abs()
            loss = loss + (0.5 * error**2 if error < 1 else error - 0.5) / count
            chosen.append(q)
        clipped_step(self.opt, loss, self.online.parameters(), cfg.max_grad_norm)
        follow(self.target, self.online, cfg.tau)
        return [loss, torch.stack(chosen).mean()]
