"""Plain implementations of this world and of NavRL's network: baselines of the benchmarks, and a second opinion."""

from fledge.tasks.navigation.feature_policy import FeaturePolicy
from fledge.tasks.navigation.navrl import NavRLNetwork, NavRLPolicy
from fledge.tasks.navigation.navrl_actor_critic import NavRLActorCritic
from fledge.tasks.navigation.references.contest import NavigationContest
from fledge.tasks.navigation.references.numpy_sim import NumpySim
from fledge.tasks.navigation.references.torch_sim import TorchSim

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
