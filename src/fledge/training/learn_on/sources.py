"""Sources of new experience: simulated worlds, archives of rollouts, and rollouts that other programs send.

A source yields rollouts [T, N] (`collect.base` lists the entries). Those from outside are checked against the policy first:
observations or inputs, shapes, finite numbers, range of actions.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.distributions import BetaHead, CategoricalHead, MixedHead
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, FormatError
from fledge.core.paths import path_hint
from fledge.envs.base import TensorEnv
from fledge.storage import RolloutStorage
from fledge.storage.exchange import check_token
from fledge.storage.stream import pack_state, unpack_rollout
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import load_policy

ENTRIES = ("raw_action", "log_prob", "value", "next_value", "reward", "terminated", "truncated")
LOGS = (".flog", ".ulg", ".bag", ".db3", ".mcap")
MOST_WAITING = 4  # rollouts that were received but not yet learned from; senders wait
POLL_S = 0.05
HELD_OUT_EVERY = 5  # of a source that cannot be flown, every fifth rollout only judges candidates


class Source(ABC):
    """New experience. `position` counts the rollouts that were taken from it, so that a killed call can go on there."""

    overrides: Sequence[str] | None = None
    """Settings of the worlds that it stands for, as env.key=value; None if they cannot be flown."""
    position = 0
    stopped: Callable[[], bool] = staticmethod(lambda: False)
    """Whether to stop waiting for rollouts."""

    @abstractmethod
    def take(self) -> TensorDictBase | None:
        """Return the next rollout, with the entries that the learner reads; None if there are no more."""

    def skip(self, count: int) -> None:
        """Go on after the first `count` rollouts."""
        self.position = count

    def publish(self, number: int, state: Mapping[str, Any]) -> None:
        """Offer the weights of the accepted policy to the senders of rollouts; other sources do nothing."""

    def close(self) -> None:
        """Release files and connections."""


class EnvSource(Source):
    """The run's env with other settings, flown by the policy that learns. `flights` are set for each candidate."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self.overrides = overrides
        self.flights: Flights | None = None

    def take(self) -> TensorDictBase | None:
        assert self.flights is not None
        self.position += 1
        return self.flights.take()


class Flights:
    """Rollouts of a policy in an env that it flies by sampling actions."""

    def __init__(self, env: TensorEnv, policy: ActorCritic, steps: int) -> None:
        self.env, self.policy = env, policy
        self.collector = SyncDataCollector([env], policy, steps * env.num_envs)

    def take(self) -> TensorDict:
        return pick(self.collector.rollout(), self.policy)

    def close(self) -> None:
        self.env.close()


class ArchiveSource(Source):
    """A folder of rollouts that `RolloutStorage` wrote, such as RUN/rollouts, in order."""

    def __init__(self, folder: Path, policy: ActorCritic, task: Task, decision_s: float | None) -> None:
        self.storage, self.policy, self.folder = RolloutStorage(folder), policy, folder
        if not (found := self.storage.list()):
            raise ConfigError(
                f"{folder} holds no rollouts: pass a folder that RolloutStorage wrote, such as RUN/rollouts."
            )
        self.iterations = found
        check_rate(folder.parent, task, decision_s)

    def take(self) -> TensorDictBase | None:
        if self.position >= len(self.iterations):
            return None
        iteration = self.iterations[self.position]
        self.position += 1
        device = self.policy.device
        return checked(self.storage.load(iteration, device), self.policy, f"{self.storage.path(iteration).name}")

    def close(self) -> None:
        self.storage.close()


class ListenSource(Source):
    """Rollouts that programs send to an `ExchangeServer`, which hands out the newest accepted policy; it cannot be repeated.

    A client that sends a rollout that does not fit is told why and dropped; nothing else changes.
    """

    def __init__(self, address: str, policy: ActorCritic, token: bytes) -> None:
        from fledge.storage.exchange_server import ExchangeServer  # imported here: only this source needs asyncio

        self.policy, self._waiting = policy, deque[TensorDictBase]()
        job = {"observes": list(policy.observes), "inputs": policy.inputs}
        self.server = ExchangeServer(
            address, token, lambda note: job, self._accept, lambda: len(self._waiting) < MOST_WAITING
        )

    def _accept(self, job: dict[str, Any], note: dict[str, Any], body: bytes) -> None:
        data = unpack_rollout(body, self.policy.device, self.server.max_body)
        self._waiting.append(checked(data, self.policy, "the rollout"))

    def publish(self, number: int, state: Mapping[str, Any]) -> None:
        self.server.publish({"version": number}, pack_state(dict(state)))

    def skip(self, count: int) -> None:
        """Do nothing: what was received before cannot be received again."""

    def take(self) -> TensorDictBase | None:
        while not self._waiting:
            if self.stopped():
                return None
            time.sleep(POLL_S)
        self.position += 1
        return self._waiting.popleft()

    def close(self) -> None:
        self.server.close()


def open_source(text: str, policy: ActorCritic, task: Task, decision_s: float | None) -> Source:
    """Return the source that `--from` names."""
    kind, _, rest = text.partition(":")
    path = Path(text)
    if kind == "env":
        words = [word.strip() for word in split_commas(rest) if word.strip()]
        if not words or any("=" not in word for word in words):
            raise ConfigError(f"{text!r} names no world: write env:KEY=VALUE, for example env:mover_speed=2.")
        return EnvSource([word if word.startswith("env.") else f"env.{word}" for word in words])
    if kind == "listen":
        host, _, port = rest.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"{text!r} is no address: write listen:HOST:PORT, for example listen:127.0.0.1:7000.")
        return ListenSource(rest, policy, read_secret())
    if path.suffix in LOGS:
        raise ConfigError(
            f"{text} is a flight log: it holds positions, sensor readings and commands, but no rewards, no ends of episodes "
            "and no probabilities of actions, which learning needs. Measure the drone with `fledge-runtime identify`, "
            "and learn from a simulated one: --from env:KEY=VALUE."
        )
    if path.suffix == ".frec":
        raise ConfigError(
            f"{text} is a recording: it holds paths for display, but no observations and no actions. Pass an archive of "
            "rollouts (rollout_save_interval=1 in training writes RUN/rollouts)."
        )
    if (path / "rollouts").is_dir():
        path = path / "rollouts"
    if not path.is_dir():
        raise ConfigError(
            f"{text!r} is no source.{path_hint(path)} Pass env:KEY=VALUE, listen:HOST:PORT, or a folder of rollouts."
        )
    return ArchiveSource(path, policy, task, decision_s)


def split_commas(text: str) -> list[str]:
    """Split at the commas that are neither within brackets nor within quotes; a quote begins a value."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and parts[-1].rstrip()[-1:] in ("", *"=:,[{"):
            quote = letter
        elif letter == "," and not depth:
            parts.append("")
            continue
        depth += 0 if quote else (letter in "[{") - (letter in "]}" and depth > 0)
        parts[-1] += letter
    return parts


def read_secret() -> bytes:
    """Return the token that senders must know, from the environment variable FLEDGE_TOKEN."""
    if "FLEDGE_TOKEN" not in os.environ:
        raise ConfigError("--from listen:HOST:PORT needs a secret that senders know: set the variable FLEDGE_TOKEN.")
    return check_token(os.environ["FLEDGE_TOKEN"], "FLEDGE_TOKEN")


def check_rate(run: Path, task: Task, decision_s: float | None) -> None:
    """Raise ConfigError if the run that wrote an archive decides at another rate than the policy that shall learn."""
    if decision_s is None or not (run / "config.yaml").is_file():
        return
    world = load_policy(run, task).env
    if world is not None and world.decision_s and abs(world.decision_s - decision_s) > 1e-6:
        raise ConfigError(
            f"{run} decides every {world.decision_s:g} s, but the policy every {decision_s:g} s: pass rollouts of its rate."
        )


def pick(data: TensorDictBase, policy: ActorCritic) -> TensorDict:
    """Return those entries of a rollout that the learner reads."""
    names = [*ENTRIES, "input", *(["hidden"] if policy.hidden_size else [])]
    return TensorDict({name: data[name] for name in names}, data.shape[:2])


def checked(data: TensorDictBase, policy: ActorCritic, name: str) -> TensorDict:
    """Return the learner's entries of a rollout from outside; raise FormatError unless it fits the policy."""
    keys = set(data.keys())
    if "raw" in keys and "raw_action" not in keys:
        data, keys = data.set("raw_action", data["raw"]), keys | {"raw_action"}
    wanted = [*ENTRIES, *(["hidden"] if policy.hidden_size else [])]
    if missing := [entry for entry in wanted if entry not in keys]:
        raise FormatError(f"{name} lacks {', '.join(missing)}: send rollouts of a collector such as SyncDataCollector.")
    if len(data.shape) < 2:
        raise FormatError(f"{name} has the shape {list(data.shape)}, but must be [time, envs].")
    rows = data.shape[:2]
    obs = data["obs"] if "obs" in keys else {}
    if all(key in obs for key in policy.observes):  # as the policy reads them itself
        try:
            data = data.set(
                "input", policy.encode({key: obs[key].flatten(0, 1) for key in policy.observes}).unflatten(0, rows)
            )
        except (RuntimeError, IndexError) as error:
            raise FormatError(
                f"The observations of {name} do not fit the policy: {str(error).splitlines()[0]}."
            ) from error
    elif "input" not in keys:
        lacks = ", ".join(key for key in policy.observes if key not in obs)
        raise FormatError(f"{name} lacks the observations {lacks}, which the policy reads: send them as obs.")
    found = pick(data, policy)
    widths = {"input": (policy.inputs,), "raw_action": (policy.head.width,), "hidden": (policy.hidden_size,)}
    for entry, value in found.items():
        shape, other = (*rows, *widths.get(entry, ())), tuple(value.shape)
        if other != shape:
            raise FormatError(f"{entry} of {name} has the shape {list(other)}, but the policy needs {list(shape)}.")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise FormatError(f"{entry} of {name} holds NaN or infinity: leave such rollouts out.")
    for key in ("terminated", "truncated"):
        found[key] = found[key].bool()
    if odd := out_of_range(policy.head, found["raw_action"]):
        raise FormatError(f"raw_action of {name} {odd}: it was taken by a policy with other actions.")
    return found


def out_of_range(head: Any, raw_action: torch.Tensor) -> str:
    """Return what is wrong with raw actions that a head cannot have sampled; "" if nothing is."""
    if isinstance(head, MixedHead):
        each = zip(head.parts, raw_action.split(head.widths, dim=-1), strict=True)
        return next((odd for part, raw in each if (odd := out_of_range(part, raw))), "")
    low, high = float(raw_action.min()), float(raw_action.max())
    if isinstance(head, BetaHead) and not (low >= 0 and high <= 1):
        return f"ranges from {low:g} to {high:g}, but must lie in 0 to 1"
    if isinstance(head, CategoricalHead) and not (low >= 0 and high < head.values):
        return f"ranges from {low:g} to {high:g}, but must lie in 0 to {head.values - 1}"
    return ""
