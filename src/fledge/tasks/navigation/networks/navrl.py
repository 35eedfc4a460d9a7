"""NavRL's network, exactly, and its released checkpoint (Xu et al., "NavRL", RA-L 2025; MIT licence).

Inputs are the navigation observations. Three details matter for success:
the trunk reads [lidar 128 | obstacles 64 | state 8], because TorchRL sorts keys; the Beta parameters are
1 + softplus(x) + 1e-6; and the critic's output is normalised (value = output * std + mean).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fledge.agents.actor_critic import ActorCritic, ValueNorm
from fledge.agents.base import BaseAgent, Exported, Obs
from fledge.agents.distributions import BetaHead, Params
from fledge.agents.linear import Linear
from fledge.core.errors import FledgeError, FormatError
from fledge.storage import load_checkpoint
from fledge.tasks.navigation.networks.feature_policy import READ, VELOCITY, example_flight
from fledge.tasks.navigation.networks.lidar_encoder import AZIMUTHS, ELEVATIONS, LidarEncoder
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, STATE

NAVRL_PREFIXES = {  # our module -> prefix in NavRL's state dict
    "lidar": "feature_extractor.module.0.module",
    "obstacles": "feature_extractor.module.1.module.1",
    "trunk": "feature_extractor.module.3.module",
    "alpha": "actor.module.0.module.alpha_layer",
    "beta": "actor.module.0.module.beta_layer",
    "critic": "critic.module",
}
ABOUT = (
    "NavRL (Xu et al., RA-L 2025, github.com/Zhefan-Xu/NavRL): a published LiDAR navigation policy, trained in Isaac Sim; it "
    "flies here with the network and weights that its authors released."
)
WIDTHS = [AZIMUTHS * ELEVATIONS, DYNAMIC_OBSTACLE.size(), STATE.size()]  # of the inputs: lidar, obstacles, state


def navrl_key(ours: str) -> str:
    """Return NavRL's name for an entry of our state dict."""
    module, entry = ours.split(".", 1)
    return f"{NAVRL_PREFIXES[module]}.{entry}"


def mlp_block(inputs: int, outputs: int, linear: type[nn.Linear] = nn.Linear) -> list[nn.Module]:
    return [linear(inputs, outputs), nn.LeakyReLU(), nn.LayerNorm(outputs)]


class NavRLNetwork(nn.Module):
    """NavRL's network as published, with a Conv2d LiDAR encoder. Outputs Beta parameters and a normalised value."""

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
        self.obstacles = nn.Sequential(*mlp_block(DYNAMIC_OBSTACLE.size(), 128), *mlp_block(128, 64))
        self.trunk = nn.Sequential(*mlp_block(200, 256), *mlp_block(256, 256))
        self.alpha = nn.Linear(256, 3)
        self.beta = nn.Linear(256, 3)
        self.critic = nn.Linear(256, 1)

    def features(self, obs: Obs) -> Tensor:
        """Return the trunk's output, [B, 256]."""
        lidar = self.lidar(obs["lidar"])
        obstacles = self.obstacles(obs["dynamic_obstacle"].flatten(1))
        return self.trunk(torch.cat([lidar, obstacles, obs["state"]], dim=-1))

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor, Tensor]:
        """Return alpha [B, 3], beta [B, 3] and the normalised value [B]."""
        x = self.features(obs)
        alpha = 1.0 + F.softplus(self.alpha(x)) + 1e-6
        beta = 1.0 + F.softplus(self.beta(x)) + 1e-6
        return alpha, beta, self.critic(x).squeeze(-1)


class NavRLPolicy(BaseAgent):
    """NavRL's actor and critic: actions in [0, 1]³ and values in reward units."""

    observes = READ
    about = ABOUT

    def __init__(self) -> None:
        super().__init__()
        self.network = NavRLNetwork()
        self.value_norm = ValueNorm()

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor, Tensor]:
        """Return alpha, beta and the value in reward units."""
        alpha, beta, value = self.network(obs)
        return alpha, beta, self.value_norm.denormalize(value)

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return the actions, [B, 3]: the mean of the Beta distribution if `deterministic`, else a sample."""
        if deterministic:
            return self.respond(obs)[0]
        alpha, beta, _ = self.network(obs)
        return torch.distributions.Beta(alpha, beta).sample()

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        """Return the outputs of an exported policy, as a tuple of one tensor: the mean actions, [B, 3]."""
        alpha, beta, _ = self.network(obs)
        return (alpha / (alpha + beta),)

    def exported(self) -> nn.Module:
        return Exported(self)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return example_flight(batch, (36, 4), 4.0, seed)


class NavRLActorCritic(ActorCritic):
    """NavRL's network for training, with the fast LiDAR encoder; heads start orthogonal with gain 0.01, as in NavRL.

    Reads [lidar 144 | obstacles 50 | state 8].
    """

    inputs = sum(WIDTHS)
    observes, captures = READ, True

    def __init__(self) -> None:
        super().__init__()
        self.lidar = LidarEncoder()
        self.obstacles = nn.Sequential(*mlp_block(DYNAMIC_OBSTACLE.size(), 128, Linear), *mlp_block(128, 64, Linear))
        self.trunk = nn.Sequential(*mlp_block(200, 256, Linear), *mlp_block(256, 256, Linear))
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
        """Return a trainable network that computes the same function as NavRL's policy."""
        own = cls()
        for ours, theirs in own._pairs(policy.network):
            ours.load_state_dict(theirs.state_dict())
        own.value_norm.load_state_dict(policy.value_norm.state_dict())
        return own

    def published(self) -> NavRLPolicy:
        """Return the same policy as a `NavRLPolicy`, NavRL's published form with a Conv2d LiDAR encoder."""
        policy = NavRLPolicy()
        for ours, theirs in self._pairs(policy.network):
            theirs.load_state_dict(ours.state_dict())
        policy.value_norm.load_state_dict(self.value_norm.state_dict())
        return policy.eval()

    def exported(self) -> nn.Module:
        """Return the module to export: with Conv2d, which computes the same as the fast LiDAR encoder."""
        return self.published().exported()

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return example_flight(batch, (36, 4), 4.0, seed)

    def _pairs(self, net: NavRLNetwork) -> list[tuple[nn.Module, nn.Module]]:
        """Return pairs of modules with the same parameters: a module of this network and its counterpart in `net`."""
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


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a `.pt` file, or of a file that `fledge convert` made of one; nothing in it is executed."""
    if not path.is_file():
        raise FormatError(f"There is no checkpoint at {path}: give the path of NavRL's released .pt file.")
    try:
        is_ours = path.suffix in (".fledge", ".lz4", ".safetensors")
        saved = load_checkpoint(path) if is_ours else torch.load(path, map_location="cpu", weights_only=True)
    except FledgeError:
        raise
    except (RuntimeError, EOFError, zipfile.BadZipFile, OSError, ValueError, KeyError, AttributeError) as error:
        reason = (str(error).splitlines() or ["it is empty"])[0]
        raise FormatError(f"{path} is not a PyTorch checkpoint or is damaged ({reason}): use another file.") from error
    except Exception as error:  # torch raises pickle.UnpicklingError for anything that is not plain tensors
        raise FormatError(
            f"{path} cannot be loaded safely: only plain tensors are allowed in it. Give NavRL's released .pt file."
        ) from error
    if not isinstance(saved, Mapping) or not all(isinstance(v, Tensor) for v in saved.values()):
        raise FormatError(
            f"{path} holds a {type(saved).__name__}, but must be a dict of tensors: give NavRL's released .pt file."
        )
    return saved


def load_navrl_checkpoint(path: str | Path) -> NavRLPolicy:
    """Return NavRL's policy from its `.pt` file, or from a file that `fledge convert` made of it.

    Raises:
        FormatError: if the file is missing, is not a state dict, or is not NavRL's network.
    """
    return navrl_policy(read_state_dict(Path(path)), str(path))


def navrl_policy(saved: Mapping[str, Tensor], source: str) -> NavRLPolicy:
    """Return NavRL's policy with the weights of `saved`, NavRL's state dict; `source` names its file in error messages."""
    policy = NavRLPolicy()
    own = policy.network.state_dict()
    for ours, tensor in own.items():
        key = navrl_key(ours)
        if key not in saved:
            raise FormatError(f"{source} is not NavRL's policy: it has no entry {key}. Use NavRL's checkpoint.")
        if saved[key].shape != tensor.shape:
            raise FormatError(
                f"{source} does not fit NavRL's network: {key} has shape {tuple(saved[key].shape)}, but must have "
                f"{tuple(tensor.shape)}. Use a policy that was trained with NavRL's LiDAR and obstacle count."
            )
    policy.network.load_state_dict({ours: saved[navrl_key(ours)] for ours in own})
    norm = policy.value_norm
    scales = {"running_mean": norm.mean_avg, "running_mean_sq": norm.square_avg, "debiasing_term": norm.weight}
    for name, buffer in scales.items():
        key = f"value_norm.{name}"
        if key not in saved or saved[key].numel() != 1:
            raise FormatError(
                f"{source} is not NavRL's policy: its entry {key} is missing or is not one number. Use NavRL's checkpoint."
            )
        buffer.copy_(saved[key].reshape(buffer.shape))
    return policy.eval()
