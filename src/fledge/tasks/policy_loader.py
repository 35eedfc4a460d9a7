"""Load policies by the names that users type:

fledge-nav                shipped with a task                 runs/nav          a run's folder: its newest checkpoint
straight, crank(shot=1)   a scripted policy of the task       policy.fledge     a policy file
runs/duel#3               a league's third past version       navrl.pt          another project's file
my_pilots.py:Weaver       an agent class of your own     fledge-nav+planner  any of them with a shield
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.agents.policy_file import build_policy, is_past_self, policy_entries, read_policy
from fledge.core.code import find_object, is_reference
from fledge.core.errors import ConfigError, did_you_mean
from fledge.core.paths import os_error_message, path_hint
from fledge.core.specs import ActionSpec, TensorSpec, parts_of
from fledge.envs.base import TensorEnv
from fledge.storage import load_checkpoint
from fledge.tasks.base import Task
from fledge.tasks.loaded_policy import LoadedPolicy as LoadedPolicy
from fledge.tasks.policy_factory import TrainedEnv
from fledge.tasks.registry import find_named_task, find_task, is_code, registered_tasks

EXPORTED = (".onnx", ".ts", ".npz")  # formats of `fledge export` for other programs
PILOT = re.compile(r"([\w.-]+)\s*(?:\((.*)\))?", re.DOTALL)
OWN = re.compile(r"(.+:[\w.]+)\s*(?:\((.*)\))?", re.DOTALL)  # module:Class or file.py:Class, and parameters


def find_policy_file(name: str) -> Path | None:
    """Return the file of a shipped policy; else the name as a path, if it exists or has the form RUN#3; else None."""
    for task in registered_tasks():
        if name in (shipped := task.policy.shipped()):
            return shipped[name]
    try:
        return Path(name) if Path(name).exists() or is_past_self(Path(name)) else None
    except OSError as error:
        raise ConfigError(os_error_message(error)) from None


def load_policy(
    name: str | os.PathLike[str] | LoadedPolicy, task: str | Task | type[Task] | None = None
) -> LoadedPolicy:
    """Load a policy by name or path.

    Example:
        >>> policy = fledge.load_policy("fledge-nav")
        >>> action = policy.act({"state": state, "lidar": lidar, ...})

    A name such as my_pilots.py:Weaver runs that file: pass only names that the user has typed, never a name from a file.

    Args:
        name: A shipped policy (fledge-nav), a run's folder (its newest checkpoint), a policy file, a scripted policy
            (straight, or crank(shot=0.8)), an agent class of your own (my_pilots.py:Weaver), a past version of the
            policy that a league run has kept (runs/duel#3), another project's .pt file, or any of them with a shield that
            corrects its actions (fledge-nav+planner).
        task: Task of the policy. Needed for scripted policies and .pt files of tasks other than navigation, for your own
            agent class if it has no attribute `task`, and for policies whose task is Python code.

    Raises:
        ConfigError: if there is no such policy, or it belongs to another task.
    """
    if isinstance(name, LoadedPolicy):
        return name
    name, task = os.fspath(name), None if task is None else find_task(task)
    chosen = task or find_task("navigation")
    bare, plus, shield = name.rpartition("+")
    if plus and shield in chosen.policy.shields and not Path(name).exists():
        return add_shield(load_policy(bare, task), shield)
    if (pilot := make_pilot(chosen, name)) is not None:
        return LoadedPolicy(name, pilot, chosen, chosen.policy.default_env_config(pilot))
    path = find_policy_file(name)
    if path is None and (own := make_own(name)) is not None:
        home = task or find_named_task(getattr(own, "task", "") or chosen.reference, asked_by=name)
        return LoadedPolicy(name, own, home, home.policy.default_env_config(own))
    if path is None:
        raise unknown_policy(chosen, name)
    if path.suffix in EXPORTED:
        raise ConfigError(f"{name} is an exported policy, which cannot be loaded here: give the run or a .fledge file.")
    if is_interop(path):
        return load_interop(name, chosen)
    return policy_from_state(read_policy(path), name, task)


def unknown_policy(task: Task, name: str, setting: str = "") -> ConfigError:
    """Return the error for a name that is not a policy of a task; `setting` is the key that holds the name."""
    known = [*task.pilots(), *task.policy.shipped()]
    bare = name.partition("(")[0].rpartition("+")[0] or name.partition("(")[0]
    choices = f"Choose one of {', '.join(known)}, or pass" if known else "Pass"
    what = f"{setting}={name!r} is not a known pilot." if setting else f"There is no policy {name!r}."
    if "/" in name or "." in name:
        return ConfigError(f"{what}{path_hint(Path(name))} {choices} a run's folder or a policy file (.fledge, .pt).")
    return ConfigError(
        f"{what}{did_you_mean(bare, [*known, *task.policy.pilot_aliases])} {choices} a run's folder, a policy file "
        "(.fledge, .pt), or file.py:Class of an agent."
    )


def is_interop(path: Path) -> bool:
    """Return whether a file holds another project's weights: a .pt file, or a checkpoint of nothing but tensors."""
    if path.suffix == ".pt" or not path.is_file():
        return path.suffix == ".pt"
    state = load_checkpoint(path, keys=("model?", "policy?", "task?"))
    if state:
        return False
    state = load_checkpoint(path)
    return isinstance(state, Mapping) and bool(state) and all(isinstance(value, Tensor) for value in state.values())


def read_entries(name: str, task: Task) -> dict[str, Any] | None:
    """Return the entries (see `agents.policy_file`) of the policy file that a name refers to; None if there is no such file.

    Another project's weights are converted to the network in which the task trains them.
    """
    path = find_policy_file(name)
    if path is None or not is_interop(path):
        return None if path is None else read_policy(path)
    policy = load_interop(name, task)
    description, network = task.policy.to_trainable(policy.agent)
    entries = {"model": network.state_dict(), "policy": description, "task": task.reference}
    if policy.env is not None:
        entries["world"] = {"env": policy.env.settings, "decision_s": policy.env.decision_s}
    return entries


def find_agent(task: Task, name: str) -> BaseAgent | None:
    """Return the agent that a name refers to in a task, for example an opponent; None if no agent has that name.

    A name such as my_pilots.py:Weaver runs that file; `refuse_code` must check names that come from saved settings.
    """
    if (pilot := make_pilot(task, name)) is not None:
        return pilot
    bare, plus, shield = name.rpartition("+")
    if plus and shield in task.policy.shields and not Path(name).exists():
        agent = find_agent(task, bare)
        return None if agent is None else task.policy.shields[shield](agent)
    if not Path(name).exists() and (own := make_own(name)) is not None:
        return own
    path = task.policy.shipped().get(name, Path(name))
    if path.suffix != ".fledge" and not path.is_dir() and not is_past_self(path):
        return None
    entries = read_policy(path)
    if not may_be(entries["task"], task):
        raise ConfigError(
            f"{name} belongs to the task {entries['task']}, not to {task.reference}: choose another policy."
        )
    return build_policy(task.policy.build, entries, name)


def load_interop(name: str, task: Task) -> LoadedPolicy:
    """Load a policy from another project's file, of any extension."""
    agent = task.policy.load_interop(Path(name))
    return LoadedPolicy(name, agent, task, task.policy.default_env_config(agent))


def policy_from_state(state: dict[str, Any], name: str, task: Task | None = None) -> LoadedPolicy:
    """Build the policy in a saved state, with its weights, task and env."""
    entries = policy_entries(state, name)
    if task is None:
        task = find_named_task(entries["task"], asked_by=name)
    elif not may_be(entries["task"], task):
        raise ConfigError(
            f"{name} belongs to the task {entries['task']}, not to {task.reference}: choose another policy."
        )
    agent = build_policy(task.policy.build, entries, name)
    saved = entries.get("world")
    env = None if saved is None else TrainedEnv(dict(saved["env"]), saved["decision_s"])
    return LoadedPolicy(name, agent, task, env)


def may_be(reference: str, task: Task) -> bool:
    """Return whether policies of the task `reference` may fit `task`.

    They may if `reference` is the same task or its base class. They also may if both tasks are code (a file or a module),
    since the file that `reference` names may have moved.
    """
    if reference in (task.reference, task.name) or (is_code(reference) and is_code(task.reference)):
        return True
    bases = [type(each) for each in registered_tasks() if each.reference == reference]
    return any(base is not Task and isinstance(task, base) for base in bases)


def add_shield(policy: LoadedPolicy, shield: str) -> LoadedPolicy:
    """Return the policy with one of its task's shields, which checks and corrects every action."""
    shields = policy.task.policy.shields
    if shield not in shields:
        known = f"choose one of {', '.join(shields)}" if shields else "leave out the shield"
        raise ConfigError(f"Task {policy.task.name!r} has no shield {shield!r}: {known}.")
    return dataclasses.replace(policy, name=f"{policy.name}+{shield}", agent=shields[shield](policy.agent))


# ---- scripted policies -----------------------------------------------------------------------------------------------


def make_pilot(task: Task, name: str) -> BaseAgent | None:
    """Return the scripted policy of a name, for example `crank` or `crank(shot=0.8)`; None if the task has none of that name.

    Raises:
        ConfigError: if the policy does not take a parameter, or a value is not a number, true or false.
    """
    found, pilots = PILOT.fullmatch(name.strip()), task.pilots()
    kind = task.policy.pilot_aliases.get(found[1], found[1]) if found else ""
    if found is None or kind not in pilots:
        return None
    return call_pilot(pilots[kind], kind, found[2] or "")


def make_own(name: str) -> BaseAgent | None:
    """Run the code that a name such as `file.py:Class` or `module:Class(key=1)` refers to, and return its agent.

    Return None if the name has another form.

    Raises:
        ConfigError: if there is no such object, it is not an agent, or a parameter is not allowed.
    """
    found = OWN.fullmatch(name.strip())
    if found is None or not is_reference(found[1]):
        return None
    made = find_object(found[1])
    if not isinstance(made, BaseAgent):
        if not callable(made) or (isinstance(made, type) and not issubclass(made, BaseAgent)):
            raise ConfigError(f"{found[1]} is not an agent: it must be a subclass of fledge.BaseAgent.")
        made = call_pilot(made, found[1], found[2] or "")
    if not isinstance(made, BaseAgent):
        raise ConfigError(f"{found[1]} returned a {type(made).__name__}, but must return a fledge.BaseAgent.")
    return made.eval()


def call_pilot(make: Callable[..., Any], name: str, parameters: str) -> Any:
    """Make a scripted policy: call `make` with the parameters that the policy's name has in brackets."""
    options = read_parameters(name, parameters)
    try:
        known = [key for key in inspect.signature(make).parameters if key not in ("self", "num_envs", "device")]
    except ValueError:  # Python does not know its signature
        known = []
    try:
        return make(**options)
    except TypeError as error:
        if not options:
            raise
        wrong = next((key for key in options if key not in known), "")
        if not wrong or "unexpected keyword" not in str(error):
            raise ConfigError(f"{name} does not take {', '.join(options)}: {error}.") from None
        has = f"Its parameters are {', '.join(known)}" if known else "It has no parameters"
        raise ConfigError(f"{name} has no parameter {wrong}.{did_you_mean(wrong, known)} {has}.") from None


def read_parameters(name: str, text: str) -> dict[str, Any]:
    """Return the parameters that a scripted policy's name has in brackets; values are numbers, true or false."""
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            number = ast.literal_eval(value.capitalize() if value in ("true", "false") else value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            number = None
        if not sign or not key.isidentifier() or not isinstance(number, bool | int | float):
            raise ConfigError(f"{part!r} is not a parameter of {name}: write key=number, key=true or key=false.")
        if key in options:
            raise ConfigError(f"{key} of {name} is given twice: give it once.")
        options[key] = number
    return options


# ---- compatibility of agents and envs --------------------------------------------------------------------------------


def check_fit(agent: BaseAgent, env: TensorEnv) -> None:
    """Raise ConfigError unless an agent can act in an env; if it can, bind the agent to the env."""
    name = agent.get_name()
    missing = [key for key in agent.observes if key not in env.observation_spec]
    if missing:
        raise ConfigError(
            f"{name} reads {', '.join(missing)}, which this env does not observe: enable that in env.*, or use another policy."
        )
    reads: Mapping[str, TensorSpec] = getattr(agent, "reads", {})
    for key, spec in reads.items():
        seen = env.observation_spec[key]
        if (seen.shape, seen.num_values) != (spec.shape, spec.num_values):
            raise ConfigError(
                f"{name} reads {key} as {_told(spec)}, but this env observes {_told(seen)}: use the env that it was "
                "trained in."
            )
    acts: ActionSpec | None = getattr(agent, "acts", None)
    if acts is not None and shapes_of(acts) != shapes_of(env.action_spec):
        own, other = (", ".join(map(_told, parts_of(spec).values())) for spec in (acts, env.action_spec))
        raise ConfigError(f"{name} acts with {own}, but this env takes {other}: use the env that it was trained in.")
    agent.bind(env)


def _told(spec: TensorSpec) -> str:
    return f"shape {list(spec.shape)}{'' if spec.num_values is None else f' of {spec.num_values} values'}"


def shapes_of(spec: ActionSpec) -> dict[str, tuple[Any, ...]]:
    """Return the shape and the number of values of each part of an action; a policy and its env must agree on them."""
    return {name: (part.shape, part.num_values) for name, part in parts_of(spec).items()}
