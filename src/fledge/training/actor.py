"""An actor: fly for a learner on another machine, send rollouts, and take over its newest policy.

The learner tells the run's config. Code that only the config names (a task, a reward) is not run: the user must name it. Actor
number K draws its random numbers from a seed that only K and the run's seed determine, so no two actors fly alike. When the
connection is lost, the rollout that was on its way is lost too; the actor connects again, for at most `minutes` minutes, and
its envs go on where they were.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from fledge.agents.actor_critic import ActorCritic
from fledge.collect.config import ActorsConfig, CollectConfig
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, FormatError
from fledge.core.machine import pick_device
from fledge.core.overrides import split_override
from fledge.core.random import Purpose, derive_seed
from fledge.core.settings import check_settings, code_settings
from fledge.core.yaml_text import parse_yaml
from fledge.storage.exchange import ExchangeClient, Kind, Refused, Unreachable
from fledge.storage.stream import pack_rollout, unpack_state
from fledge.tasks.base import Task
from fledge.training.config import TrainConfig, config_from, with_named_code
from fledge.training.ranks import Ranks
from fledge.training.run import make_rank_envs

LONGEST_PAUSE_S = 30.0  # between two attempts to connect
REPORT_S = 30.0  # between two lines of progress


@dataclasses.dataclass
class ActorOptions:
    """Settings of an actor, all its own: the learner decides about the rest."""

    learner: str
    """HOST:PORT of the learner."""
    token: bytes
    """The learner's secret."""
    envs: int | None = None
    """Envs to fly; None: as many as the learner wants from all actors together."""
    device: str = "auto"
    """Device of envs and policy."""
    threads: int | None = None
    """CPU threads of the simulation; None: one per core."""
    level: int = 1
    """Compression level of rollouts, 0 to 9."""
    minutes: float = 60.0
    """Time after which to give up if the learner cannot be reached."""


class Flight:
    """Envs, policy and collector of an actor, for one job of the learner."""

    def __init__(
        self, job: Mapping[str, Any], options: ActorOptions, task: Task | None, overrides: Sequence[str]
    ) -> None:
        self.job = dict(job)
        self.number, self.entries = int(job["number"]), list(job["entries"])
        self.task, cfg = read_job(job, options, task, overrides)
        envs = int(job["envs"]) if options.envs is None else options.envs
        rows = int(job["rows"])
        if envs % rows or not 0 < envs <= job["envs"]:
            raise ConfigError(f"--envs is {envs}, but must be a multiple of {rows} from {rows} to {job['envs']}.")
        seed = derive_seed(cfg.seed, Purpose.ACTOR, self.number)
        device = pick_device(options.device, torch.cuda.device_count())
        self.cfg = dataclasses.replace(cfg, seed=seed, env=dataclasses.replace(cfg.env, num_envs=envs))
        self.env = make_rank_envs(self.task, self.cfg, Ranks(), device, options.threads)[0]
        self.policy: Any = self.task.policy.build(
            self.task.policy.describe(self.task, cfg.learner.policy_form, cfg.env, cfg.policy)
        ).to(device)
        if not isinstance(self.policy, ActorCritic):
            raise ConfigError(
                f"the learner trains with algo={cfg.algo}, whose policy actors cannot fly: use ppo there."
            )
        self.collector = SyncDataCollector(self.env, self.policy, envs * cfg.steps)
        self.collector.draw_from(torch.Generator(device).manual_seed(derive_seed(seed, Purpose.POLICY)))
        self.progress = 0.0

    def take(self, note: Mapping[str, Any], body: bytes) -> None:
        """Fly the next rollout with the policy that the learner sent."""
        try:
            self.policy.load_state_dict(unpack_state(body, "the learner's policy"))
        except (RuntimeError, AttributeError, TypeError) as error:
            raise FormatError(f"The learner's policy does not fit this actor: {error}") from error
        self.progress = float(note["progress"])

    def fly(self) -> tuple[TensorDictBase, dict[str, Any]]:
        """Return a rollout as `collect.remote` wants it, [T + 1, n], and the env's log."""
        curriculum = self.task.curriculum.set_progress
        prepare = functools.partial(curriculum, self.env.unwrapped, self.cfg.curriculum, self.progress)
        data = self.collector.rollout(prepare)
        after = self.collector._env_slices[0]
        last = {"input": self.policy.encode(after.spare)} | (
            {"hidden": after.hidden} if "hidden" in self.entries else {}
        )
        rows = {}
        for name in self.entries:
            extra = last.get(name, torch.zeros_like(data[name][0]))
            rows[name] = torch.cat([data[name], extra.to(data[name].dtype).unsqueeze(0)]).cpu()
        log = {name: [float(total), int(count)] for name, (total, count) in self.collector.env_log.items()}
        return TensorDict(rows, [len(data) + 1, data.batch_size[1]]), log

    def close(self) -> None:
        self.collector.shutdown()


def read_job(
    job: Mapping[str, Any], options: ActorOptions, task: Task | None, overrides: Sequence[str]
) -> tuple[Task, TrainConfig]:
    """Return the task and the config of a job, changed by the user's overrides, which may set env.* and name code."""
    content = parse_yaml(str(job["config"]))
    where = f"the learner at {options.learner}"
    if not isinstance(content, dict):
        raise FormatError(f"{where} sent no config: it has another version of Fledge.")
    content |= {"device": "cpu", "actors": dataclasses.asdict(ActorsConfig())}
    task, cfg = config_from(content, where, where, overrides, task)
    allowed = {*code_settings(cfg), "reward", "algo"}
    for key, _ in map(split_override, overrides):
        if not key.startswith("env.") and key not in allowed:
            raise ConfigError(f"{key} is the learner's to set: an actor takes env.* and the names of code only.")
    cfg = dataclasses.replace(with_named_code(cfg, overrides), collect=CollectConfig())
    check_settings(cfg)
    return task, cfg


class Actor:
    """Flies for a learner until training has finished.

    Args:
        task: The run's task, if it is the user's own code.
        overrides: `key=value` settings of the user.
        say: Called with a line of text for the user.
    """

    def __init__(
        self,
        options: ActorOptions,
        task: Task | None = None,
        overrides: Sequence[str] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.options, self.task, self.overrides, self.say = options, task, overrides, say
        self.flight: Flight | None = None
        self.frames = self.rollouts = self.bytes_sent = 0

    def run(self) -> None:
        """Fly until the learner says that training has finished.

        Raises:
            Unreachable: The learner could not be reached for `minutes` minutes.
            Refused: The learner refused the token, or a rollout.
        """
        lost, pause = time.monotonic(), 1.0
        try:
            while True:
                before = self.rollouts
                try:
                    if self._serve():
                        return self.say(f"Training has finished. This actor flew {self.frames:,} decisions.")
                except Unreachable as error:
                    if self.rollouts > before:
                        lost, pause = time.monotonic(), 1.0
                    left = self.options.minutes * 60 - (time.monotonic() - lost)
                    if left <= 0:
                        raise Unreachable(
                            f"{error} It was tried for {self.options.minutes:g} minutes (--minutes)."
                        ) from error
                    self.say(f"{error} Trying again for {left / 60:.0f} more minutes.")
                    time.sleep(min(pause * random.uniform(0.5, 1.0), max(left, 0.0)))
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            if self.flight is not None:
                self.flight.close()

    def _serve(self) -> bool:
        """Fly over one connection; return True if training has finished. Raise Unreachable if the connection is lost."""
        with ExchangeClient(self.options.learner, self.options.token) as client:
            number = None if self.flight is None else self.flight.number
            kind, job, _ = client.request(Kind.JOIN, {"number": number})
            if kind is Kind.END:
                return True
            if self.flight is None or self.flight.job != job:
                self._begin(job)
            assert self.flight is not None
            answer, version, told = client.request(Kind.POLL, {"version": None}), -1, time.monotonic()
            while answer[0] is not Kind.END:
                if answer[0] is Kind.POLICY:
                    version = int(answer[1]["version"])
                    self.flight.take(*answer[1:])
                rollout, log = self.flight.fly()
                message = pack_rollout(rollout, self.options.level)
                answer = client.request(Kind.EXPERIENCE, {"version": version, "log": log}, message)
                self.rollouts += 1
                self.frames += self.flight.collector.frames_per_batch
                self.bytes_sent += len(message)
                if time.monotonic() - told > REPORT_S:
                    told = time.monotonic()
                    self.say(f"{self.frames:,} decisions, {self.bytes_sent / 1e6:,.1f} MB sent; policy {version}")
            return True

    def _begin(self, job: Mapping[str, Any]) -> None:
        if self.flight is not None:
            self.flight.close()
            self.flight = None
        try:
            self.flight = Flight(job, self.options, self.task, self.overrides)
        except (KeyError, TypeError) as error:
            raise Refused(
                f"{self.options.learner} sent a job that this version of Fledge does not know: {error}."
            ) from error
        flight = self.flight
        unit = flight.task.metrics.unit
        self.say(f"Actor {flight.number} of {job['run']}: {flight.task.name}, {flight.env.num_envs} {unit}.")
