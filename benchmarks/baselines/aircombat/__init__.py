"""Plain implementations of the duel: a second opinion on the simulator, and baselines of the benchmarks."""

from benchmarks.baselines.aircombat.benchmark import DuelContest
from benchmarks.baselines.aircombat.numpy_duel import NumpyDuel
from benchmarks.baselines.aircombat.torch_duel import TorchDuel

__all__ = ["CONTEST", "NumpyDuel", "TorchDuel"]

CONTEST = DuelContest()
