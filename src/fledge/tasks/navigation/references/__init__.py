"""Plain implementations of this world and of NavRL's network: baselines of the benchmarks, and a second opinion."""

from fledge.tasks.navigation.config import NavigationConfig, RewardConfig, RewardKind, Starts
from fledge.tasks.navigation.feature_policy import FeaturePolicy
from fledge.tasks.navigation.navrl import NavRLNetwork, NavRLPolicy
from fledge.tasks.navigation.navrl_actor_critic import NavRLActorCritic
from fledge.tasks.navigation.references.agreement import Baselines, check_agreement, snapshot_of
from fledge.tasks.navigation.references.numpy_sim import NumpySim
from fledge.tasks.navigation.references.torch_sim import TorchSim

__all__ = [
    "Baselines",
    "FeaturePolicy",
    "NavRLActorCritic",
    "NavRLNetwork",
    "NavRLPolicy",
    "NumpySim",
    "TorchSim",
    "bench_config",
    "check_agreement",
    "snapshot_of",
]


def bench_config(num_envs: int) -> NavigationConfig:
    """NavRL's task, with drones spread through the forest from the start: what `bench sim` times."""
    return NavigationConfig(
        num_envs=num_envs,
        decimation=1,
        success_ends_episode=False,
        starts=Starts.mixed,
        inside_share=0.8,
        reward=RewardConfig(kind=RewardKind.navrl, height=8.0),
    )
