"""NavRL's network as an actor-critic to train: the same function as `NavRLNetwork`, with the fast LiDAR encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.base import Obs
from fledge.agents.distributions import BetaHead, Params
from fledge.tasks.navigation.networks.feature_policy import READ, VELOCITY, example_flight
from fledge.tasks.navigation.networks.lidar_encoder import AZIMUTHS, ELEVATIONS, LidarEncoder
from fledge.tasks.navigation.networks.navrl import NavRLNetwork, NavRLPolicy, mlp_block
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, STATE

WIDTHS = [AZIMUTHS * ELEVATIONS, DYNAMIC_OBSTACLE.size(), STATE.size()]  # of the inputs: lidar, obstacles, state


class NavRLActorCritic(ActorCritic):
    """Reads [lidar 144 | obstacles 50 | state 8]; orthogonal heads with gain 0.01, as NavRL starts them."""

    inputs = sum(WIDTHS)
    observes = READ

    def __init__(self) -> None:
        super().__init__()
        self.lidar = LidarEncoder()
        self.obstacles = nn.Sequential(*mlp_block(DYNAMIC_OBSTACLE.size(), 128), *mlp_block(128, 64))
        self.trunk = nn.Sequential(*mlp_block(200, 256), *mlp_block(256, 256))
        self.head = BetaHead(256, VELOCITY)
        self.critic = nn.Linear(256, 1)
        for layer in (self.head.alpha, self.head.beta, self.critic):
            nn.init.orthogonal_(layer.weight, gain=0.01)
            nn.init.zeros_(layer.bias)

    def encode(self, obs: Obs) -> Tensor:
        return torch.cat([obs["lidar"].flatten(1), obs["dynamic_obstacle"].flatten(1), obs["state"]], dim=-1)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        lidar, obstacles, state = x.split(WIDTHS, dim=-1)
        h = self.trunk(torch.cat([self.lidar(lidar), self.obstacles(obstacles), state], dim=-1))
        return self.head(h), self.critic(h).squeeze(-1)

    @classmethod
    def from_navrl(cls, policy: NavRLPolicy) -> NavRLActorCritic:
        """The same policy, ready to be trained further."""
        own, net = cls(), policy.network
        own.copy_from(net)
        own.value_norm.load_state_dict(policy.value_norm.state_dict())
        return own

    def published(self) -> NavRLPolicy:
        """The same policy in NavRL's published form, with Conv2d."""
        policy = NavRLPolicy()
        for ours, theirs in self._pairs(policy.network):
            theirs.load_state_dict(ours.state_dict())
        policy.value_norm.load_state_dict(self.value_norm.state_dict())
        return policy.eval()

    def exported(self) -> nn.Module:
        """The fast LiDAR encoder is for training; other programs get the Conv2d it equals."""
        return self.published().exported()

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return example_flight(batch, (36, 4), 4.0, seed)

    def copy_from(self, net: NavRLNetwork) -> None:
        """Take over all weights of the published form."""
        for ours, theirs in self._pairs(net):
            ours.load_state_dict(theirs.state_dict())

    def _pairs(self, net: NavRLNetwork) -> list[tuple[nn.Module, nn.Module]]:
        """Our modules beside the published ones with the same parameters."""
        assert isinstance(self.head, BetaHead)
        return [
            *zip(self.lidar.convs, (net.lidar[0], net.lidar[2], net.lidar[4]), strict=True),
            (self.lidar.linear, net.lidar[7]),
            (self.lidar.norm, net.lidar[8]),
            (self.obstacles, net.obstacles),
            (self.trunk, net.trunk),
            (self.head.alpha, net.alpha),
            (self.head.beta, net.beta),
            (self.critic, net.critic),
        ]
