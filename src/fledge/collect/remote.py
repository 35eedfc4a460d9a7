"""RemoteCollector: rollouts of a fixed size, assembled from those of actors on other machines and of local envs.

    rollout [T, N]     columns 0 to L: the local envs, collected here     L to N: actors' rollouts, the oldest first

Contract
    A rollout has the entries of `collect.base` that on-policy learners read (`entries`), without obs and action, and
    `version`, [T, N] int32: the number of the policy that acted. The present policy has the number of `rollout` calls; lag
    is the difference. Rollouts with more than `max_lag` are discarded. Log-probabilities and values are those of the policy
    that acted, so the learner must correct for it (`Learner.corrects_stale`); but `next_value` of the last row is computed
    here with the present weights, for actors as for local envs.

    Actors send experience as messages of `pack_rollout`, [T + 1, n]: T rows of `entries`, and one more of which only `input`
    and `hidden` count: the observation after the last decision. The note of the message has "version", and "log": the scalars
    that their env logged, {name: [sum, count]}. A rollout with more columns than are missing is cut; the rest begins the next.

    Each call of `rollout` publishes the present weights with its note, {"version", "progress"}. While a whole rollout waits,
    actors get no answer: so they neither run ahead nor fill the memory.

    Results depend on when actors send. What was sent but not learned from is not part of `state_dict`.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from fledge.collect.base import RESULTS, Collector, Prepare
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import FledgeError, InputError
from fledge.envs.base import Log, add_logs
from fledge.storage.exchange_server import ExchangeServer
from fledge.storage.stream import pack_state, unpack_rollout

SENT = ("input", "hidden", "raw_action", "log_prob", "value", "next_value", *RESULTS)
LARGEST = 1e9  # of any number that an actor sends
LARGEST_LOG_PROB = 1e4
MAX_LOGGED = 256  # scalars of an env's log
TELL_S, TELL_AGAIN_S = 5.0, 60.0  # after which a line says that the learner waits, and between two such lines
NUMBERS_KEPT = 1000  # numbers of actors that may have joined since the checkpoint that a run resumes from


class NoExperienceError(FledgeError):
    """No rollout could be completed: actors sent too little, or the run was told to stop while it waited."""


class Piece(NamedTuple):
    """An actor's rollout, or the part of it that is left."""

    data: TensorDictBase  # [T + 1, n]
    version: int
    log: Log


class RemoteCollector(Collector):
    """Assembles rollouts from actors and local envs. Set `server` before the first rollout.

    Args:
        local: Collector over the local envs. If `num_envs` leaves none to it, it only tells the shapes of the entries.
        num_envs: Columns of a rollout.
        local_envs: Columns that `local` fills; 0 if it is not to collect.
        max_lag: Updates by which an actor's weights may be older than the present ones.
        wait_s: Raise NoExperienceError after this time without any experience, s; 0: wait without limit.

    Attributes:
        progress: Share of training that is done, which actors need for the curriculum.
        stopped: Whether to stop waiting for actors.
        finished: Whether `shutdown` should tell actors that training has finished.
        say: Prints a line about actors.
    """

    def __init__(
        self, local: SyncDataCollector, num_envs: int, local_envs: int, max_lag: int, wait_s: float = 0.0
    ) -> None:
        self.local, self.num_envs, self.local_envs = local, num_envs, local_envs
        self.max_lag, self.wait_s, self.steps = max_lag, wait_s, local.steps
        self.frames_per_batch = self.steps * num_envs
        self.server: ExchangeServer | None = None
        self.progress, self.version, self.joined = 0.0, 0, 0
        self.stopped: Callable[[], bool] = lambda: False
        self.say: Callable[[str], None] = lambda line: None
        self.finished = False
        template = local._rollouts[0][0]
        self.entries = {name: (tuple(x.shape[2:]), x.dtype) for name, x in template.items() if name in SENT}
        batch, device = [self.steps, num_envs], local.env.device
        self._latest = TensorDict(
            {
                name: torch.zeros(*batch, *shape, dtype=dtype, device=device)
                for name, (shape, dtype) in self.entries.items()
            },
            batch,
        ).set("version", torch.zeros(batch, dtype=torch.int32, device=device))
        self._queue: deque[Piece] = deque()
        self._came = threading.Condition()
        self._discarded, self._seen = 0, (0, time.monotonic())

    @property
    def max_body(self) -> int:
        """Largest message of an actor, bytes: a rollout that does not compress, and its headers."""
        row = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.entries.values())
        return 2 * (self.steps + 1) * self.num_envs * row + 2**20

    # ---- called by the server's thread ---------------------------------------------------------------------------

    def give_number(self, wanted: Any, used: set[int]) -> int:
        """Return the number of an actor that joins: `wanted`, which it had before, unless another one has it."""
        is_known = type(wanted) is int and 0 < wanted < 2**31 and wanted not in used
        number = wanted if is_known else self.joined + 1
        self.joined = max(self.joined, number)
        return int(number)

    def has_room(self) -> bool:
        return sum(piece.data.batch_size[1] for piece in list(self._queue)) < self.num_envs - self.local_envs

    def accept(self, job: Mapping[str, Any], note: Mapping[str, Any], body: bytes) -> None:
        """Take in an actor's rollout; raise FledgeError if it is not one of this run."""
        version = note.get("version")
        if type(version) is not int or not 0 < version <= self.version:
            raise InputError(f"the rollout names policy {version!r}, but must name one from 1 to {self.version}.")
        log = check_log(note.get("log"))
        data = unpack_rollout(body, max_bytes=self.max_body)
        self._check(data)
        with self._came:
            self._queue.append(Piece(data.to(self.local.env.device), version, log))
            self._came.notify()

    def _check(self, data: TensorDictBase) -> None:
        """Raise InputError unless a rollout has exactly the entries, shapes and types of this run, and possible values."""
        n = data.batch_size[1] if len(data.batch_size) == 2 else 0
        if data.batch_size != (self.steps + 1, n) or not 0 < n <= self.num_envs - self.local_envs:
            raise InputError(
                f"the rollout has size {[*data.batch_size]}, but must have [{self.steps + 1}, n], with n from 1 to "
                f"{self.num_envs - self.local_envs}."
            )
        if set(data.keys()) != set(self.entries):
            came, wanted = (", ".join(sorted(map(str, names)))[:300] for names in (data.keys(), self.entries))
            raise InputError(f"the rollout has the entries {came}, but must have {wanted}.")
        for name, (shape, dtype) in self.entries.items():
            x = data.get(name)
            if not isinstance(x, Tensor) or x.dtype != dtype or tuple(x.shape) != (self.steps + 1, n, *shape):
                came = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                raise InputError(f"{name} is {came}, but must be {dtype} {[self.steps + 1, n, *shape]}.")
            largest = LARGEST_LOG_PROB if name == "log_prob" else LARGEST
            if dtype.is_floating_point and not bool((x.abs() <= largest).all()):
                raise InputError(f"{name} has NaN, infinity or a number beyond {largest:g}.")
        if not bool(torch.isin(data["outcome"], torch.tensor([*{0, *self.local.env.outcomes}])).all()):
            raise InputError("outcome has a value that env.outcomes does not name.")
        self._check_actions(data[:-1].flatten())

    @torch.no_grad()
    def _check_actions(self, rows: TensorDictBase) -> None:
        """Raise InputError unless the actions are possible in the env, and the policy can compute their probability."""
        env, policy, raw = self.local.env, self.local.policy, rows["raw_action"].to(self.local.env.device)
        first = [rows[name][:1].to(env.device) for name in ("input", "hidden") if name in self.entries]
        try:
            env.check_action(policy.head.to_env(raw), "raw_action", len(raw))
            params = (p.expand(len(raw), *p.shape[1:]) for p in policy.step(*first)[0])
            possible = bool(torch.isfinite(policy.head.log_prob(tuple(params), raw)).all())
        except (RuntimeError, IndexError, ValueError) as error:
            raise InputError(f"raw_action does not fit the policy: {error}") from error
        if not possible:
            raise InputError("raw_action has a value that the policy never takes.")

    # ---- called by the training thread ---------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, prepare: Prepare | None = None) -> TensorDict:
        """Publish the present weights, and return a rollout [T, N] of local envs and actors; wait for actors if necessary.

        Raises:
            NoExperienceError: `stopped` returned True, or no experience came for `wait_s` seconds.
        """
        assert self.server is not None, "set server before the first rollout"
        begun, data = time.perf_counter(), self._latest
        self.version += 1
        self.server.publish(
            {"version": self.version, "progress": self.progress}, pack_state(self.local.policy.state_dict())
        )
        logs: list[Log] = []
        if self.local_envs:
            own = self.local.rollout(prepare)
            for name in self.entries:
                data[name][:, : self.local_envs].copy_(own[name])
            data["version"][:, : self.local_envs] = self.version
            logs.append(self.local.env_log)
        elif prepare is not None:
            prepare()
        self.simulate_s = self.local.simulate_s
        first = self.local_envs
        while first < self.num_envs:
            piece = self._next()
            first = self._put(piece, first)
            logs.append(piece.log)
        self.env_log = add_logs(logs)
        self._frames += self.frames_per_batch
        self._fps = self.frames_per_batch / (time.perf_counter() - begun)
        self._measure()
        return data

    def _next(self) -> Piece:
        """Wait for a piece that is not too old, and take it from the queue."""
        begun = time.monotonic()
        tell = begun + TELL_S
        with self._came:
            while True:
                while self._queue:
                    piece = self._queue.popleft()
                    if self.version - piece.version <= self.max_lag:
                        return piece
                    self._discarded += self.steps * piece.data.batch_size[1]
                self._came.wait(0.1)
                now = time.monotonic()
                if self.stopped():
                    raise NoExperienceError("Stopped while waiting for actors.")
                if not self._queue and 0 < self.wait_s < now - begun:
                    raise NoExperienceError(
                        f"No actor has sent a rollout for {self.wait_s / 60:g} minutes (actors.wait_minutes): start "
                        "`fledge actor`, then resume the run."
                    )
                if now > tell:
                    tell = now + TELL_AGAIN_S
                    assert self.server is not None
                    self.say(f"waiting for actors: {len(self.server.clients)} connected to {self.server.address}.")

    def _put(self, piece: Piece, first: int) -> int:
        """Copy a piece to the columns from `first` on; return the first column that is still missing."""
        data, policy = self._latest, self.local.policy
        taken = min(piece.data.batch_size[1], self.num_envs - first)
        part, columns = piece.data[:, :taken], slice(first, first + taken)
        for name in self.entries:
            data[name][:, columns].copy_(part[name][:-1])
        data["version"][:, columns] = piece.version
        after = policy.value(part["input"][-1], part["hidden"][-1] if policy.hidden_size else None)
        last = data["next_value"][-1, columns]
        last.copy_(torch.where(part["truncated"][-2], last, after))
        if taken < piece.data.batch_size[1]:
            with self._came:
                self._queue.appendleft(Piece(piece.data[:, taken:], piece.version, {}))
        return first + taken

    def _measure(self) -> None:
        assert self.server is not None
        (seen, at), now = self._seen, time.monotonic()
        self._seen = self.server.bytes_received, now
        remote = self._latest["version"][0, self.local_envs :]
        self.metrics = {
            "actors/connected": float(len(self.server.clients)),
            "actors/lag": self.version - float(remote.float().mean()),
            "actors/discarded": float(self._discarded),
            "actors/refused": float(self.server.refused),
            "actors/bytes_per_second": (self.server.bytes_received - seen) / max(now - at, 1e-6),
        }
        self._discarded = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the experience that is on its way; the policy and torch's random state not included."""
        state = {"frames": self._frames, "version": self.version, "joined": self.joined}
        return state | ({"local": self.local.state_dict()} if self.local_envs else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._frames, self.version = int(state["frames"]), int(state["version"])
        self.joined = int(state["joined"]) + NUMBERS_KEPT
        if self.local_envs and "local" in state:
            self.local.load_state_dict(state["local"])

    def shutdown(self) -> None:
        """Close the connections to actors, tell them if training has `finished`, and close the local envs."""
        if self.server is not None:
            self.server.close(end=self.finished)
        self.local.shutdown()


def check_log(log: Any) -> Log:
    """Return the scalars that an actor's env logged; raise InputError if they are not {name: [sum, count]}."""
    found: Log = {}
    is_dict = isinstance(log, dict) and len(log) <= MAX_LOGGED
    for name, pair in itertools.islice(log.items(), MAX_LOGGED) if is_dict else ():
        fits = isinstance(pair, list) and len(pair) == 2 and all(type(x) in (int, float) for x in pair)
        if not (fits and len(name) <= 100 and name.isprintable() and all(abs(x) < 1e30 for x in pair)):
            raise InputError(f"the log of the env has {name!r}: {str(pair)[:100]}, but must have [sum, count].")
        found[name] = float(pair[0]), int(pair[1])
    if not is_dict:
        raise InputError(f"the log of the env must be an object of at most {MAX_LOGGED} scalars.")
    return found
