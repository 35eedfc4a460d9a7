"""DuelPolicy: one network for both sides. Missiles are tokens, read by one small network and pooled, own and incoming apart.

x = [ state 15 | missiles 2 S x 10 | spacetime 10, if observed | mask ]        [B, inputs]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.base import Obs
from fledge.agents.distributions import CategoricalHead, MixedHead, Params, make_head
from fledge.agents.mlp import mlp, value_layer
from fledge.core.errors import ConfigError, FormatError
from fledge.core.specs import ActionSpec, TensorSpec, describe_spec, spec_from
from fledge.tasks.aircombat.physics.structs import SPACETIME, STATE, TOKEN

POOLS = ("max", "attention")
RARELY = 2.0  # logit by which an untrained policy would rather hold its fire


class MissilePool(nn.Module):
    """Tokens [B, S, 10] to [B, width]: what the missiles of one kind mean together; zeros if there is none."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.read = mlp(TOKEN, (width, width))
        self.weigh = nn.Linear(width, 1) if kind == "attention" else None

    def forward(self, tokens: Tensor) -> Tensor:
        flying = tokens[..., :1] > 0.5
        seen = self.read(tokens)
        if self.weigh is None:
            return torch.where(flying, seen, 0.0).amax(dim=1)  # after a ReLU, so that 0 is the least
        weights = self.weigh(seen).masked_fill(~flying, -1e9).softmax(dim=1)
        return (torch.where(flying, weights, 0.0) * seen).sum(dim=1)


class DuelPolicy(ActorCritic):
    """Flies a duel.

    Args:
        slots: Missiles of each side.
        spacetime: Whether the space-time graph is read.
        action: As the env takes it: continuous or discrete.
        hidden: Widths of the layers that action and value share.
        tokens: Width of what is read off a missile.
        pool: How missiles are taken together: "max" or "attention".
        within_r_max: Hold fire where the graph says that a target outlasts the missile by keeping its course.
    """

    def __init__(
        self,
        slots: int,
        spacetime: bool,
        action: ActionSpec,
        hidden: Sequence[int] = (256, 128),
        tokens: int = 32,
        pool: str = "max",
        within_r_max: bool = False,
    ) -> None:
        super().__init__()
        if pool not in POOLS:
            raise ConfigError(f"policy.pool is {pool!r}, but must be one of {', '.join(POOLS)}.")
        self.slots, self.spacetime, self.acts = slots, spacetime, action
        self.within_r_max = within_r_max and spacetime
        self.reads = {"missiles": TensorSpec((2 * slots, TOKEN), torch.float32)}
        self.observes = ("state", "missiles", *(("spacetime",) if spacetime else ()), "mask")
        self.outputs = ("action",) if isinstance(action, TensorSpec) else tuple(action)
        self.own, self.incoming = MissilePool(tokens, pool), MissilePool(tokens, pool)
        self.plain = STATE + (SPACETIME if spacetime else 0)
        self.trunk = mlp(self.plain + 2 * tokens, hidden)
        self.head = make_head(hidden[-1], action)
        self.critic = value_layer(hidden[-1])
        self.widths = [STATE, 2 * slots * TOKEN, self.plain - STATE, self.head.masks]
        self.inputs = sum(self.widths)
        self._hold_fire()

    def _hold_fire(self) -> None:
        """Who fires at every second decision has no missile left when it counts."""
        head = self.head.heads["fire"] if isinstance(self.head, MixedHead) else self.head
        assert isinstance(head, CategoricalHead)
        with torch.no_grad():
            head.layer.bias[0::2] += RARELY

    def encode(self, obs: Obs) -> Tensor:
        return torch.cat([obs[name].flatten(1).float() for name in self.observes], dim=-1)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        state, missiles, graph, mask = x.split(self.widths, dim=-1)
        if self.within_r_max:
            mask = torch.cat([mask[:, 0::2, None], mask[:, 1::2, None] * (graph[:, :1, None] <= 1.0)], -1).flatten(1)
        own, incoming = missiles.unflatten(-1, (2 * self.slots, TOKEN)).chunk(2, dim=1)
        h = self.trunk(torch.cat([state, graph, self.own(own), self.incoming(incoming)], dim=-1))
        return self.head(h, mask), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(seed)
        missiles = torch.randn(batch, 2 * self.slots, TOKEN, generator=g)
        missiles[..., 0] = (torch.rand(batch, 2 * self.slots, generator=g) < 0.3).float()
        seen = {
            "state": torch.randn(batch, STATE, generator=g),
            "missiles": missiles,
            "spacetime": torch.rand(batch, SPACETIME, generator=g) * 2.0,
            "mask": torch.ones(batch, self.head.masks, dtype=torch.bool),
        }
        return {name: seen[name] for name in self.observes}


def describe_duel_policy(slots: int, spacetime: bool, action: ActionSpec, policy: Any) -> dict[str, Any]:
    """A policy file's description of the network."""
    return {
        "kind": "duel",
        "slots": slots,
        "spacetime": spacetime,
        "action": describe_spec(action),
        "hidden": list(policy.hidden),
        "tokens": policy.tokens,
        "pool": policy.pool,
        "within_r_max": policy.within_r_max,
    }


def build_duel_policy(description: Mapping[str, Any]) -> DuelPolicy:
    """The network of a description."""
    try:
        slots, spacetime, tokens = int(description["slots"]), bool(description["spacetime"]), int(description["tokens"])
        hidden, pool = [int(width) for width in description["hidden"]], str(description["pool"])
        within = bool(description.get("within_r_max", False))
        action = spec_from(description["action"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"This is not a policy's description: {description!r}.") from error
    return DuelPolicy(slots, spacetime, action, hidden, tokens, pool, within)
