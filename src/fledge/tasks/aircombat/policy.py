"""DuelPolicy: one network for both sides. It encodes each missile, and pools own and incoming missiles separately.

Input of the network:

x = [ state | missiles 2 S x columns | spacetime, if observed | extra observations | mask ]        [B, inputs]
z = [ state | spacetime | extra observations | pooled own missiles | pooled incoming missiles ]    features
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
from fledge.agents.observations import Flattener
from fledge.agents.recurrent import describe_memory
from fledge.core.errors import ConfigError, FormatError
from fledge.core.specs import ActionSpec, TensorSpec, describe_spec, spec_from
from fledge.tasks.aircombat.observations import Missile, Spacetime, State

POOLS = ("max", "attention")
HOLD_BIAS = 2.0  # added to the logit of not firing in an untrained policy
FLYING, OVER_R_MAX = int(Missile.FLYING), int(Spacetime.OVER_R_MAX)


class MissilePool(nn.Module):
    """Encodes and pools missiles, [B, S, columns] to [B, width]; zeros if none is in flight."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.read = mlp(len(Missile), (width, width))
        self.weigh = nn.Linear(width, 1) if kind == "attention" else None

    def forward(self, tokens: Tensor) -> Tensor:
        flying = tokens[..., FLYING : FLYING + 1] > 0.5
        seen = self.read(tokens)
        if self.weigh is None:
            return torch.where(flying, seen, 0.0).amax(dim=1)  # after a ReLU, so that 0 is the least
        weights = self.weigh(seen).masked_fill(~flying, -1e9).softmax(dim=1)
        return (torch.where(flying, weights, 0.0) * seen).sum(dim=1)


class DuelPolicy(ActorCritic):
    """Policy and value network of the duel.

    Args:
        slots: Number of missiles that each side carries.
        spacetime: Read the observation `spacetime`.
        action: Action spec of the env, continuous or discrete.
        hidden: Widths of the layers that action and value share.
        tokens: Width of a missile's encoding.
        pool: Pooling over missiles: "max" or "attention".
        within_r_max: Mask shots from beyond R_max, the largest range at which a shot kills a target that holds its course.
        extra: Observations that a subclass of the env adds.
        gru_size: Width of the policy's memory; 0: none.
    """

    captures = True

    def __init__(
        self,
        slots: int,
        spacetime: bool,
        action: ActionSpec,
        hidden: Sequence[int] = (256, 128),
        tokens: int = 32,
        pool: str = "max",
        within_r_max: bool = False,
        extra: Mapping[str, TensorSpec] | None = None,
        gru_size: int = 0,
    ) -> None:
        super().__init__()
        if pool not in POOLS:
            raise ConfigError(f"policy.pool is {pool!r}, but must be one of {', '.join(POOLS)}.")
        self.slots, self.spacetime, self.acts = slots, spacetime, action
        self.within_r_max = within_r_max and spacetime
        self.extra = Flattener(extra, {}) if extra else None
        self.reads = {"missiles": TensorSpec((2 * slots, len(Missile)), torch.float32), **(extra or {})}
        self.observes = ("state", "missiles", *(("spacetime",) if spacetime else ()), *(extra or ()), "mask")
        self.outputs = ("action",) if isinstance(action, TensorSpec) else tuple(action)
        self.own, self.incoming = MissilePool(tokens, pool), MissilePool(tokens, pool)
        more = self.extra.inputs if self.extra else 0
        self.plain = len(State) + (len(Spacetime) if spacetime else 0) + more
        self.trunk = mlp(self.add_memory(self.plain + 2 * tokens, gru_size), hidden)
        self.head = make_head(hidden[-1], action)
        self.critic = value_layer(hidden[-1])
        self.widths = [len(State), 2 * slots * len(Missile), self.plain - len(State), self.head.masks]
        """Widths of the parts of x: state, missiles, spacetime with extra observations, mask."""
        self.inputs = sum(self.widths)
        self._hold_fire()

    def _hold_fire(self) -> None:
        """Make an untrained policy fire rarely: firing at every second decision would spend its missiles too early."""
        head = self.head.heads["fire"] if isinstance(self.head, MixedHead) else self.head
        assert isinstance(head, CategoricalHead)
        with torch.no_grad():
            head.layer.bias[0::2] += HOLD_BIAS

    def encode(self, obs: Obs) -> Tensor:
        names = [name for name in self.observes[:-1] if self.extra is None or name not in self.extra.keys]
        parts = [obs[name].flatten(1).float() for name in names]
        parts += [self.extra(obs)] if self.extra else []
        return torch.cat([*parts, obs["mask"].flatten(1).float()], dim=-1)

    def features(self, x: Tensor) -> Tensor:
        state, missiles, graph, _ = x.split(self.widths, dim=-1)
        own, incoming = missiles.unflatten(-1, (2 * self.slots, len(Missile))).chunk(2, dim=1)
        return torch.cat([state, graph, self.own(own), self.incoming(incoming)], dim=-1)

    def decide(self, x: Tensor, z: Tensor) -> tuple[Params, Tensor]:
        *_, graph, mask = x.split(self.widths, dim=-1)
        if self.within_r_max:
            within = graph[:, OVER_R_MAX, None, None] <= 1.0
            mask = torch.cat([mask[:, 0::2, None], mask[:, 1::2, None] * within], -1).flatten(1)
        h = self.trunk(z)
        return self.head(h, mask), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(seed)
        missiles = torch.randn(batch, 2 * self.slots, len(Missile), generator=g)
        missiles[..., FLYING] = (torch.rand(batch, 2 * self.slots, generator=g) < 0.3).float()
        seen = {
            "state": torch.randn(batch, len(State), generator=g),
            "missiles": missiles,
            "spacetime": torch.rand(batch, len(Spacetime), generator=g) * 2.0,
            "mask": torch.ones(batch, self.head.masks, dtype=torch.bool),
        }
        seen |= self.extra.examples(batch, seed) if self.extra else {}
        return {name: seen[name] for name in self.observes}


def describe_duel_policy(
    slots: int, spacetime: bool, action: ActionSpec, policy: Any, extra: Mapping[str, TensorSpec] | None = None
) -> dict[str, Any]:
    """Return a network's description as plain values, for a policy file."""
    return {
        "kind": "duel",
        "slots": slots,
        "spacetime": spacetime,
        "action": describe_spec(action),
        "hidden": list(policy.hidden),
        "tokens": policy.tokens,
        "pool": policy.pool,
        "within_r_max": policy.within_r_max,
        **describe_memory("ppo", policy.gru_size),
        **({"extra": describe_spec(extra)} if extra else {}),
    }


def build_duel_policy(description: Mapping[str, Any]) -> DuelPolicy:
    """Build a network from its description in a policy file."""
    try:
        slots, spacetime, tokens = int(description["slots"]), bool(description["spacetime"]), int(description["tokens"])
        hidden, pool = [int(width) for width in description["hidden"]], str(description["pool"])
        within, gru_size = bool(description.get("within_r_max", False)), int(description.get("gru_size", 0))
        action = spec_from(description["action"])
        extra: Any = spec_from(description["extra"]) if "extra" in description else None
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"The description of a duel policy is damaged: {description!r}. Use another policy file."
        ) from error
    return DuelPolicy(slots, spacetime, action, hidden, tokens, pool, within, extra, gru_size)
