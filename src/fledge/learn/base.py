"""Learner: the interface of a learning algorithm. PPO, SAC, TD3 and DQN implement it, and a class of your own can too:

    class A2C(Learner):                        fledge train navigation algo=a2c.py:A2C algo_config.lr=1e-3
        config = A2CConfig                     dataclass of its settings, `algo_config.*` (fields made by `setting`)
        policy_form = "ppo"                    the network to train: the one that the task builds for ppo, sac, td3 or dqn

        def __init__(self, policy, cfg, ranks=1): ...
        def update(self, rollout, progress=0.0): ...       learn from a rollout [T, N]; return metrics by name

On-policy learners derive from this class. They get rollouts of an `ActorCritic` (`collect/base.py` lists the entries), and
their config has `rollout_steps`, the decisions per env and iteration. Off-policy learners derive from `OffPolicy`
(`learn/off_policy.py`), which has the replay buffer and target networks; their config has `gamma`.

Ranks. Every rank updates from its own rollout, and all must hold the same weights afterwards: average gradients before a
step (`FlatParameters.average_grads`). The training loop saves the policy's weights, torch's random state, `state_dict()` from
rank 0 and `rank_state()` from every rank; a learner that keeps nothing else resumes bit for bit.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.core.errors import NumericsError


class Learner(ABC):
    """Base class of on-policy learners, and of `OffPolicy`."""

    config: ClassVar[type]
    """Dataclass of the settings."""
    policy_form: ClassVar[str] = "ppo"
    """The algorithm ("ppo", "sac", "td3" or "dqn") whose kind of network this learner trains."""
    corrects_stale: ClassVar[bool] = False
    """Whether it can learn from rollouts of older weights (collect.mode=pipelined, actors.listen), which passes it
    stale_policy=True."""
    supports_recurrent: ClassVar[bool] = False
    """Whether it can train recurrent policies (policy.gru_size), which need `rollout["hidden"]` and `policy.unroll`."""
    optimizers: dict[str, torch.optim.Optimizer]

    @abstractmethod
    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Learn from one rollout; return mean losses and diagnostics.

        Schedules follow `progress`, the share of training done, 0 to 1. On NaN, raise NumericsError. If the error's
        `cause` holds the data of the failed update, training saves it to a file, from which `repeat` can reproduce it.
        """

    def train(self, data: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Alias of `update`."""
        return self.update(data, progress)

    def schedule(self, progress: float) -> None:
        """Set learning rates and other scheduled values for the share of training done, 0 to 1."""

    def begin(self, progress: float = 0.0) -> None:
        """Prepare to learn with the policy's current weights; called again after `init_from` replaced them."""
        self.schedule(progress)

    def repeat(self, cause: Mapping[str, Any]) -> dict[str, float]:
        """Repeat a failed update from the `cause` of its NumericsError, and return the update's metrics."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all ranks share, without the policy's weights; tensors need not be copies."""
        return {"optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`, to continue exactly from there."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(copy.deepcopy(state["optimizers"][name]))  # torch would use its tensors

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of everything that the next update depends on, except its data."""
        return {**self.state_dict(), **random_state(self.placement())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a `snapshot`."""
        self.load_state_dict(state)
        load_random_state(state, self.placement())

    def placement(self) -> torch.device:
        """Return the device of the weights; the CPU for a learner without `optimizers`."""
        groups = [group["params"] for each in getattr(self, "optimizers", {}).values() for group in each.param_groups]
        return torch.device(groups[0][0].device if groups else "cpu")

    def rank_state(self) -> dict[str, Any]:
        """Return the state that only this rank has, such as its replay buffer."""
        return {}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Load a `rank_state`, to continue exactly from there."""

    def close(self) -> None:
        """Release threads and memory."""


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's random generators that a process on `device` draws from."""
    state = {"rng": torch.get_rng_state()}
    return {**state, "cuda_rng": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def load_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the entries of `random_state`; without a GPU, or from a state that was saved without one, only the CPU's."""
    torch.set_rng_state(state["rng"].cpu())
    if device.type == "cuda" and "cuda_rng" in state:
        torch.cuda.set_rng_state(state["cuda_rng"].cpu(), device)


def finite_report(names: Sequence[str], values: Tensor) -> dict[str, float]:
    """Return metrics by name, with one transfer from the device; raise NumericsError if a value is not finite."""
    report = dict(zip(names, values.tolist(), strict=True))
    if bad := [name for name, value in report.items() if not abs(value) < float("inf")]:
        raise NumericsError(
            f"NaN or infinity in {', '.join(bad)} while learning: lower the learning rate, or look for very large rewards "
            "and observations."
        )
    return report
