"""Policies by name or path, each with its task and its world: shipped ones, runs, policy files, foreign files, pilots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.agents.export import export_agent, write_golden
from fledge.agents.policy_file import is_past_self, load_weights, policy_entries, read_policy, write_policy
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, from_plain, nested, to_plain
from fledge.core.settings import changed_settings, check_settings, flat_settings, refuse_code
from fledge.tasks.base import Task, World
from fledge.tasks.registry import find_named_task, find_task, is_code, task_names

EXPORTED = (".onnx", ".ts", ".npz")  # what `fledge export` writes for other programs


@dataclass
class LoadedPolicy:
    """An agent, what it flies, and where it was trained (None: anywhere)."""

    name: str
    agent: BaseAgent
    task: Task
    world: World | None


def shipped_policies(task: Task) -> dict[str, Path]:
    """Policies that come with a task, by name."""
    return {} if task.policies is None else {p.stem: p for p in sorted(task.policies.glob("*.fledge"))}


def find_policy_file(name: str) -> Path | None:
    """The file of a shipped policy's name, or the path itself (or RUN#3), if there is one."""
    for task_name in task_names():
        if name in (shipped := shipped_policies(find_named_task(task_name))):
            return shipped[name]
    return Path(name) if Path(name).exists() or is_past_self(Path(name)) else None


def load_policy(name: str, task: Task | None = None) -> LoadedPolicy:
    """The policy called `name`: a shipped one, a pilot, a run's folder, a policy file, or another project's `.pt`.

    RUN#3 is the third past self of a league's run.
    With a shield of its task behind a plus, it flies behind that: `fledge-nav+planner`.

    Args:
        task: Whose pilots and foreign files are meant, and whose code may run; by default navigation for those, and the
            task that the file names for others.
    """
    chosen = task or find_task("navigation")
    bare, plus, shield = name.rpartition("+")
    if plus and shield in chosen.shields and not Path(name).exists():
        return put_shield(load_policy(bare, task), shield)
    if (pilot := chosen.find_pilot(name)) is not None:
        return LoadedPolicy(name, pilot, chosen, chosen.default_env_config(pilot))
    path = find_policy_file(name)
    if path is None:
        known = ", ".join([*chosen.pilots(), *shipped_policies(chosen)])
        raise ConfigError(
            f"There is no policy {name!r}: give a run's folder, a .fledge or .pt file"
            + (f", or one of {known}." if known else ".")
        )
    if path.suffix in EXPORTED:
        raise ConfigError(f"{name} is an exported policy, which cannot be flown here: give the run or a .fledge.")
    if path.suffix == ".pt":
        return load_foreign(name, chosen)
    return build_policy(read_policy(path), name, task)


def put_shield(policy: LoadedPolicy, shield: str) -> LoadedPolicy:
    """The policy behind a shield of its task."""
    agent = policy.task.shielded(policy.agent, shield)
    return dataclasses.replace(policy, name=f"{policy.name}+{shield}", agent=agent)


def load_foreign(name: str, task: Task) -> LoadedPolicy:
    """The policy in another project's file, whatever it is called."""
    agent = task.load_foreign(Path(name))
    return LoadedPolicy(name, agent, task, task.default_env_config(agent))


def build_policy(state: dict[str, Any], name: str, task: Task | None = None) -> LoadedPolicy:
    """The policy in a saved state, with its weights, task and world."""
    entries = policy_entries(state, name)
    if task is None:
        task = find_named_task(entries["task"], asked_by=name)
    elif not may_be(entries["task"], task):
        raise ConfigError(f"{name} belongs to the task {entries['task']}, not to {task.reference}.")
    agent = load_weights(task.build_policy(entries["policy"]), entries["model"], name).eval()
    world = entries.get("world")
    return LoadedPolicy(name, agent, task, None if world is None else World(dict(world["env"]), world["decision_s"]))


def may_be(reference: str, task: Task) -> bool:
    """Whether a saved reference may mean this task: the same, or code that may have moved; specs tell then."""
    return reference == task.reference or (is_code(reference) and is_code(task.reference))


# ---- where a policy flies --------------------------------------------------------------------------------------------


@dataclass
class Flight:
    """The world that a policy is judged in, and how it differs from where it was trained."""

    cfg: Any
    changed: dict[str, tuple[Any, Any]]  # setting -> (trained with, flown with), of what was overridden

    def notice(self) -> str | None:
        """What to tell about the difference."""
        if not self.changed:
            return None
        parts = [f"env.{key}={new} (trained with {old})" for key, (old, new) in self.changed.items()]
        return f"flown with {', '.join(parts)}"


def flight_world(
    policy: LoadedPolicy, preset: str | None = None, overrides: Sequence[str] = (), home: World | None = None
) -> Flight:
    """The world that a policy is judged in: its own, made into the task's evaluation, with overrides on top.

    Args:
        preset: A preset of the task: what it names is changed in the policy's own world.
        overrides: `env.key=value` words.
        home: Where a policy flies that is at home anywhere.

    Raises:
        ConfigError: when an override changes what the policy's weights depend on.
    """
    task, world = policy.task, policy.world or home
    trained = from_plain(task.config, nested(world.env)) if world is not None else default_world(task)
    cfg = task.evaluation(trained)
    if preset is not None:
        layers = [("the policy's world", to_plain(trained)), (f"preset {preset}", task.preset("env", preset))]
        cfg = task.evaluation(build_config(task.config, layers, []))
    words = [check_env_word(word, task) for word in overrides]
    cfg = build_config(task.config, [("the policy's world", to_plain(cfg))], words, task.aliases, prefix="env.")
    check_settings(cfg, "env.")
    refuse_code(cfg, words, "env.")
    changed: dict[str, tuple[Any, Any]] = {}
    if policy.world is not None:
        before, judged = flat_settings(trained), flat_settings(task.evaluation(trained))
        kinds = changed_settings(before, cfg, observes=policy.agent.observes)
        if bad := kinds["weights"]:
            wrong = ", ".join(f"env.{key}={flat_settings(cfg)[key]} (trained with {before[key]})" for key in bad)
            raise ConfigError(f"{policy.name} cannot fly with {wrong}: its weights depend on it. Train another policy.")
        now = flat_settings(cfg)
        asked = [key for key in now if now[key] != judged[key] and key != "num_envs"]
        changed = {key: (before[key], now[key]) for key in asked if now[key] != before[key]}
    return Flight(task.enable_observations(cfg, policy.agent), changed)


def default_world(task: Task) -> Any:
    """The task's `default` preset, or its plain defaults."""
    presets = [("preset default", task.preset("env", "default"))] if "default" in task.preset_names("env") else []
    return build_config(task.config, presets, [])


def check_env_word(word: str, task: Task) -> str:
    """An override of the env; ConfigError for other settings, which an evaluation does not have."""
    key, sign, _ = word.partition("=")
    if not task.aliases.get(key, key).startswith("env.") or not sign:
        raise ConfigError(f"{word!r} does not fit an evaluation: give settings of the world, env.key=value.")
    return word


# ---- export ----------------------------------------------------------------------------------------------------------


def export_policy(
    name: str, path: Path, task: Task | None = None, overrides: Sequence[str] = (), golden: Path | None = None
) -> dict[str, Any]:
    """Write the policy called `name` to a file: .onnx or .ts for other programs, .fledge as a policy file.

    Args:
        overrides: `env.key=value` words that change the world that the file says it is flown in; `policy.key=true` ones
            for switches of the policy (.fledge only).
        golden: Also write observations of a flight and the actions on them, as .npz.
    """
    if golden is not None and (golden.suffix != ".npz" or path.suffix == ".fledge"):
        raise ConfigError(f"{golden} cannot be written: golden vectors go into an .npz, beside an .onnx or .ts file.")
    if path.suffix != ".fledge":
        policy = load_policy(name, task)
        cfg = flight_world(policy, overrides=overrides).cfg
        result = export_agent(policy.agent, path, policy.task.contract(cfg))
        if golden is not None:
            cases = write_golden(policy.agent, path, observe_flight(policy, cfg), golden)
            result |= {"golden": str(golden), "golden_cases": cases}
        return result
    source = find_policy_file(name)
    if source is None or source.suffix == ".pt":
        raise ConfigError(f"{name} is no run or policy file, so there is nothing to write to {path}.")
    entries = read_policy(source)
    described = [word for word in overrides if word.startswith("policy.")]
    overrides = [word for word in overrides if word not in described]
    if described:
        entries["policy"] = redescribe(entries["policy"], described, name)
        build_policy(entries, name, task)  # refuses what the weights do not fit
    if overrides:
        policy = build_policy(entries, name, task)
        flight_world(policy, overrides=overrides)  # refuses what the weights do not fit
        trained = policy.world.env if policy.world is not None else {}
        words = [check_env_word(word, policy.task) for word in overrides]
        layers = [("the policy's world", nested(trained))]
        world: Any = build_config(policy.task.config, layers, words, policy.task.aliases, prefix="env.")
        refuse_code(world, words, "env.")
        env = policy.task.make_env(world)
        entries["world"] = {"env": flat_settings(world), "decision_s": env.decision_s}
        env.close()
    write_policy(entries, path)
    ours, theirs = entries["model"], read_policy(path)["model"]
    worst = max(float((ours[k].float() - theirs[k].float()).abs().max()) for k in ours if ours[k].numel())
    return {"file": str(path), "bytes": path.stat().st_size, "max_difference": worst}


def redescribe(description: Mapping[str, Any], words: Sequence[str], name: str) -> dict[str, Any]:
    """A policy's description with switches changed by `policy.key=value` words; its weights stay as they are."""
    changed = dict(description)
    for word in words:
        key, _, value = word.removeprefix("policy.").partition("=")
        if not isinstance(changed.get(key), bool) or value.lower() not in ("true", "false"):
            switches = [f"policy.{k}=true" for k, old in changed.items() if isinstance(old, bool)]
            raise ConfigError(
                f"{word!r} cannot be changed in {name}: its switches are {', '.join(switches) or 'none'}."
            )
        changed[key] = value.lower() == "true"
    return changed


def observe_flight(policy: LoadedPolicy, cfg: Any, envs: int = 8, looks: int = 16, every: int = 8) -> dict[str, Tensor]:
    """What a policy sees as it flies in the held-out world: observations of `envs` envs, `looks` times each."""
    env = policy.task.make_env(dataclasses.replace(cfg, num_envs=envs), seed=1, held_out=True)
    try:
        policy.task.check_fit(policy.agent, env)
        out, seen = env.reset(), []
        policy.agent.reset()
        for step in range(looks * every):
            if step % every == 0:
                seen.append({key: out["obs"][key].clone() for key in policy.agent.observes})
            out = env.step(policy.agent.act(out["obs"]))
            policy.agent.reset(out["terminated"] | out["truncated"])
        return {key: torch.cat([look[key] for look in seen]) for key in policy.agent.observes}
    finally:
        env.close()
