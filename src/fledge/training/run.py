"""TrainingState: everything that one rank needs to train, and how it is saved and restored exactly.

A run lives in a folder: `config.yaml` (resolved), `run.json` (how it was started), `metrics.csv`, `metrics.jsonl`,
`tensorboard/`, `checkpoints/`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.collect.remote import RemoteCollector
from fledge.core.errors import ConfigError, FledgeError, InputError
from fledge.core.machine import pick_device
from fledge.core.random import Purpose, derive_seed
from fledge.core.settings import changed_settings, check_settings, code_settings, flat_settings
from fledge.core.transfer import Fetch
from fledge.envs.base import Log, TensorEnv, add_logs
from fledge.learn.base import load_random_state, random_state
from fledge.learn.ppo import PPO
from fledge.learn.registry import ALGORITHMS
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task
from fledge.training.collectors import make_collector
from fledge.training.config import RENAMED, TrainConfig
from fledge.training.curriculum import make_curriculum
from fledge.training.factories import TAKEN, env_unit, make_learner, make_rank_envs, with_sizes
from fledge.training.learner_checks import ROUNDING, check_report, check_state, learner_error
from fledge.training.live import FrameCapture, RecordingWrapper
from fledge.training.memory import check_memory
from fledge.training.rank_parts import RankParts
from fledge.training.ranks import Ranks

EXACT = "bit for bit"  # how a run continues if no setting that affects results has changed


class TrainingState:
    """Env, policy, learner and collector of one rank, and the counters of the run."""

    def __init__(self, cfg: TrainConfig, ranks: Ranks, task: Task | None = None, *, is_trial: bool = False) -> None:
        check_settings(cfg)
        self.task = task or find_task(cfg.task)
        self.configured, self.ranks = cfg, ranks
        self.cfg = cfg = with_sizes(cfg, {})
        """The config with the sizes that are in use; those of `configured` are the sizes to begin with."""
        self.device = pick_device(cfg.device, torch.cuda.device_count(), ranks.local)
        self.parts = RankParts(Ranks() if is_trial else ranks)
        self.iteration = self.frames = 0
        self.seconds = self.seconds_before = 0.0  # of training in all sessions, and in those before this one
        # All ranks build the same weights, then draw their own actions and minibatches.
        torch.manual_seed(derive_seed(cfg.seed, Purpose.WEIGHTS))
        self.description = self.task.policy.describe(self.task, cfg.learner.policy_form, cfg.env, cfg.policy)
        self.policy = self.task.policy.build(self.description).to(self.device)
        if cfg.compile:
            self.policy.compile()
        self.learner = make_learner(cfg, self.policy, ranks)
        if isinstance(self.learner, PPO):
            self.learner.splits = "ppo.minibatch" in cfg.auto and not is_trial
        self._make_collector()
        self.outcomes = {value: name for value, name in self.envs[0].outcomes.items() if value}
        check_names(self.task, self.envs[0])

    def _make_collector(self) -> None:
        """Make envs, collector and, at the start of a run, the curriculum; then also seed what they draw."""
        cfg, ranks = self.cfg, self.ranks
        if not self.iteration:
            torch.manual_seed(derive_seed(cfg.seed, Purpose.POLICY, ranks.rank))
        self.settings = flat_settings(cfg)
        self.envs = make_rank_envs(self.task, cfg, ranks, self.device)
        self.recorder = RecordingWrapper(self.envs[0], FrameCapture(self.task, self.envs[0], {"seed": cfg.seed}))
        """The first env; on rank 0 it records live frames, once its capture has the run's folder."""
        self.collector = make_collector(self.task, cfg, [self.recorder, *self.envs[1:]], self.policy, self.learner)
        if not self.iteration:
            self.curriculum = make_curriculum(self.task, cfg, self.envs, self.policy, self.device, ranks)
        self.curriculum.move_to(self.envs)
        self.frames_per_iteration = self.collector.frames_per_batch * ranks.size

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Change sizes by the names in `cfg.auto`; with another number of envs, new episodes begin in new envs.

        A run that has not begun continues exactly as if it had been made with these sizes.
        """
        self.cfg.ppo.minibatch = sizes.get("ppo.minibatch", self.cfg.ppo.minibatch)
        self.settings = flat_settings(self.cfg)
        count = sizes.get("env.num_envs", self.cfg.env.num_envs)
        if count == self.cfg.env.num_envs:
            return
        folder = self.recorder.capture.folder
        check_memory(self.task, with_sizes(self.cfg, sizes), self.ranks.size, self.ranks.here)
        self.collector.shutdown()
        self.cfg.env = dataclasses.replace(self.cfg.env, num_envs=count)
        self._make_collector()
        self.recorder.capture.folder = folder

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that the run chooses itself, by the names in `cfg.auto`."""
        return {name: self.settings[name] for name in self.cfg.auto}

    @property
    def iterations_left(self) -> int:
        return max(0, -(-(self.cfg.total_frames - self.frames) // self.frames_per_iteration))

    @property
    def total_iterations(self) -> int:
        return self.iteration + self.iterations_left

    @property
    def progress(self) -> float:
        """Share of training that is done: 0 at the first iteration, 1 at the last."""
        return min(1.0, self.frames / max(1, self.frames + (self.iterations_left - 1) * self.frames_per_iteration))

    @property
    def finished(self) -> bool:
        return not self.iterations_left

    @property
    def out_of_time(self) -> bool:
        """Whether training has lasted longer than `max_minutes` since the start or the last resume."""
        return 0 < self.cfg.max_minutes * 60 < self.seconds - self.seconds_before

    @property
    def at_stop(self) -> bool:
        """Whether the run has made all decisions, or `stop_frames` of them."""
        return self.finished or 0 < self.cfg.stop_frames <= self.frames

    def collect(self, progress: float | None = None, stopped: Callable[[], bool] = lambda: False) -> TensorDictBase:
        """Collect one rollout at the curriculum's difficulty for `progress`, by default the present progress.

        If `stopped` returns True while this waits for actors, raise NoExperienceError.
        """
        progress = self.progress if progress is None else progress
        prepare = functools.partial(self.curriculum.prepare, progress)
        if isinstance(self.collector, RemoteCollector):
            self.collector.progress, self.collector.stopped = progress, stopped
        return self.collector.rollout(prepare)  # calls it while no env is stepping

    def learn(self, rollout: TensorDictBase) -> dict[str, float]:
        """Update the policy from a rollout; return the learner's metrics."""
        try:
            losses = self.learner.update(rollout, self.progress)
        except FledgeError:
            raise
        except Exception as error:
            raise learner_error(self.cfg.algo, error) from error
        self.iteration += 1
        self.frames += self.frames_per_iteration
        return check_report(losses, self.cfg.algo, {"episodes", "reward", "return", "length", *self.outcomes.values()})

    def episode_metrics(self, rollout: TensorDictBase) -> dict[str, float]:
        """Return metrics over all ranks: of the episodes that ended in a rollout, of env logs, and of the curriculum."""
        outcome, log = rollout["outcome"], self.collector.env_log
        ended = outcome > 0
        sums = [rollout["reward"].sum(), *(sum_where(rollout[f"episode_{x}"], ended) for x in ("return", "length"))]
        outcome, *sums = Fetch([outcome, *sums, *(x for pair in log.values() for x in pair)]).get()  # the only wait
        log = dict(zip(log, zip(sums[3::2], sums[4::2], strict=True), strict=True))
        counts = torch.bincount(outcome.flatten(), minlength=max(self.outcomes) + 1).double()
        if len(counts) > max(self.outcomes) + 1:
            wrong = len(counts) - 1
            raise InputError(
                f"An episode ended with outcome {wrong}, which env.outcomes does not name ({self.outcomes}): add it."
            )
        totals = torch.tensor([*map(float, sums[:3]), len(log)], dtype=torch.float64)
        values = self.ranks.sum(torch.cat([counts, totals])).tolist()
        *by_outcome, reward, returns, length, logged = values
        episodes = sum(by_outcome[1:])
        metrics = {name: by_outcome[value] / max(episodes, 1.0) for value, name in self.outcomes.items()}
        metrics |= {"episodes": episodes, "reward": reward / self.frames_per_iteration}
        metrics |= {"return": returns / max(episodes, 1.0), "length": length / max(episodes, 1.0)}
        metrics |= self._env_metrics(log) if logged else {}  # every rank knows whether any rank logged
        return metrics | self.collector.metrics | self.curriculum.learn(self.policy)

    def _env_metrics(self, log: Log) -> dict[str, float]:
        """Return the finite means of the values that the envs of all ranks logged; {} on ranks other than 0."""
        logs = self.ranks.gather({name: (float(total), float(count)) for name, (total, count) in log.items()})
        means = {name: total / count for name, (total, count) in add_logs(logs).items() if count}
        return {f"env/{name}": float(mean) for name, mean in means.items() if math.isfinite(mean)}

    # ---- saving ------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, Any]:
        """Return the part of the run's state that only this rank has."""
        own = {"collector": self.collector.state_dict(), **random_state(torch.device(self.device))}
        return own | check_state(self.learner.rank_state(), f"rank_state() of algo={self.cfg.algo}", {*own, "cuda_rng"})

    def state_dict(self) -> dict[str, Any]:
        """Return the run's state; its list "ranks" has only this rank's part. `self.parts` adds the other ranks' parts."""
        env = {k.removeprefix("env."): v for k, v in self.settings.items() if k.startswith("env.")}
        return {
            "model": self.policy.state_dict(),
            "learner": check_state(self.learner.state_dict(), f"state_dict() of algo={self.cfg.algo}"),
            "curriculum": self.curriculum.state_dict(),
            "ranks": [self.rank_state()],
            "iteration": self.iteration,
            "frames": self.frames,
            "seconds": self.seconds,
            "task": self.task.reference,
            "policy": self.description,
            "world": {"env": env, "decision_s": self.envs[0].decision_s},
            "config": self.settings,
            "rounding": ROUNDING,
        }

    def load_state_dict(self, state: dict[str, Any]) -> str:
        """Load the state of a saved run; return how the run continues: `EXACT`, or a text on what is different."""
        before = state.get("config", self.settings)
        self._resume_sizes(before, len(state["ranks"]))
        changes = refuse_misfits(before, self.cfg, self.policy.observes)
        if state["policy"] != self.description:
            raise ConfigError(
                f"The run was saved with the policy {state['policy']}, but its env now needs {self.description}: "
                "the weights do not fit. Start a new run."
            )
        self.policy.load_state_dict(state["model"])
        self.learner.load_state_dict(state["learner"])
        self.curriculum.load_state_dict(state.get("curriculum", {}))
        self.iteration, self.frames = int(state["iteration"]), int(state["frames"])
        self.seconds = self.seconds_before = float(state["seconds"])
        restart = list(changes["restart"])
        restart += [] if all(env.resumes_exactly for env in self.envs) else ["env (its state cannot be saved)"]
        restart += ["number of ranks"] if len(state["ranks"]) != self.ranks.size else []
        own = state["ranks"][min(self.ranks.rank, len(state["ranks"]) - 1)]
        if isinstance(self.collector, RemoteCollector) != ("version" in own["collector"]):  # other envs than before
            restart.append("actors.listen")
        if restart:
            lost = f"{self.task.metrics.unit} begin new episodes"
            lost += ", and the replay is empty" if self.cfg.off_policy else ""
            also = f"; also changed: {', '.join(changes['changes'])}" if changes["changes"] else ""
            return f"with another {', '.join(restart)}: {lost}{also}"
        self.collector.load_state_dict(own["collector"])
        self.learner.load_rank_state(own)
        load_random_state(own, torch.device(self.device))
        if self.cfg.actors.listen:
            return "with new rollouts of actors, which connect again by themselves; rollouts on their way were lost"
        return f"with changed {', '.join(changes['changes'])}" if changes["changes"] else EXACT

    def _resume_sizes(self, before: Mapping[str, Any], ranks: int) -> None:
        """Take over the sizes that the run had chosen, unless the ranks cannot share that number of envs."""
        sizes = {name: before[name] for name in self.cfg.auto if name in before}
        if ranks != self.ranks.size and sizes.get("env.num_envs", 0) % env_unit(self.task, self.cfg, self.ranks.size):
            del sizes["env.num_envs"]
        self.resize(sizes)

    def close(self) -> None:
        self.parts.close()
        if isinstance(self.collector, RemoteCollector):
            self.collector.finished = self.finished
        self.collector.shutdown()
        self.learner.close()


def sum_where(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of the values where the mask is true, without waiting for a GPU."""
    return torch.where(mask, values, 0).sum() if values.is_cuda else values[mask].sum()


def check_names(task: Task, env: TensorEnv) -> None:
    """Raise ConfigError if an observation has a reserved name, or the primary metric is neither return nor an outcome."""
    if clash := sorted(TAKEN & {*env.observation_spec}):
        names = ", ".join(clash)
        raise ConfigError(f"The env has an observation named {names}, a name that rollouts use themselves: rename it.")
    if task.primary_metric != "return" and task.primary_metric not in env.outcomes.values():
        known = ", ".join(name for value, name in env.outcomes.items() if value)
        raise ConfigError(
            f"The task's primary_metric is {task.primary_metric!r}, but must be 'return' or an outcome: {known}."
        )


def refuse_misfits(
    before: dict[str, Any], cfg: TrainConfig, observes: tuple[str, ...] | None = None
) -> dict[str, list[str]]:
    """Return the settings that differ from `before`, grouped by their effect on a resumed run (`Resume`)."""
    before = {RENAMED.get(key, key): value for key, value in before.items()}
    for key, value in code_settings(cfg).items():  # whose file may have moved
        if key in before and names_of(before[key]) == names_of(value):
            before[key] = value
    changes = changed_settings(before, cfg, observes=observes)
    others = [f"{algo}." for algo in ALGORITHMS if algo != cfg.algo]  # settings of algorithms that do not run
    refused = [key for key in changes["weights"] if not key.startswith(tuple(others))]
    if refused:
        raise ConfigError(
            f"A run cannot continue with another {', '.join(refused)}: the saved weights do not fit. Start a new run, "
            "with init_from=RUN to begin with the weights of another run."
        )
    return changes


def names_of(value: str | Sequence[str]) -> list[str]:
    """Return references to code without file paths: only the names of the objects."""
    items = [value] if isinstance(value, str) else value
    return [item.rpartition(":")[2] if ".py:" in item else item for item in items]
