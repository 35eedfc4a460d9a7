"""LearnOn: make candidates from old and new experience, judge them, and keep the accepted ones.

Everything that a candidate depends on follows from the last accepted policy, its number and the source's position: its envs
are made anew, with seeds of its number. So a killed call makes the interrupted candidate again, bit for bit, unless the source
is a live stream.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.policy_file import load_weights
from fledge.core.errors import ConfigError, FormatError
from fledge.core.machine import pick_device
from fledge.core.overrides import build_config, changes_of, from_plain, nested
from fledge.core.random import Purpose, derive_seed
from fledge.core.settings import check_settings
from fledge.evaluation.env_config import eval_env
from fledge.learn.bonded import BondedPPO
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge.training.config import TrainConfig, make_config, read_run_config
from fledge.training.learn_on.config import LearnOnConfig
from fledge.training.learn_on.folder import LearnOnFolder, Row
from fledge.training.learn_on.gate import Change, estimated_gain, fly, verdict
from fledge.training.learn_on.sources import HELD_OUT_EVERY, EnvSource, Flights, Source, open_source
from fledge.training.ranks import Ranks
from fledge.training.run import make_rank_envs

MOST_HALVINGS = 4  # of the divergence's target, by refusals in a row
OLD, NEW = 0, 1  # streams of seeds
Say = Callable[[str], None]


class LearnOn:
    """A policy that goes on learning; `run` makes candidates until there are as many as the settings say.

    Args:
        parent: Run or policy file that the policy comes from.
        folder: Where accepted policies go; it may hold those of an earlier call.
        source: Text of `--from`.
        say: Called with lines for the user.
    """

    def __init__(
        self, parent: str, folder: LearnOnFolder, source: str, settings: LearnOnConfig, say: Say, task: Any = None
    ) -> None:
        self.folder, self.settings, self.say, self.source_text = folder, settings, say, source
        loaded = load_policy(parent, task)
        self.task, self.loaded = loaded.task, loaded
        self.cfg = training_config(loaded, parent)
        self.device = pick_device(self.cfg.device, torch.cuda.device_count())
        policy = loaded.agent
        if not isinstance(policy, ActorCritic) or loaded.env is None:
            raise ConfigError(
                f"{parent} has a {type(policy).__name__}, which learn-on cannot train: pass a policy that PPO trained, or "
                f"train it further with `fledge train init_from={shlex.quote(parent)}`."
            )
        if self.task.match.sides == 2:
            raise ConfigError(
                f"Task {self.task.name} is a match of two policies: train against a league instead (league.*)."
            )
        self.weights = weights_id(policy)
        if folder.rows and folder.rows[0].get("weights", self.weights) != self.weights:
            raise ConfigError(
                f"{folder.path} did not begin with the policy of {parent}: that was trained further, or it is another run. "
                "Name the run that it began with, choose another --folder, or move the folder away to begin with this policy."
            )
        self.policy: ActorCritic = policy.to(self.device).train()
        self.source: Source = open_source(source, self.policy, self.task, loaded.env.decision_s)
        self.old_world = eval_env(loaded).cfg
        words = self.source.overrides
        self.new_world = None if words is None else eval_env(loaded, overrides=words).cfg
        own = dataclasses.replace(self.cfg.ppo, lr=settings.lr, epochs=settings.epochs)
        self.learner = BondedPPO(self.policy, own, settings.kl_target)
        self.new_accepted: np.ndarray | None = None
        """Scores of the accepted policy on new worlds; None if they cannot be flown."""
        self.interrupted = False

    def run(self, stopped: Callable[[], bool], command: list[str]) -> list[Row]:
        """Make candidates until there are `candidates`, the source ends or `stopped`; return the rows of this call."""
        with contextlib.closing(self.source):
            made = [] if self.folder.rows else [self._begin(command)]
            self._load_accepted()
            self.source.stopped = stopped
            while self.folder.rows[-1]["candidate"] < self.settings.candidates and not stopped():
                row = self._candidate(self.folder.rows[-1]["candidate"] + 1, stopped)
                if row is None:
                    break
                made.append(row)
            self.interrupted = stopped()
            return made

    # ---- start -------------------------------------------------------------------------------------------------

    def _begin(self, command: list[str]) -> Row:
        """Save the run's policy as checkpoint 0, with its figures."""
        self.folder.create(self.cfg, self.loaded.name, command, self.device)
        self.say("The run's policy flies held-out old and new worlds.")
        self._fly_before()
        row: Row = {
            "candidate": 0,
            "accepted": True,
            "reason": "the run's policy",
            "position": 0,
            "frames": 0,
            "weights": self.weights,
            **self._scores(),
        }
        self.folder.save(row, self._state(row))
        return row

    def _load_accepted(self) -> None:
        """Load the newest accepted policy with its learner, and fly it if that was not done yet."""
        newest = [row for row in self.folder.rows if row["accepted"]][-1]
        state, entry = self.folder.history.load_latest(self.device, allow_weights_only=True)
        if entry.step != newest["candidate"]:
            raise FormatError(
                f"{self.folder.path}: checkpoint {newest['candidate']} is missing or damaged: go back with --to."
            )
        if not hasattr(self, "old_before"):
            self._fly_before()
        load_weights(self.policy, state["model"], str(self.folder.path))
        if "learner" in state:
            self.learner.load_state_dict(state["learner"])
        self.accepted = copy.deepcopy(self.policy)
        if newest["candidate"] and self.new_world is not None:
            self.new_accepted = fly(self.policy, self.task, self.new_world, self.settings.episodes, self.device)
        self._kept = self._state(newest)
        self.source.publish(newest["candidate"], self._kept["model"])
        last = self.folder.rows[-1]
        if self.folder.state.get("source") == self.source_text:
            self.source.skip(last["position"])
        self.folder.set_parent(self.loaded.name)
        self.folder.note(source=self.source_text, settings=dataclasses.asdict(self.settings))

    def _fly_before(self) -> None:
        """Fly the run's own policy on old and new worlds."""
        flown = (self.task, self.settings.episodes, self.device)
        self.old_before = fly(self.policy, flown[0], self.old_world, *flown[1:])
        if self.new_world is not None:
            self.new_accepted = fly(self.policy, flown[0], self.new_world, *flown[1:])

    def _scores(self) -> dict[str, float | None]:
        new = None if self.new_accepted is None else round(float(self.new_accepted.mean()), 4)
        return {"old": round(float(self.old_before.mean()), 4), "new": new}

    # ---- a candidate -------------------------------------------------------------------------------------------

    def _candidate(self, number: int, stopped: Callable[[], bool]) -> Row | None:
        """Learn and judge one candidate, and save its row; None if the source has ended or the call was stopped."""
        begun, settings = time.perf_counter(), self.settings
        torch.manual_seed(derive_seed(settings.seed, Purpose.POLICY, number))
        self.learner.bind()
        self.learner.kl_target = settings.kl_target * 0.5 ** min(self._refusals(), MOST_HALVINGS)
        held_out, frames, metrics = list[TensorDictBase](), 0, dict[str, float]()
        with contextlib.ExitStack() as flights:
            for both, new in self._rollouts(number, flights):
                if stopped():
                    self._undo()
                    return None
                if self.new_world is None and self.source.position % HELD_OUT_EVERY == 0:
                    held_out.append(new)
                    continue
                metrics, frames = self.learner.update(both), frames + new.numel()
                if frames >= settings.decisions and (self.new_world is not None or held_out):
                    break
            else:
                if not held_out or not frames:
                    self._undo()
                    if not stopped():
                        self.say(
                            f"The source has ended after {self.source.position} rollouts: nothing more to learn from."
                        )
                    return None
        row: Row = {"candidate": number, "accepted": False, "position": self.source.position, "frames": frames}
        row |= self._judge(held_out) | {"divergence": round(metrics["divergence"], 4), "bond": metrics["bond"]}
        row["seconds"] = round(time.perf_counter() - begun, 1)
        row["accepted"] = not row["reason"]
        if row["accepted"]:
            self._kept, self.accepted = self._state(row), copy.deepcopy(self.policy)
            self.new_accepted = self._new_candidate
            self.source.publish(number, self._kept["model"])
        else:
            self._undo()
        self.folder.save(row, self._kept if row["accepted"] else None)
        self.say(told(row))
        return row

    def _rollouts(self, number: int, flights: contextlib.ExitStack) -> Iterator[tuple[TensorDictBase, TensorDictBase]]:
        """Yield rollouts of old and new experience together, and their new part, until the source ends."""
        settings, old = self.settings, None
        share = settings.old_share
        if isinstance(self.source, EnvSource):
            count = max(1, round(settings.num_envs * (1 - share)))
            made = self._flights(number, NEW, count, settings.steps, self.source.overrides or ())
            self.source.flights = flights.enter_context(contextlib.closing(made))
        while (new := self.source.take()) is not None:
            steps, count = new.shape[:2]
            if share and old is None:
                wanted = max(1, round(count * share / (1 - share)))
                old = flights.enter_context(contextlib.closing(self._flights(number, OLD, wanted, steps)))
            if old is not None and len(new) != old.collector.steps:
                raise FormatError(
                    f"A rollout of the source has {steps} decisions per env, but those before had {old.collector.steps}: send "
                    "rollouts of one length."
                )
            yield (torch.cat([new, old.take()], dim=1) if old is not None else new), new

    def _flights(self, number: int, stream: int, count: int, steps: int, words: Sequence[str] = ()) -> Flights:
        """Return flights of the learning policy in the run's env, changed by `words`, with maps of this candidate alone."""
        task = self.task
        rows = task.match.rows(self.cfg.env)
        layers = [("the run's env", changes_of(self.cfg.env))]
        env: Any = build_config(task.config, layers, list(words), task.presets.aliases, task.presets.env_groups, "env.")
        check_settings(env, "env.")
        env = dataclasses.replace(task.policy.enable_observations(env, self.policy), num_envs=-(-count // rows) * rows)
        seed = derive_seed(self.settings.seed, Purpose.LEARN_ON, number, stream)
        cfg = dataclasses.replace(self.cfg, env=env, seed=seed)
        cfg.collect = dataclasses.replace(cfg.collect, mode=type(cfg.collect.mode)("sync"))
        return Flights(make_rank_envs(task, cfg, Ranks(), self.device)[0], self.policy, steps)

    def _judge(self, held_out: list[TensorDictBase]) -> dict[str, Any]:
        """Fly the candidate, or estimate its gain, and return the figures of its row and why it is refused, or ""."""
        settings, ppo = self.settings, self.learner.cfg
        old = fly(self.policy, self.task, self.old_world, settings.episodes, self.device)
        spread = float(self.old_before.std()) or 1.0 if self.task.primary_metric == "return" else 1.0
        loss, self._new_candidate = Change.of((old - self.old_before) / spread), self.new_accepted
        if self.new_world is not None:
            self._new_candidate = fly(self.policy, self.task, self.new_world, settings.episodes, self.device)
            assert self.new_accepted is not None
            gain = Change.of((self._new_candidate - self.new_accepted) / spread)
        else:
            gain = estimated_gain(self.policy, self.accepted, held_out, ppo.gamma, ppo.gae_lambda)
        figures: dict[str, Any] = {"old": float(old.mean()), "old_change": loss.mean, "old_low": loss.low}
        new = None if self._new_candidate is None else float(self._new_candidate.mean())
        figures |= {"new": new, "new_change": gain.mean, "new_low": gain.low}
        rounded = {key: None if value is None else round(value, 4) for key, value in figures.items()}
        return {**rounded, "reason": verdict(loss, gain, settings.tolerance)}

    def _refusals(self) -> int:
        """Return the number of refusals since the last accepted policy."""
        rows = self.folder.rows
        return next(count for count, row in enumerate(reversed(rows)) if row["accepted"])

    def _undo(self) -> None:
        """Load the accepted policy and its learner again."""
        load_weights(self.policy, self._kept["model"], "the accepted policy")
        self.learner.load_state_dict(self._kept["learner"])

    def _state(self, row: Row) -> dict[str, Any]:
        """Return a copy of the present policy and its learner, as a checkpoint."""
        assert self.loaded.env is not None
        world = {"env": self.loaded.env.settings, "decision_s": self.loaded.env.decision_s}
        policy = self.task.policy.describe(self.task, "ppo", self.cfg.env, self.cfg.policy)
        state = {"model": self.policy.state_dict(), "learner": self.learner.state_dict()}
        plain = {"policy": policy, "task": self.task.reference, "world": world, "iteration": row["candidate"]}
        return {**copy.deepcopy(state), **plain, "frames": row["frames"]}


def weights_id(policy: torch.nn.Module) -> str:
    """Return a checksum of a policy's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def training_config(loaded: LoadedPolicy, parent: str) -> TrainConfig:
    """Return the config of a run; of a policy file, that of its task with the env that the policy was trained in."""
    if (Path(parent) / "config.yaml").is_file():
        return read_run_config(Path(parent), [], loaded.task)[1]
    cfg = make_config(loaded.task)
    if loaded.env is not None:
        cfg.env = from_plain(loaded.task.config, nested(loaded.env.settings))
    return cfg


def told(row: Row) -> str:
    """Return one line about a candidate."""
    how = "accepted" if row["accepted"] else f"refused ({row['reason']})"
    new = (
        f"gain {row['new_change']:+.4f} (estimated)"
        if row["new"] is None
        else f"{row['new']:.3f} ({row['new_change']:+.3f})"
    )
    return (
        f"candidate {row['candidate']}: {how}; old worlds {row['old']:.3f} ({row['old_change']:+.3f}), new worlds {new}"
    )
