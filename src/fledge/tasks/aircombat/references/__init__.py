"""Plain implementations of the duel: a second opinion on the simulator, and baselines of the benchmarks."""

from fledge.tasks.aircombat.references.contest import DuelContest
from fledge.tasks.aircombat.references.numpy_duel import NumpyDuel
from fledge.tasks.aircombat.references.torch_duel import TorchDuel

__all__ = ["CONTEST", "NumpyDuel", "TorchDuel"]

CONTEST = DuelContest()
