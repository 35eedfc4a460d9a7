"""The Task contract: all that the rest of the house may ask about a world, in one object.

    config           dataclass of the world's settings (`env.*`), with `num_envs`; fields made by `core.settings.setting`
    policy_config    settings of its networks (`policy.*`)          curriculum_config   of its curriculum (`curriculum.*`)
    training         what training starts from, under any preset    policies            folder of shipped NAME.fledge
    presets          folder with train/NAME.yaml and env/NAME.yaml
    make_env         a TensorEnv of these settings                  evaluation          the world that policies are judged in
    describe_policy, build_policy                                   what a policy is, as plain values, and back
    set_progress     the curriculum, as a function of progress      with_reward         where it pays by a user's reward
    headline         the outcome that counts, or "return"           labels              short headings of outcomes
    pilots           scripted agents by name                        gauge               figures of how episodes went
    classes          kinds of episodes that are told apart          classify            which kind each env's episode is
    sides, matches   of worlds in which agents meet: how many to an episode, and envs with all sides open
    umpire, behaviour                                               of such worlds: how each side fought
    contract         what an exported policy's user must know
    aliases, faces   other people's names, of settings and of the env
    scene, snapshot, draw, objects                                  for pictures, recordings, the browser and other programs
    draw_closely, explain                                           one recorded episode, and why it was lost
    stage, actors, crowd, beams, instruments, stage_of              a recorded episode as something to look at (tasks.stage)
    controls, command, hold                                         what a person's hands move, and the action that it means
    graph                                                           what a moment means, for a display

A user's own world is an object of this class, or of a subclass, in a Python file:

    task = Task("hover", HoverConfig, HoverEnv)

Everything has a default that works; a world overrides what it knows better.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents import build
from fledge.agents.base import BaseAgent
from fledge.agents.build import LearnedPolicy
from fledge.agents.policy_file import is_past_self, load_weights, read_policy
from fledge.core.code import find_object
from fledge.core.errors import ConfigError
from fledge.core.overrides import check_config_class, read_yaml
from fledge.core.random import Purpose, derive_seed
from fledge.core.specs import ActionSpec, TensorSpec, tell_spec
from fledge.envs.base import TensorEnv
from fledge.tasks.match import MatchStats
from fledge.tasks.parts import (
    Benchmark,
    EpisodeMetrics,
    LossReason,
    NoCurriculum,
    PolicyConfig,
    Trajectory,
    World,
    shapes_of,
)
from fledge.tasks.view.base import TaskView

__all__ = [
    "Benchmark",
    "EpisodeMetrics",
    "LossReason",
    "NoCurriculum",
    "PolicyConfig",
    "Task",
    "Trajectory",
    "World",
    "shapes_of",
]
MAX_EVAL_ENVS = 256


class Task(TaskView):
    """A world. See the head of this module.

    Args:
        name: How it is called; in lower case.
        config: Dataclass of its settings; must have `num_envs`.
        env: Class of the env, called as `env(cfg, device=..., seed=..., ...)` with those of make_env's arguments that its
            signature names.
    """

    name: str = ""
    config: type = type(None)
    env: Callable[..., TensorEnv] | None = None
    policy_config: type = PolicyConfig
    curriculum_config: type = NoCurriculum
    training: Mapping[str, Any] = {}
    """Settings that training starts from where they differ from the general ones, as a preset has them."""
    presets: Path | None = None
    policies: Path | None = None
    aliases: Mapping[str, str] = {}
    faces: Mapping[str, str] = {}
    """Other people's names for this world's env, and the objects of ours that answer to them: module:object."""
    primary_metric: str = "return"
    labels: Mapping[str, str] = {}
    classes: Sequence[str] = ()
    """Kinds of episodes whose results are told apart; the hardest first."""
    figures: Mapping[str, str] = {}
    """Headings of the gauge's figures that a table shows."""
    legend: str = ""
    """What a reader of that table should know."""
    eval_preset: str | None = None
    """The env preset whose result a report leads with, besides the policy's own world."""
    unit: str = "envs"
    shields: Sequence[str] = ()
    """What may stand between a policy and what it flies, by name (`shielded`)."""
    benchmarks: Mapping[str, Benchmark] = {}
    """Protocols of the field that policies are compared by."""
    sides: int = 1
    """With 2, an episode is a match: agents are judged against each other, in a cross-table."""
    behaviours: Mapping[str, str] = {}
    """Headings of `behaviour`'s figures that a table shows; of shares, with a %."""
    key_metrics: Sequence[str] = ()
    """Those of them that a report leads with."""
    behaviour_legend: str = ""
    """What a reader of that table should know."""

    def __init__(
        self, name: str | None = None, config: type | None = None, env: Callable[..., TensorEnv] | None = None
    ) -> None:
        self.name, self.config, self.env = name or self.name, config or self.config, env or self.env
        self.reference = self.name
        """What finds this task again: a registered name, `module:object`, a file, or `gym:ID`."""
        if not dataclasses.is_dataclass(self.config) or "num_envs" not in self.config.__dataclass_fields__:
            raise ConfigError(f"The config of task {self.name!r} must be a dataclass with a field num_envs.")
        check_config_class(self.config, f"The config of task {self.name!r}")

    # ---- the env ---------------------------------------------------------------------------------------------------

    def make_env(
        self,
        cfg: Any,
        *,
        device: str = "cpu",
        seed: int = 0,
        num_threads: int | None = None,
        env_offset: int = 0,
        total_envs: int | None = None,
        rank: int = 0,
        held_out: bool = False,
    ) -> TensorEnv:
        """An env of these settings.

        Args:
            env_offset, total_envs: Place of this env's first member in a population spread over several envs.
            rank: Which process asks, where each has maps of its own.
            held_out: For evaluation: nothing that any training has met.
        """
        assert self.env is not None, f"task {self.name} has no env class, so it must define make_env"
        given = {
            "device": device,
            "seed": derive_seed(seed, Purpose.HELD_OUT) if held_out else seed,
            "num_threads": num_threads,
            "env_offset": env_offset,
            "total_envs": total_envs,
        }
        named = inspect.signature(self.env).parameters
        return self.env(cfg, **{k: v for k, v in given.items() if k in named})

    def with_reward(self, cfg: Any, reference: str) -> Any:
        """Settings in which the env itself pays by a reward that the user names; None where it has no rewards of that kind.

        Raises:
            ConfigError: when there is no such object, or it cannot be made.
        """
        return None

    def specs(self, cfg: Any) -> tuple[dict[str, TensorSpec], ActionSpec]:
        """What envs of these settings observe and take."""
        env = self.make_env(dataclasses.replace(cfg, num_envs=self.sides))
        try:
            return env.observation_spec, env.action_spec
        finally:
            env.close()

    def contract(self, cfg: Any) -> dict[str, Any]:
        """What other programs must know to fly a policy of this world, JSON-able; an exported file carries it.

        "task", "decision_s", "observation" and "action" by name; a world adds units, frames, and what it knows better.
        """
        env = self.make_env(dataclasses.replace(cfg, num_envs=self.sides))
        try:
            action = env.action_spec
            parts = {"action": action} if isinstance(action, TensorSpec) else dict(action)
            return {
                "task": self.name,
                "decision_s": env.decision_s,
                "observation": {name: tell_spec(spec) for name, spec in env.observation_spec.items()},
                "action": {name: tell_spec(spec) for name, spec in parts.items()},
            }
        finally:
            env.close()

    def evaluation(self, cfg: Any) -> Any:
        """Settings of the world that a policy trained with `cfg` is judged in."""
        return dataclasses.replace(cfg, num_envs=min(cfg.num_envs, MAX_EVAL_ENVS))

    def matches(self, cfg: Any, count: int) -> Any:
        """Settings of `count` episodes at once whose sides are all flown by the caller, row by row (`TensorEnv.group`)."""
        return dataclasses.replace(cfg, num_envs=self.sides * count)

    def enable_observations(self, cfg: Any, agent: BaseAgent) -> Any:
        """A world with all that an agent must observe switched on, where it can be."""
        return cfg

    def make_face(self, name: str, *args: Any, **options: Any) -> Any:
        """The world as another project's users know it, under the `name` they know (`faces`)."""
        if name not in self.faces:
            raise ConfigError(f"{self.name} is not known as {name} to anybody.")
        return find_object(self.faces[name])(*args, **options)

    def set_progress(self, env: TensorEnv, curriculum: Any, progress: float) -> None:
        """Make an env, which rests, as hard as it is to be at this share of training, 0 to 1."""

    def world_facts(self, cfg: Any) -> dict[str, Any]:
        """What a table of results says about the world."""
        return {}

    def world_label(self, cfg: Any) -> str:
        """The world in a word, for tables and pictures."""
        return self.name

    # ---- policies --------------------------------------------------------------------------------------------------

    def describe_policy(self, algo: str, env: Any, policy: Any) -> dict[str, Any]:
        """The description of the network that an algorithm ("ppo", "sac", "td3", "dqn") learns with in this world.

        Raises:
            ConfigError: when algorithm, network and world do not go together.
        """
        observation, action = self.specs(env)
        return build.describe(algo, observation, action, policy.hidden, policy.normalize, policy.beta)

    def build_policy(self, description: Mapping[str, Any]) -> LearnedPolicy:
        """A new policy from its description."""
        return build.build_from_description(description)

    def pilots(self) -> Mapping[str, Callable[[], BaseAgent]]:
        """Scripted agents by name."""
        return {}

    def find_pilot(self, name: str) -> BaseAgent | None:
        """The scripted agent of this name, which may carry parameters; None if there is none."""
        pilots = self.pilots()
        return pilots[name]() if name in pilots else None

    def find_agent(self, name: str) -> BaseAgent | None:
        """The agent of this name: a pilot, a shipped policy, a .fledge file, a run's folder, RUN#3; None: there is none."""
        if (pilot := self.find_pilot(name)) is not None:
            return pilot
        path = Path(name)
        if self.policies is not None and path.name == name and (self.policies / f"{name}.fledge").exists():
            path = self.policies / f"{name}.fledge"
        if path.suffix != ".fledge" and not path.is_dir() and not is_past_self(path):
            return None
        entries = read_policy(path)
        if entries["task"] != self.reference:
            raise ConfigError(f"{name} belongs to the task {entries['task']}, not to {self.reference}.")
        return load_weights(self.build_policy(entries["policy"]), entries["model"], name).eval()

    def shielded(self, agent: BaseAgent, shield: str) -> BaseAgent:
        """An agent whose actions go through a shield, by its name."""
        raise ConfigError(f"{self.name} has no shields: leave out --shield.")

    def load_foreign(self, path: Path) -> BaseAgent:
        """A policy from another project's `.pt` file."""
        raise ConfigError(f"{path} is a .pt file, but {self.name} knows no other project's policies: give a .fledge.")

    def default_env_config(self, agent: BaseAgent) -> World | None:
        """Where a scripted or foreign agent is at home; None: anywhere."""
        return None

    def check_fit(self, agent: BaseAgent, env: TensorEnv) -> None:
        """ConfigError unless an agent can read what an env observes."""
        missing = [name for name in agent.observes if name not in env.observation_spec]
        if missing:
            raise ConfigError(f"{agent.get_name()} reads {', '.join(missing)}, which this env does not observe.")
        made_for: Mapping[str, TensorSpec] = getattr(agent, "reads", {})
        for name, spec in made_for.items():
            seen = env.observation_spec[name]
            if (seen.shape, seen.num_values) != (spec.shape, spec.num_values):
                raise ConfigError(
                    f"{agent.get_name()} reads {name} of shape {spec.shape}, but this env observes {seen.shape}: it was "
                    "trained in another world."
                )
        acts: ActionSpec | None = getattr(agent, "acts", None)
        if acts is not None and shapes_of(acts) != shapes_of(env.action_spec):
            raise ConfigError(
                f"{agent.get_name()} acts with {shapes_of(acts)}, but this env takes {shapes_of(env.action_spec)}: it was "
                "trained in another world."
            )

    # ---- judging ---------------------------------------------------------------------------------------

    def episode_metrics(self) -> EpisodeMetrics:
        """What follows the episodes of an evaluation and tells how they went."""
        return EpisodeMetrics()

    def match_stats(self, env: TensorEnv) -> MatchStats:
        """What follows matches that have just begun, all sides flown by the caller, and notes how each side fights."""
        return MatchStats()

    def behaviour(self, notes: Mapping[str, np.ndarray]) -> dict[str, float | None]:
        """Figures of how a side fought, from its umpire's notes of some fights, [fights] each."""
        return {}

    def classify(self, env: TensorEnv) -> Tensor:
        """Which of `classes` each env's present episode belongs to, [N] int64 on the CPU."""
        return torch.zeros(env.num_envs, dtype=torch.int64)

    def recorded(self) -> list[dict[str, Any]]:
        """Rows of `fledge eval` of other people's policies, for comparison where their files are not at hand."""
        return []

    # ---- presets ---------------------------------------------------------------------------------------------------

    def preset_names(self, group: str) -> list[str]:
        """Names of this task's presets: of the group "train" or "env"."""
        folder = None if self.presets is None else self.presets / group
        return sorted(p.stem for p in folder.glob("*.yaml")) if folder is not None and folder.is_dir() else []

    def preset(self, group: str, name: str) -> dict[str, Any]:
        """The content of a preset, or of a YAML file given by path."""
        if name.endswith((".yaml", ".yml")):
            path = Path(name)
        else:
            if name not in self.preset_names(group):
                known = ", ".join(self.preset_names(group)) or "none"
                raise ConfigError(f"There is no {group} preset {name!r} of {self.name}; there are: {known}.")
            assert self.presets is not None
            path = self.presets / group / f"{name}.yaml"
        if not path.is_file():
            raise ConfigError(f"There is no preset file {path}.")
        return read_yaml(path)

    def default_preset(self, algo: str) -> str | None:
        """The training preset of an algorithm, if nobody names one."""
        names = self.preset_names("train")
        return algo if algo in names else "fast" if "fast" in names else None
