"""The Task contract: the members of a task that training, evaluation, export and the browser use.

A task is one object with a core of 12 members:

    name, reference     what users type, and how a saved run finds the task again
    config              dataclass of the env's settings (`env.*`); has `num_envs`; fields made by `core.settings.setting`
    presets             YAML presets, training defaults, other projects' setting names         tasks/presets.py
    env, make_env       the env's class, and a TensorEnv with these settings
    evaluation          the settings of the env that policies are evaluated in
    contract            shapes, units and rates that users of an exported policy need
    policy              networks by description, shipped policies, shields                     tasks/policy_factory.py
    curriculum          difficulty as a function of training progress                          tasks/curriculum.py
    primary_metric      the outcome that counts, or "return"
    pilots              scripted policies by name

and three optional parts, each with defaults that work for any env:

    view                recordings, pictures, the browser, manual control                      tasks/view/base.py
    metrics             episode metrics, classes of episodes, benchmarks, queries, headings     tasks/metrics.py
    match               tasks in which two agents compete (`match.sides` is 2)                 tasks/match.py

A user's own task is an object of this class, or of a subclass, in a Python file:

    task = Task("hover", HoverConfig, HoverEnv)
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.core.config_help import check_config_class
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.core.specs import TensorSpec, tell_spec
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.curriculum import Curriculum
from fledge.tasks.match import MatchRules
from fledge.tasks.metrics import TaskMetrics
from fledge.tasks.policy_factory import PolicyFactory
from fledge.tasks.presets import Presets
from fledge.tasks.view.base import TaskView

MAX_EVAL_ENVS = 256
PARTS = {
    "presets": Presets,
    "policy": PolicyFactory,
    "curriculum": Curriculum,
    "view": TaskView,
    "metrics": TaskMetrics,
    "match": MatchRules,
}


class Task:
    """A task: everything that training, evaluation, export and the browser need to know about an env.

    Args:
        name: Name of the task, in lower case.
        config: Dataclass of the env's settings; must have `num_envs`.
        env: Class of the env, called as `env(cfg, ...)` with the fields of EnvPlacement that its signature names.
        primary_metric: The outcome that counts, or "return".
        parts: Optional parts by keyword: presets, policy, curriculum, view, metrics and match.
    """

    name: str = ""
    config: type = type(None)
    env: Callable[..., TensorEnv] | None = None
    primary_metric: str = "return"
    presets: Presets = Presets()
    policy: PolicyFactory = PolicyFactory()
    curriculum: Curriculum = Curriculum()
    view: TaskView = TaskView()
    metrics: TaskMetrics = TaskMetrics()
    match: MatchRules = MatchRules()

    def __init__(
        self,
        name: str | None = None,
        config: type | None = None,
        env: Callable[..., TensorEnv] | None = None,
        *,
        primary_metric: str | None = None,
        **parts: Any,
    ) -> None:
        self.name, self.config, self.env = name or self.name, config or self.config, env or self.env
        self.primary_metric = primary_metric or self.primary_metric
        if unknown := [part for part in parts if part not in PARTS]:
            raise ConfigError(f"A task has no part {unknown[0]!r}; its parts are {', '.join(PARTS)}.")
        for part, kind in PARTS.items():
            value = parts.get(part, getattr(self, part))
            if not isinstance(value, kind):
                got = value.__name__ if isinstance(value, type) else type(value).__name__
                raise ConfigError(f"{part} of task {self.name!r} must be an object of {kind.__name__}, but is {got}.")
            if part in parts:
                setattr(self, part, value)
        self.reference = self.name
        """How a saved run finds the task again: a registered name, `module:object`, a file, or `gym:ID`."""
        if not dataclasses.is_dataclass(self.config) or "num_envs" not in self.config.__dataclass_fields__:
            raise ConfigError(f"The config of task {self.name!r} must be a dataclass with a field num_envs.")
        check_config_class(self.config, f"The config of task {self.name!r}")

    def make_env(self, cfg: Any, placement: EnvPlacement = EnvPlacement()) -> TensorEnv:
        """Return a new env with these settings."""
        if self.env is None:
            raise ConfigError(f"Task {self.name!r} has no env class: pass one to Task(...), or override make_env.")
        given = dataclasses.asdict(placement)
        if placement.held_out:
            given["seed"] = derive_seed(placement.seed, Purpose.HELD_OUT)
        named = inspect.signature(self.env).parameters
        return self.env(cfg, **{key: value for key, value in given.items() if key in named})

    def evaluation(self, cfg: Any) -> Any:
        """Return the settings of the env that a policy trained with `cfg` is evaluated in."""
        return dataclasses.replace(cfg, num_envs=min(cfg.num_envs, MAX_EVAL_ENVS))

    def contract(self, cfg: Any) -> dict[str, Any]:
        """Return what other programs must know to run a policy: inputs, outputs and decision rate; exported files hold it.

        Keys are "task", "decision_s", "observation" and "action"; tasks add units, coordinate frames and rates.
        """
        with contextlib.closing(self.make_env(dataclasses.replace(cfg, num_envs=self.match.rows(cfg)))) as env:
            action, observation = env.action_spec, env.observation_spec
            parts = {"action": action} if isinstance(action, TensorSpec) else dict(action)
            told = {"task": self.name, "decision_s": env.decision_s}
            told["observation"] = {name: tell_spec(spec) for name, spec in observation.items()}
            return told | {"action": {name: tell_spec(spec) for name, spec in parts.items()}}

    def pilots(self) -> Mapping[str, Callable[..., BaseAgent]]:
        """Return by name a callable that makes each scripted policy; the policy's parameters are keywords of the call."""
        return {}


def check_env(task: Task, cfg: Any, env: Any) -> Any:
    """Return `env`, the result of `task.make_env(cfg)`; raise ConfigError unless it is a TensorEnv of `cfg.num_envs` rows."""
    if not isinstance(env, TensorEnv):
        raise ConfigError(f"make_env of task {task.name!r} must return a TensorEnv, but returned {type(env).__name__}.")
    if env.num_envs != cfg.num_envs:
        raise ConfigError(
            f"make_env of task {task.name!r} must return cfg.num_envs = {cfg.num_envs} envs, but returned {env.num_envs}."
        )
    return env
