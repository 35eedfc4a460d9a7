"""A run: everything one rank needs to train, how it starts, and how it is saved and restored, exactly.

A run lives in a folder: `config.yaml` (resolved), `metrics.csv`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from fledge.agents.build import build_from_description
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.sim.launch import default_threads
from fledge.tasks.navigation import NavigationEnv, Outcome
from fledge.train.algorithms import describe_policy, make_collector, make_learner
from fledge.train.config import Algo, CollectMode, TrainConfig
from fledge.train.ranks import Ranks

# Settings that change nothing that is computed; how many ranks there really are is looked at itself.
HARMLESS = {
    "ranks",
    "max_minutes",
    "init_from",
    "tensorboard",
    "wandb.mode",
    "wandb.project",
    "log_interval",
    "save_interval",
    "keep_checkpoints",
    "keep_best",
    "compress_checkpoint",
    "async_checkpoint_queue_size",
    "save_compression_level",
    "rollout_save_interval",
    "rollout_compression_level",
    "eval_interval",
    "eval_episodes",
}
OUTCOMES = [o.name.lower() for o in Outcome if o]


class Run:
    """Env, policy, learner and collector of one rank, and the counters of the run."""

    def __init__(self, cfg: TrainConfig, ranks: Ranks) -> None:
        cfg.validate()
        self.cfg, self.ranks = cfg, ranks
        self.settings = flat_settings(cfg)
        self.iteration = self.frames = 0
        self.seconds = 0.0
        # All ranks build the same weights, then draw their own actions and minibatches.
        torch.manual_seed(derive_seed(cfg.seed, Purpose.WEIGHTS))
        self.description = describe_policy(cfg)
        self.policy = build_from_description(self.description).to(cfg.device)
        if cfg.compile:
            self.policy.compile()
        self.learner = make_learner(cfg, self.policy, ranks)
        torch.manual_seed(derive_seed(cfg.seed, Purpose.POLICY, ranks.rank))
        self.envs = make_rank_envs(cfg, ranks)
        self.collector = make_collector(cfg, self.envs, self.policy, self.learner)
        self.frames_per_iteration = sum(env.num_envs for env in self.envs) * cfg.steps * ranks.size

    @property
    def iterations_left(self) -> int:
        return max(0, -(-(self.cfg.total_frames - self.frames) // self.frames_per_iteration))

    @property
    def total_iterations(self) -> int:
        return self.iteration + self.iterations_left

    @property
    def progress(self) -> float:
        """Share of training done, 0 to 1 at the last iteration."""
        last = self.frames + (self.iterations_left - 1) * self.frames_per_iteration
        return min(1.0, self.frames / max(1, last))

    @property
    def finished(self) -> bool:
        return not self.iterations_left

    @property
    def out_of_time(self) -> bool:
        return 0 < self.cfg.max_minutes * 60 < self.seconds

    def collect(self) -> TensorDictBase:
        """Fly one rollout under the curriculum."""
        ramp, start = self.cfg.curriculum.ramp, self.cfg.curriculum.movers_start
        share = 1.0 if ramp <= 0 else min(1.0, start + (1 - start) * self.progress / ramp)

        def prepare() -> None:
            for env in self.envs:
                env.bank.set_movers_share(share)

        return self.collector.rollout(prepare)  # which knows when no env is in the air

    def learn(self, rollout: TensorDictBase) -> dict[str, float]:
        """Update the policy from a rollout."""
        losses = self.learner.update(rollout, self.progress)
        self.iteration += 1
        self.frames += self.frames_per_iteration
        return losses

    def episode_metrics(self, rollout: TensorDictBase) -> dict[str, float]:
        """Counts and means of the episodes that ended in a rollout, over all ranks."""
        outcome = rollout["outcome"]
        ended = outcome > 0
        counts = torch.bincount(outcome.flatten(), minlength=len(Outcome)).double()
        sums = [
            rollout["reward"].sum(),
            rollout["episode_return"][ended].sum(),
            rollout["episode_length"][ended].sum(),
        ]
        values = self.ranks.sum(torch.cat([counts, torch.stack([s.double() for s in sums])]).cpu()).tolist()
        episodes = max(sum(values[1:6]), 1.0)
        metrics = {name: values[i + 1] / episodes for i, name in enumerate(OUTCOMES)}
        metrics |= {"episodes": sum(values[1:6]), "reward": values[6] / self.frames_per_iteration}
        metrics |= {"return": values[7] / episodes, "length": values[8] / episodes}
        return metrics

    # ---- saving ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The whole run on rank 0 (what belongs to other ranks is gathered); an empty dict elsewhere."""
        mine = {"collector": self.collector.state_dict(), "rng": torch.get_rng_state()} | self.learner.rank_state()
        if self.cfg.device.startswith("cuda"):
            mine["cuda_rng"] = torch.cuda.get_rng_state()
        everyone = self.ranks.gather(mine)
        if not self.ranks.is_first:
            return {}
        return {
            "model": self.policy.state_dict(),
            "learner": self.learner.shared_state(),
            "ranks": everyone,
            "iteration": self.iteration,
            "frames": self.frames,
            "seconds": self.seconds,
            "task": self.cfg.task,
            "policy": self.description,
            "config": self.settings,
        }

    def load_state_dict(self, state: dict[str, Any]) -> str:
        """Continue from a saved run. Returns how: "bit for bit", or what is different."""
        if state["task"] != self.cfg.task:
            raise ConfigError(f"The checkpoint is of task {state['task']!r}, this run of {self.cfg.task!r}.")
        now = self.settings
        before = state.get("config", now)  # older checkpoints do not tell
        changed = [key for key, value in now.items() if before.get(key, value) != value and key not in HARMLESS]
        refuse_misfits(before, now)
        self.policy.load_state_dict(state["model"])
        self.learner.load_shared_state(state["learner"])
        self.iteration, self.frames = int(state["iteration"]), int(state["frames"])
        self.seconds = float(state["seconds"])
        anew = [key for key in changed if key in ("collect.mode", "env.num_envs")]
        anew += ["number of ranks"] if len(state["ranks"]) != self.ranks.size else []
        if not anew:
            mine = state["ranks"][self.ranks.rank]
            self.collector.load_state_dict(mine["collector"])
            self.learner.load_rank_state(mine)
            torch.set_rng_state(mine["rng"].cpu())
            if "cuda_rng" in mine:
                torch.cuda.set_rng_state(mine["cuda_rng"].cpu())
        if anew:
            lost = "drones start anew" + (", and the replay is empty" if self.cfg.algo is not Algo.ppo else "")
            return f"with another {', '.join(anew)}: {lost}"
        return f"with changed {', '.join(changed)}" if changed else "bit for bit"

    def close(self) -> None:
        self.collector.shutdown()
        self.learner.close()


def flat_settings(cfg: TrainConfig) -> dict[str, Any]:
    """Every setting by its dotted key, as plain values."""

    def flat(part: Any, prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if dataclasses.is_dataclass(value):
                found |= flat(value, f"{prefix}{field.name}.")
            else:
                found[prefix + field.name] = value.name if isinstance(value, enum.Enum) else value
        return found

    return flat(cfg, "")


def refuse_misfits(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """ConfigError if a run with settings `before` cannot go on with those of `now`: its weights would not fit."""
    fixed = ("algo", "policy.", f"{now['algo']}.critic_hidden")
    if refused := [key for key, value in now.items() if key.startswith(fixed) and before.get(key, value) != value]:
        raise ConfigError(
            f"A run cannot go on with another {', '.join(refused)}: the saved weights do not fit. Start a new run; "
            "init_from takes over the weights of a policy."
        )


def make_rank_envs(cfg: TrainConfig, ranks: Ranks) -> list[NavigationEnv]:
    """This rank's share of the drones (in two envs, where halves take turns), with a bank of maps of its own."""
    parts = 2 if cfg.collect.mode is CollectMode.halves else 1
    share = cfg.env.num_envs // ranks.size // parts
    spare = max(1, default_threads() - 1) if parts > 1 else None  # halves: one core decides meanwhile
    return [
        NavigationEnv(
            dataclasses.replace(cfg.env, num_envs=share),
            device=cfg.device,
            seed=cfg.seed,
            num_threads=1 if ranks.size > 1 else spare,
            env_offset=ranks.rank * share * parts + part * share,
            total_envs=cfg.env.num_envs,
            bank=ranks.rank,
        )
        for part in range(parts)
    ]
