"""Memory of recurrent policies: a GRU between a network's features and its trunk.

    z = policy.features(x)               [B, D]   what the network makes of its input before the trunk
    h = gru(z, h)                        [B, H]   the hidden state: the policy's memory of the episode
    policy.decide(x, [z | h])                     trunk and heads read both, so that the present needs no memory

Contract (N envs, T decisions, H = `policy.gru_size`)
    hidden [N, H] float32     State with which a decision begins: zeros at the first decision of an episode. Whoever steps an
                              env keeps it: a collector for each of its envs (halves: one state for each half), an agent in
                              `act`, an OpponentWrapper for its opponents.
    rollout["hidden"]         [T, N, H], the state with which each decision began. Row 0 continues the rollout before, so it
                              comes from earlier weights; any row can begin a sequence.
    begins [T, N] bool        terminated | truncated of the row before: the state is cleared there (`GRU.forward`).
    Truncation                V(final_obs) has the state after the episode's last decision, before it is cleared.
    End of a rollout          V(next obs) has the state after the last decision, cleared where the episode ended.
    PPO                       Minibatches are sequences of `ppo.sequence_length` decisions of one env; gradients stop at the
                              beginning of a sequence (truncated backpropagation through time).
    Exported files            have the input `state_in` [B, H] and the output `state_out` [B, H].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fledge.core.errors import ConfigError
from fledge.core.settings import setting


@dataclass
class RecurrentConfig:
    """Settings that all configs of policies share."""

    gru_size: int = setting(0, at_least=0, at_most=4096, resume="weights")
    """Width of the policy's memory, a GRU between its features and its hidden layers; 0: no memory (ppo only)."""


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) with torch's formulas and parameter shapes, and states that can be cleared.

    Args:
        inputs: Width of the features.
        size: Width of the hidden state.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight_ih, self.weight_hh = (nn.Parameter(torch.empty(3 * size, width)) for width in (inputs, size))
        self.bias_ih, self.bias_hh = (nn.Parameter(torch.zeros(3 * size)) for _ in range(2))
        for weight in (self.weight_ih, self.weight_hh):
            for gate in weight.detach().chunk(3):
                nn.init.orthogonal_(gate)

    def forward(self, z: Tensor, hidden: Tensor, begins: Tensor) -> Tensor:
        """Return the state after each decision, [T, B, H].

        Args:
            z: [T, B, D] features.
            hidden: [B, H] state with which the first decision begins; cleared already.
            begins: [T, B] bool, where an episode begins; row 0 is not read.
        """
        gates, keep = F.linear(z, self.weight_ih, self.bias_ih), (~begins).to(z.dtype).unsqueeze(-1)
        states: list[Tensor] = []
        for t in range(len(z)):
            hidden = self._update(gates[t], hidden * keep[t] if t else hidden)
            states.append(hidden)
        return torch.stack(states)

    def step(self, z: Tensor, hidden: Tensor) -> Tensor:
        """Return the state [B, H] after a decision with features z [B, D]."""
        return self._update(F.linear(z, self.weight_ih, self.bias_ih), hidden)

    def _update(self, gates: Tensor, hidden: Tensor) -> Tensor:
        """Return the next state; `gates` [B, 3 H] is the features' part of reset gate, update gate and candidate."""
        own = F.linear(hidden, self.weight_hh, self.bias_hh)
        (reset, update, new), (own_reset, own_update, own_new) = gates.chunk(3, dim=-1), own.chunk(3, dim=-1)
        update = torch.sigmoid(update + own_update)
        candidate = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
        return candidate + update * (hidden - candidate)


def describe_memory(algo: str, size: int) -> dict[str, int]:
    """Return the entry `gru_size` of a network's description; {} without memory, as in files of earlier versions.

    Raises:
        ConfigError: The algorithm trains no recurrent policies.
    """
    if size and algo != "ppo":
        raise ConfigError(
            f"policy.gru_size={size} works only with algo=ppo, but algo={algo} learns from single transitions, which hold no "
            "memory: set policy.gru_size=0, or use algo=ppo."
        )
    return {"gru_size": size} if size else {}
