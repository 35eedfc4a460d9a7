"""Plain implementations of this world and of NavRL's network: baselines of the benchmarks, and a second opinion."""

from benchmarks.baselines.navigation.benchmark import NavigationContest
from benchmarks.baselines.navigation.numpy_sim import NumpySim
from benchmarks.baselines.navigation.torch_sim import TorchSim
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.navigation.networks.navrl import NavRLNetwork, NavRLPolicy
from fledge.tasks.navigation.networks.navrl_actor_critic import NavRLActorCritic

__all__ = [
    "CONTEST",
    "FeaturePolicy",
    "NavRLActorCritic",
    "NavRLNetwork",
    "NavRLPolicy",
    "NumpySim",
    "TorchSim",
]

CONTEST = NavigationContest()
