"""LoadedPolicy: an agent with its task and the env that it was trained in."""

from __future__ import annotations

import contextlib
import dataclasses
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.core.errors import InputError
from fledge.core.machine import pick_device
from fledge.core.overrides import build_config, changes_of, from_plain, nested
from fledge.core.settings import check_settings
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.tasks.base import Task
from fledge.tasks.envs import env_config, env_overrides
from fledge.tasks.policy_factory import TrainedEnv


@dataclass
class LoadedPolicy:
    """A policy that `fledge.load_policy` has loaded.

    Example:
        >>> policy = fledge.load_policy("fledge-nav")
        >>> env = policy.make_env(num_envs=8)
        >>> action = policy.act(env.reset()["obs"])

    Attributes:
        name: Name or path as passed to `load_policy`.
        agent: The network or scripted policy itself, a torch module.
        task: The task that the policy belongs to.
        env: Settings of the env that the policy was trained in, and seconds per decision; None if it fits any env of
            the task.
    """

    name: str
    agent: BaseAgent
    task: Task
    env: TrainedEnv | None
    _shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def observes(self) -> tuple[str, ...]:
        """Names of the observations that the policy reads."""
        return self.agent.observes

    def act(self, obs: Mapping[str, Any] | TensorDictBase, deterministic: bool = True) -> Any:
        """Return the actions for a batch of observations, or the action for a single observation.

        A recurrent policy remembers the episode of each row until `reset`: pass the rows of all envs, in the same order.

        Args:
            obs: Arrays or tensors by name, [B, ...] each, or without the batch axis for a single observation. Entries that
                the policy does not read are ignored.
            deterministic: Take the mean action instead of sampling.

        Returns:
            Actions [B, ...], or one action without the batch axis; a NumPy array if all observations are NumPy arrays, else
            a tensor. If the task's action has parts, a dict of such arrays.

        Raises:
            InputError: if an observation is missing or has a wrong shape.
        """
        arrays = {name: obs[name] for name in obs.keys()}  # noqa: SIM118  a TensorDict iterates over rows
        shapes = self._input_shapes()
        if missing := [name for name in shapes if name not in arrays]:
            raise InputError(
                f"{self.name} reads {', '.join(shapes)}, but obs has {', '.join(arrays) or 'nothing'}: "
                f"{', '.join(missing)} is missing. Pass every entry that the policy reads."
            )
        is_numpy = not any(isinstance(arrays[name], Tensor) for name in shapes)
        tensors = {name: torch.as_tensor(arrays[name]) for name in shapes}
        single = bool(shapes) and all(tuple(tensors[name].shape) == shape for name, shape in shapes.items())
        batch = () if single else tuple(next(iter(tensors.values())).shape[:1]) if tensors else ()
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != (*batch, *shape):
                raise InputError(
                    f"obs[{name!r}] has shape {tuple(tensors[name].shape)}, but {self.name} reads "
                    f"[B, {', '.join(map(str, shape))}] with the same B for all entries, or {list(shape)} for a single "
                    "observation."
                )
        device = self.agent.device
        given = {name: (value[None] if single else value).to(device) for name, value in tensors.items()}
        with torch.no_grad():
            action: Any = self.agent.act(given, deterministic)
        return _like(action, is_numpy, single)

    def reset(self, env_mask: Tensor | None = None) -> None:
        """Clear the policy's memory, if it has one, in all envs or where the mask is true. Call this when episodes begin."""
        self.agent.reset(env_mask)

    def make_env(self, num_envs: int | None = None, device: str = "auto", seed: int = 0, **settings: Any) -> TensorEnv:
        """Make envs with the settings that the policy was trained with, changed by `settings` (as in `fledge.make_env`)."""
        cfg = self.env_config(**(settings if num_envs is None else {**settings, "num_envs": num_envs}))
        place = pick_device(device, torch.cuda.device_count())
        env = self.task.make_env(cfg, EnvPlacement(device=place, seed=seed))
        self.agent.bind(env)
        return env

    def env_config(self, **settings: Any) -> Any:
        """Return the config of the env that the policy was trained in, else the task's default config, changed by settings."""
        if self.env is None:
            cfg = env_config(self.task, None, settings)
        else:
            trained: Any = from_plain(self.task.config, nested(self.env.settings))
            words = env_overrides(self.task, settings)
            layers = [("the policy's env", changes_of(trained))]
            cfg = build_config(self.task.config, layers, words, self.task.presets.aliases, prefix="env.")
            check_settings(cfg, "env.")
        return self.task.policy.enable_observations(cfg, self.agent)

    def _input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each observation that the policy reads, without the batch axis.

        An agent whose shapes depend on the env is first bound to one (`BaseAgent.bind`).
        """
        if not self._shapes and self.agent.observes:
            needs_env = type(self.agent).bind is not BaseAgent.bind
            needs_env |= type(self.agent).example_inputs is BaseAgent.example_inputs
            if needs_env:
                cfg = self.env_config()
                cfg = dataclasses.replace(cfg, num_envs=self.task.match.rows(cfg))
                with contextlib.closing(self.task.make_env(cfg)) as env:
                    self.agent.bind(env)
                    self._shapes = {name: tuple(env.observation_spec[name].shape) for name in self.agent.observes}
            else:
                examples = self.agent.example_inputs(1)
                self._shapes = {name: tuple(examples[name].shape[1:]) for name in self.agent.observes}
        return self._shapes

    def __repr__(self) -> str:
        rate = f", {self.env.decision_s:g} s per decision" if self.env is not None and self.env.decision_s else ""
        return f"LoadedPolicy({self.name!r}, task={self.task.name!r}, reads {', '.join(self.observes)}{rate})"

    def _repr_html_(self) -> str:
        count = sum(parameter.numel() for parameter in self.agent.parameters())
        facts = {"task": self.task.name, "class": type(self.agent).__name__, "reads": ", ".join(self.observes)}
        facts |= {"parameters": f"{count:,}"} if count else {"kind": "scripted"}
        if self.env is not None and self.env.decision_s:
            facts["seconds per decision"] = f"{self.env.decision_s:g}"
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>"
            for k, v in facts.items()
        )
        return f"<div><b>Policy <code>{html.escape(self.name)}</code></b><table>{rows}</table></div>"


def _like(action: Any, is_numpy: bool, single: bool) -> Any:
    """Return an action, or a dict of its parts: as NumPy arrays if `is_numpy`, without the batch axis if `single`."""
    if isinstance(action, Mapping | TensorDict):
        return {name: _like(action[name], is_numpy, single) for name in action.keys()}  # noqa: SIM118
    part = action[0] if single else action
    return np.asarray(part.cpu()) if is_numpy else part
